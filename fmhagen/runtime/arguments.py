"""Arguments: what a call gives besides q, k and v, by name.

Which there are follows from the spec: parameters of its mask and score functions, logits of sinks,
offsets of packed sequences. A tensor must lie on the device of q; its element type is the one that
the kernel reads, or is converted to it where no value can change, or is refused by name. Nothing
is reinterpreted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from fmhagen.errors import TensorError
from fmhagen.expr.text import to_text
from fmhagen.formula import is_mapped, mask_of
from fmhagen.records import closest
from fmhagen.runtime.argument_kinds import (
    MAX_LOGIT_TENSOR,
    MOST,
    PACKED,
    SINKS,
    Argument,
    of_cache,
)
from fmhagen.runtime.argument_values import fit_tensor, read_number, shown
from fmhagen.runtime.block_map import BlockMap
from fmhagen.runtime.launch_values import Value
from fmhagen.runtime.parameters import parameter_slots
from fmhagen.runtime.tensors import TensorView, converted, view
from fmhagen.spec import AttentionSpec


class Extras(TypedDict, total=False):
    """Keyword arguments of a call besides scale, out and return_lse; see `fmhagen.api.Kernel`."""

    params: Mapping[str, Any] | None
    alibi_slopes: Any
    sinks: Any
    max_logit: Any
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    seqused_q: Any
    seqused_k: Any
    max_seqlen_q: Any
    max_seqlen_k: Any
    cache_seqlens: Any
    block_table: Any
    num_splits: int | None
    k_scale: Any
    v_scale: Any
    validate: bool | None
    block_map: Any


_NUMBERS = ("max_seqlen_q", "max_seqlen_k")
_PREPARE = "make one by kernel.prepare(q, k)"
_SUGGESTIONS = {
    "block_map": "masks that read tensors by position take one, unless sequences are packed",
    "params": "a spec with a mask_mod or score_mod takes them",
    "alibi_slopes": "a spec with alibi=True takes them",
    "sinks": "a spec with sink=True takes them",
    "max_logit": "a spec with max_logit=True takes it",
    "cache_seqlens": "a spec with kv_cache=True takes them",
    "block_table": "a spec with page_size=... takes it",
    "num_splits": "a spec with kv_cache=True takes it",
    "k_scale": "a spec with a kv_scale takes it",
    "v_scale": "a spec with a kv_scale takes it",
} | {
    name: "a spec with varlen=True takes it"
    for name in (*(argument.name for argument in PACKED), *_NUMBERS)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The arguments of one call, checked as far as q alone allows.

    Attributes:
        tensors: by parameter field, those that were given.
        numbers: by name, those that were given.
        validate: whether offsets are read; None means where that costs no synchronisation.
        addresses: addresses and numbers in the order of `Arguments.fields`; 0 for what is absent.
        values: of the parameter fields that follow from the tensors' layouts.
        is_converted: a tensor is a copy that was made for this call.
        block_map: what tiles show, where the kernel follows a map.
    """

    tensors: dict[str, TensorView]
    numbers: dict[str, int]
    validate: bool | None
    addresses: tuple[int | float, ...]
    values: dict[str, Value]
    is_converted: bool
    block_map: BlockMap | None = None


