"""Parameters: what a mask or score function reads at run time, as arguments of a call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fmhagen.errors import InvalidSpecError, TensorError
from fmhagen.expr.nodes import Type
from fmhagen.formula import ALIBI_SLOPES
from fmhagen.lowering.language import lower_language
from fmhagen.plan.language import Argument
from fmhagen.runtime.argument_values import fit_tensor, shown
from fmhagen.runtime.captures import captured_arrays
from fmhagen.runtime.launch_values import LARGEST_F32, Value
from fmhagen.runtime.tensors import TensorView, is_tensor, view
from fmhagen.spec import AttentionSpec

# Element type of a parameter -> that of a tensor, and those that hold no other values.
_DTYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "f32": ("fp32", ("bf16", "fp16", "fp64")),
    "f16": ("fp16", ()),
    "bf16": ("bf16", ()),
    "i32": ("int32", ("int64", "int16", "int8", "uint8")),
    "i64": ("int64", ("int32", "int16", "int8", "uint8")),
    "u8": ("uint8", ("bool",)),
    "bool": ("bool", ("uint8",)),
}
_WORDS = {"b": "B", "h": "H", "q_idx": "Sq", "kv_idx": "Sk"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSlot:
    """One parameter of a spec's functions.

    Attributes:
        argument: its declaration, and what indexes its axes.
        default: what the function captured, or None.
        keyword: the keyword of a call that gives it, or "" where `params` does.
        moved: the captured array as a copy beside the last call's Q, once one was needed.
    """

    argument: Argument
    default: Any
    keyword: str
    moved: list[Any] = field(default_factory=list, compare=False)

    @property
    def name(self) -> str:
        """Its name in the function."""
        return self.argument.parameter.name

    @property
    def label(self) -> str:
        """Its name for messages."""
        return self.keyword or f"params[{self.name!r}]"

    @property
    def field(self) -> str:
        """The parameter field of its address or number."""
        return f"arg_{self.name}"

    @property
    def is_number(self) -> bool:
        """Whether it is passed by value."""
        return self.argument.parameter.ndim == 0

    def value_of(self, extras: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
        """Return what a call gives for it, else what the function captured."""
        captured = self.moved[0] if self.moved else self.default
        if self.keyword:
            return extras.get(self.keyword, captured)
        return params.get(self.name, captured)

    def fit_number(self, value: Any) -> int | float:
        """Return a number; a tensor without dimensions is read, which waits for its device.

        Raises:
            TensorError: it is missing, no number, or too large.
        """
        self._require(value)
        if is_tensor(value):
            # NOTE: a view refuses what asks for a gradient.
            if view(self.label, value).shape != ():
                raise TensorError(self.label, tuple(value.shape), "must be one number")
            value = value.item()
            value = int(value) if isinstance(value, bool) else value
        whole = self.argument.parameter.type == Type.I32
        if whole and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise TensorError(self.label, shown(value), "must be a whole number")
        if whole and not -(2**31) <= int(value) < 2**31:
            raise TensorError(self.label, int(value), "must fit in 32 bits")
        try:
            number = int(value) if whole else float(value)
        except (TypeError, ValueError):
            raise TensorError(self.label, shown(value), "must be a number") from None
        if math.isfinite(number) and abs(number) > LARGEST_F32:
            raise TensorError(self.label, number, f"must be at most {LARGEST_F32:.4g}")
        return number

    def quick_number(self, value: Any) -> int | float:
        """Return a number that needs no check but this one, of the type that was checked before.

        Raises:
            TypeError: it may need one.
        """
        if type(value) in (int, float) and -(2**31) <= value < 2**31:
            return value  # type: ignore[no-any-return]
        raise TypeError("not a plain number")

    def fit_tensor(self, value: Any, q: TensorView) -> TensorView:
        """Return a tensor as the kernel reads it, with the parameter's dimensions.

        A NumPy array that the function captured is copied to the device of Q, once for all calls.

        Raises:
            TensorError: it is missing, lies elsewhere, or has another kind or rank.
        """
        self._require(value)
        if value is self.default or any(value is one for one in self.moved):
            value = self._captured_beside(q)
        dtype, converts = _DTYPES[self.argument.parameter.dtype]
        tensor = fit_tensor(self.label, value, q, dtype, converts, dense=False)
        ndim = self.argument.parameter.ndim
        if self.argument.parameter == ALIBI_SLOPES and len(tensor.shape) == 1:
            return _with_batch(tensor)
        if len(tensor.shape) != ndim:
            raise TensorError(self.label, tensor.shape, f"must have {ndim} dimensions")
        return tensor

    def _captured_beside(self, q: TensorView) -> Any:
        if not any(view(self.label, one).place == q.place for one in self.moved):
            self.moved[:] = [captured_arrays().beside(self.label, self.default, q)]
        return self.moved[0]

    def check_sizes(self, tensor: TensorView, sizes: dict[str, int]) -> None:
        """Refuse a tensor that is too small for an index; an axis of one element is repeated.

        Raises:
            TensorError: names the axis, its size and the least one.
        """
        for axis, kinds in enumerate(self.argument.axes):
            for kind in kinds:
                word = _WORDS.get(kind)
                if kind == "computed":
                    least, reason = 1, "is indexed by what the function computes"
                elif word is not None:
                    least, reason = sizes[word], f"is indexed by {kind}: it needs {word}"
                else:
                    least, reason = int(kind) + 1, f"is indexed by {kind}"
                size = tensor.shape[axis]
                if self.keyword and size != least and not (size == 1 and kind == "b"):
                    limit = f"must have the shape (H,) or (B, H), {sizes['H']} heads"
                    raise TensorError(self.label, tensor.shape, f"{limit} and B = {sizes['B']}")
                repeats = size == 1 and word is not None
                if size < least and not repeats:
                    limit = f"axis {axis} {reason}, at least {least} elements"
                    raise TensorError(self.label, tensor.shape, limit)

    def layout_values(self, tensor: TensorView) -> dict[str, Value]:
        """Return the values of the parameter's strides and sizes."""
        values: dict[str, Value] = {}
        for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.strides, strict=True)):
            values[f"{self.field}_stride_{axis}"] = 0 if size == 1 else stride
            values[f"{self.field}_size_{axis}"] = size
        return values

    def _require(self, value: Any) -> None:
        if value is None:
            declaration = self.argument.parameter.declaration
            hint = "pass it in params=" if not self.keyword else None
            raise TensorError(self.label, None, f"must be given: {declaration}", hint)


