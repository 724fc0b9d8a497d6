"""Arguments: what a call gives besides q, k and v, by name.

Which there are follows from the spec: logits of sinks, offsets of packed sequences. A tensor must
lie on the device of q; its element type is the one that the kernel reads, or is converted to it
where no value can change, or is refused by name. Nothing is reinterpreted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

from fmhagen.errors import TensorError
from fmhagen.records import closest
from fmhagen.runtime.launch_values import Value
from fmhagen.runtime.tensors import TensorView, contiguous_strides, converted, is_tensor, view
from fmhagen.spec import AttentionSpec


class Extras(TypedDict, total=False):
    """Keyword arguments of a call besides scale, out and return_lse; see `fmhagen.api.Kernel`."""

    sinks: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    seqused_q: Any
    seqused_k: Any
    max_seqlen_q: Any
    max_seqlen_k: Any
    validate: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One tensor that a kernel reads besides q, k and v.

    Attributes:
        name: its keyword, and the parameter field of its address.
        dtype: the element type that the kernel reads.
        converts: element types that are converted to it.
        sizes: its shape in words, such as ("H",).
        required: whether a call must give it; else its address may be 0.
    """

    name: str
    dtype: str
    converts: tuple[str, ...]
    sizes: tuple[str, ...]
    required: bool

    @property
    def words(self) -> str:
        """The shape, as Python writes it."""
        return ", ".join(self.sizes) + ("," if len(self.sizes) == 1 else "")


def _lengths(name: str, sizes: str, *, required: bool) -> Argument:
    return Argument(
        name=name, dtype="int32", converts=("int64",), sizes=(sizes,), required=required
    )