class Arguments:
    """The arguments that kernels of one spec take."""

    def __init__(
        self, spec: AttentionSpec, *, mapped: bool | None = None, reads_cache: bool = False
    ) -> None:
        """Decide which there are.

        Args:
            spec: what the kernels compute.
            mapped: whether they follow a block map; None means where the mask needs one.
            reads_cache: whether lengths and table of a cache are among the arguments.
        """
        self.is_mapped = is_mapped(spec) if mapped is None else mapped
        """Whether a call must have a block map."""
        mask = mask_of(spec) if self.is_mapped else None
        self.mask = "" if mask is None else to_text(mask)
        """Text of the mask that the map is of."""
        self._slots = parameter_slots(spec)
        rows = of_cache(spec) if reads_cache else PACKED if spec.varlen else ()
        largest = (MAX_LOGIT_TENSOR,) if spec.max_logit else ()
        self._own = (*((SINKS,) if spec.sink else ()), *largest, *rows)
        self._own_names = tuple(argument.name for argument in self._own)
        self._numbers = _NUMBERS if spec.varlen else ()
        if reads_cache:
            self._numbers = (*self._numbers[:1], "num_splits")
        mods = (mod for mod in (spec.mask_mod, spec.score_mod) if mod is not None)
        self._in_params = frozenset(p.name for mod in mods for p in mod.parameters)
        # NOTE: a score function may ignore its score, and ALiBi with it: slopes are then not read.
        slopes = ("alibi_slopes",) if spec.alibi else ()
        self._known = frozenset(
            (
                *self._own_names,
                *slopes,
                *self._numbers,
                *(("params",) if self._in_params else ()),
                *(("block_map",) if self.is_mapped else ()),
                "validate",
            )
        )
        self.fields: tuple[str, ...] = (
            *(slot.field for slot in self._slots),
            *self._own_names,
            *(("block_map",) if self.is_mapped else ()),
        )
        """Parameter fields that hold addresses and numbers, in order."""
        self.is_needed_always = any(slot.default is not None for slot in self._slots)
        """Whether a call without arguments still has some: what the functions captured."""

    def read(self, extras: Extras) -> tuple[tuple[Any, ...], tuple[int | float, ...], bool]:
        """Return the key of a call's layout, its addresses, and whether one needs a gradient.

        This is for torch tensors of a layout that `check` has seen; it checks nothing.

        Raises:
            AttributeError, TypeError: an argument is no torch tensor.
        """
        key: list[Any] = list(extras)
        addresses: list[int | float] = []
        tensors: list[Any] = []
        if self._slots:
            params = extras.get("params") or {}
            key += params
            for slot in self._slots:
                value = slot.value_of(extras, params)
                if slot.is_number:
                    key.append(type(value))
                    addresses.append(slot.quick_number(value))
                else:
                    tensors.append(value)
        given: Any = extras.get
        tensors += [given(name) for name in self._own_names]
        if self.is_mapped:
            block_map: BlockMap = extras["block_map"]
            key.append(block_map.layout)
            tensors.append(block_map.tensor)
        gradients = False
        for tensor in tensors:
            if tensor is None:
                key.append(None)
                addresses.append(0)
            else:
                key += (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())
                addresses.append(tensor.data_ptr())
                if tensor.requires_grad:
                    gradients = True
        for name in self._numbers:
            number = given(name)
            if number is not None and type(number) is not int:
                raise TypeError("not a plain number")
            key.append(number)
        if given("validate"):
            raise TypeError("offsets are to be read")
        return tuple(key), tuple(addresses), gradients

    def check(self, extras: Extras, q: TensorView) -> Given:
        """Refuse what is unknown, missing, of a wrong type or on another device; convert the rest.

        Raises:
            TensorError: names the argument, its value, the limit and what to do.
        """
        given: dict[str, Any] = {name: item for name, item in extras.items() if item is not None}
        self._refuse_unknown(given)
        params = given.get("params", {})
        tensors: dict[str, TensorView] = {}
        scalars: dict[str, int | float] = {}
        sources: dict[str, Any] = {}
        values: dict[str, Value] = {}
        for slot in self._slots:
            value = sources[slot.field] = slot.value_of(extras, params)
            if slot.is_number:
                scalars[slot.field] = slot.fit_number(value)
            else:
                tensors[slot.field] = slot.fit_tensor(value, q)
                values |= slot.layout_values(tensors[slot.field])
        for argument in self._own:
            if argument.name in given:
                value = sources[argument.name] = given[argument.name]
                tensors[argument.name] = _fit(argument, value, q)
            elif argument.required:
                limit = f"must be given: {argument.dtype} of shape ({argument.words})"
                raise TensorError(argument.name, None, limit)
        block_map = given.get("block_map")
        if self.is_mapped:
            if not isinstance(block_map, BlockMap):
                raise TensorError("block_map", shown(block_map), "must be a BlockMap", _PREPARE)
            sources["block_map"] = block_map.tensor
            tensors["block_map"] = block_map.viewed(q)
            values |= block_map.values(tensors["block_map"])
        numbers = {
            name: read_number(name, given[name], MOST[name])
            for name in self._numbers
            if name in given
        }
        places = scalars | {field: tensor.address for field, tensor in tensors.items()}
        return Given(
            tensors=tensors,
            numbers=numbers,
            validate=given.get("validate"),
            addresses=tuple(places.get(field, 0) for field in self.fields),
            values=values,
            is_converted=any(tensors[field].tensor is not sources[field] for field in tensors),
            block_map=block_map,
        )

    def check_sizes(self, given: Given, sizes: dict[str, int]) -> None:
        """Refuse tensors whose shapes do not fit the call.

        Args:
            given: the arguments.
            sizes: what the words of shapes mean in this call: B, "B + 1", H, Sq, Sk.

        Raises:
            TensorError: names the argument, its shape and the right one.
        """
        for slot in self._slots:
            if not slot.is_number:
                slot.check_sizes(given.tensors[slot.field], sizes)
        for argument in self._own:
            tensor = given.tensors.get(argument.name)
            shape = tuple(sizes[word] for word in argument.sizes)
            if tensor is not None and not argument.is_judged_later and tensor.shape != shape:
                limit = f"must have the shape ({argument.words}) = {shape}"
                raise TensorError(argument.name, tensor.shape, limit)

    def _refuse_unknown(self, given: dict[str, Any]) -> None:
        for name in given:
            if name not in self._known:
                known = tuple(sorted({*self._known, "out", "return_lse", "scale"}))
                hint = _SUGGESTIONS.get(name) or closest(name, known)
                limit = "this kernel takes no such argument"
                raise TensorError(name, shown(given[name]), limit, hint)
        params = given.get("params", {})
        if not isinstance(params, Mapping):
            raise TensorError("params", shown(params), "must be a dict by parameter name")
        for name, value in params.items():
            if name not in self._in_params:
                hint = closest(str(name), tuple(sorted(self._in_params)))
                limit = "the mask and score functions read no such parameter"
                raise TensorError(f"params[{name!r}]", shown(value), limit, hint)


def _fit(argument: Argument, value: Any, q: TensorView) -> TensorView:
    if argument.is_judged_later:
        return view(argument.name, value)
    dense = not argument.has_rows
    tensor = fit_tensor(argument.name, value, q, argument.dtype, argument.converts, dense=dense)
    if len(tensor.shape) != len(argument.sizes):
        limit = f"must have the shape ({argument.words})"
        raise TensorError(argument.name, tensor.shape, limit)
    if argument.is_updated:
        if tensor.tensor is not value:
            raise TensorError(argument.name, tensor.strides, "must lie densely: it is written")
        if not tensor.writable:
            raise TensorError(argument.name, "read-only", "must be writable")
    if argument.has_rows and tensor.shape[-1] > 1 and tensor.strides[-1] != 1:
        return converted(tensor, argument.dtype)
    return tensor