def parameter_slots(spec: AttentionSpec) -> tuple[ParameterSlot, ...]:
    """Return the parameters of a spec's mask and score functions, numbers first."""
    if spec.mask_mod is None and spec.score_mod is None and not spec.alibi:
        return ()
    bound = joined_captures(*(mod.bound for mod in (spec.mask_mod, spec.score_mod) if mod))
    found = (
        ParameterSlot(
            argument=argument,
            default=bound.get(argument.parameter.name),
            keyword="alibi_slopes" if argument.parameter == ALIBI_SLOPES else "",
        )
        for argument in lower_language(spec).arguments
    )
    return tuple(sorted(found, key=lambda slot: not slot.is_number))


def joined_captures(*bounds: Mapping[str, Any]) -> dict[str, Any]:
    """Return what several functions captured, by parameter name.

    Raises:
        InvalidSpecError: two of them call different tensors by one name.
    """
    joined: dict[str, Any] = {}
    for bound in bounds:
        for name, value in bound.items():
            if joined.setdefault(name, value) is not value:
                limit = "mask_mod and score_mod capture different tensors of this name"
                raise InvalidSpecError("parameter", name, limit, "rename one of them")
    return joined


def _with_batch(tensor: TensorView) -> TensorView:
    """Return a tensor of the heads as one that every sequence of the batch shares."""
    return replace(tensor, shape=(1, *tensor.shape), strides=(0, *tensor.strides))