_SINKS = Argument(
    name="sinks", dtype="fp32", converts=("bf16", "fp16"), sizes=("H",), required=True
)
_PACKED = (
    _lengths("cu_seqlens_q", "B + 1", required=True),
    _lengths("cu_seqlens_k", "B + 1", required=True),
    _lengths("seqused_q", "B", required=False),
    _lengths("seqused_k", "B", required=False),
)
_NUMBERS = ("max_seqlen_q", "max_seqlen_k")
_SUGGESTIONS = {"sinks": "a spec with sink=True takes them"} | {
    name: "a spec with varlen=True takes it"
    for name in (*(argument.name for argument in _PACKED), *_NUMBERS)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The arguments of one call, checked as far as q alone allows.

    Attributes:
        tensors: by name, those that were given.
        numbers: by name, those that were given.
        validate: whether offsets are read; None means where that costs no synchronisation.
        addresses: of the arguments, in the order of `Arguments.fields`; 0 for what is absent.
        values: of the parameter fields that follow from the tensors' layouts.
    """

    tensors: dict[str, TensorView]
    numbers: dict[str, int]
    validate: bool | None
    addresses: tuple[int | float, ...]
    values: dict[str, Value]


class Arguments:
    """The arguments that kernels of one spec take."""

    def __init__(self, spec: AttentionSpec) -> None:
        """Decide which there are."""
        self._arguments = (*((_SINKS,) if spec.sink else ()), *(_PACKED if spec.varlen else ()))
        self._numbers = _NUMBERS if spec.varlen else ()
        self._known = frozenset(
            (*(argument.name for argument in self._arguments), *self._numbers, "validate")
        )
        self.fields: tuple[str, ...] = tuple(argument.name for argument in self._arguments)
        """Parameter fields that hold the addresses, in order."""

    def read(self, extras: Extras) -> tuple[tuple[Any, ...], tuple[int | float, ...], bool]:
        """Return the key of a call's layout, its addresses, and whether one needs a gradient.

        This is for torch tensors of a layout that `check` has seen; it checks nothing.

        Raises:
            AttributeError, TypeError: an argument is no torch tensor.
        """
        key: list[Any] = list(extras)
        addresses = []
        differentiable = False
        for name in self.fields:
            tensor: Any = extras.get(name)
            if tensor is None:
                key.append(None)
                addresses.append(0)
            else:
                key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())
                addresses.append(tensor.data_ptr())
                differentiable = differentiable or tensor.requires_grad
        key += (extras.get(name) for name in self._numbers)
        if extras.get("validate"):
            raise TypeError("offsets are to be read")
        return tuple(key), tuple(addresses), differentiable

    def check(self, extras: Extras, q: TensorView) -> Given:
        """Refuse what is unknown, missing, of a wrong type or on another device; convert the rest.

        Raises:
            TensorError: names the argument, its value, the limit and what to do.
        """
        given: dict[str, Any] = {name: item for name, item in extras.items() if item is not None}
        for name in given:
            if name not in self._known:
                hint = _SUGGESTIONS.get(name) or closest(name, tuple(sorted(self._known)))
                limit = "this kernel takes no such argument"
                raise TensorError(name, _short(given[name]), limit, hint)
        tensors = {}
        for argument in self._arguments:
            if argument.name in given:
                tensors[argument.name] = _fit(argument, given[argument.name], q)
            elif argument.required:
                limit = f"must be given: {argument.dtype} of shape ({argument.words})"
                raise TensorError(argument.name, None, limit)
        return Given(
            tensors=tensors,
            numbers={
                name: _whole_number(name, given[name]) for name in self._numbers if name in given
            },
            validate=given.get("validate"),
            addresses=tuple(
                tensors[name].address if name in tensors else 0 for name in self.fields
            ),
            values={},
        )

    def check_sizes(self, given: Given, sizes: dict[str, int]) -> None:
        """Refuse tensors whose shapes do not fit the call.

        Args:
            given: the arguments.
            sizes: what the words in `Argument.sizes` mean in this call.

        Raises:
            TensorError: names the argument, its shape and the right one.
        """
        for argument in self._arguments:
            tensor = given.tensors.get(argument.name)
            shape = tuple(sizes[word] for word in argument.sizes)
            if tensor is not None and tensor.shape != shape:
                limit = f"must have the shape ({argument.words}) = {shape}"
                raise TensorError(argument.name, tensor.shape, limit)

    def __iter__(self) -> Iterator[Argument]:
        """Yield the tensors among the arguments, in order."""
        return iter(self._arguments)


def _fit(argument: Argument, value: Any, q: TensorView) -> TensorView:
    """Return a tensor as the kernel reads it: its element type, dense, on the device of q."""
    if not is_tensor(value):
        limit = f"must be a tensor of {argument.dtype}"
        raise TensorError(argument.name, _short(value), limit, "pass it in the memory of q")
    tensor = view(argument.name, value)
    if tensor.place != q.place:
        limit = f"must lie on the device of q, {q.place}"
        raise TensorError(argument.name, tensor.place, limit, "move it")
    if tensor.dtype not in (argument.dtype, *argument.converts):
        types = " or ".join((argument.dtype, *argument.converts))
        raise TensorError(argument.name, tensor.dtype, f"must have the element type {types}")
    if len(tensor.shape) != len(argument.sizes):
        limit = f"must have the shape ({argument.words})"
        raise TensorError(argument.name, tensor.shape, limit)
    dense = tensor.strides == contiguous_strides(tensor.shape)
    # NOTE: a view into packed data may lie at any byte; kernels load whole elements.
    aligned = tensor.address % tensor.element_bytes == 0
    if tensor.dtype == argument.dtype and aligned and (dense or tensor.shape[0] < 2):
        return tensor
    return converted(tensor, argument.dtype)


def _whole_number(name: str, value: Any) -> int:
    """Return a length that is an int, or a tensor without dimensions in host memory.

    Raises:
        TensorError: it is neither, is negative, or lies on a device, where reading it would wait.
    """
    if is_tensor(value):
        tensor = view(name, value)
        if tensor.place != "host":
            limit = "lies on a device; reading it would synchronise"
            raise TensorError(name, tensor.place, limit, "pass an int")
        if tensor.shape != ():
            raise TensorError(name, tensor.shape, "must be one number", "pass an int")
        value = value.item()
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TensorError(name, _short(value), "must be a whole number", "pass an int")
    number = int(value)
    if not 0 <= number < 2**31:
        raise TensorError(name, number, "must be from 0 to 2^31 - 1")
    return number


def _short(value: Any) -> object:
    """Return a value that a message can show: a tensor's type instead of its elements."""
    if value is None or isinstance(value, int | float | str):
        return value
    return type(value).__name__
