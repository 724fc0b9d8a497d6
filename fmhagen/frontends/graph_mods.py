"""MaskMod and ScoreMod in compiled regions of PyTorch: made outside, or composed inside.

Dynamo calls what is registered here in the place of the functions of `fmhagen.expr.mods`,
`fmhagen.masks` and `fmhagen.scores`. The expression of a mod is a constant of a graph, its tensors
are inputs: `fmhagen::mod` gives the value of one, and a body of `torch_graphs` computes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fmhagen import masks, scores
from fmhagen.expr import mods
from fmhagen.expr.mods import MaskMod, Mod, ScoreMod
from fmhagen.expr.nodes import Node
from fmhagen.frontends.torch_rules import skip_outside_graphs, stand_in_graphs

Function = Callable[..., Any]
_CONSTANT: Any = torch.compiler.assume_constant_result


class GraphMod:
    """A mask or score function that was made inside a compiled region."""

    def __init__(self, function: Function) -> None:
        """Take what it calls."""
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        """Return its value."""
        return self.function(*arguments)

    def __and__(self, other: Function) -> GraphMod:
        """What both show."""
        return _both(self, other)

    __rand__ = __and__

    def __or__(self, other: Function) -> GraphMod:
        """What either shows."""
        return _either(self, other)

    __ror__ = __or__

    def __invert__(self) -> GraphMod:
        """What it hides."""
        return _complement(self)

    def then(self, other: Function) -> GraphMod:
        """This function first, and the other one on what it gives."""
        return _chained(self, other)


def _both(a: Function, b: Function) -> GraphMod:
    return GraphMod(lambda *at: a(*at) & b(*at))


def _either(a: Function, b: Function) -> GraphMod:
    return GraphMod(lambda *at: a(*at) | b(*at))


def _complement(a: Function) -> GraphMod:
    return GraphMod(lambda *at: torch.logical_not(as_tensor(a(*at))))


def _chained(first: Function, second: Function) -> GraphMod:
    return GraphMod(lambda score, *at: second(first(score, *at), *at))


def _all_of(*functions: Function) -> GraphMod:
    whole = GraphMod(lambda *at: True)
    for function in functions:
        whole = _both(whole, function)
    return whole


def _any_of(*functions: Function) -> GraphMod:
    whole = GraphMod(lambda *at: False)
    for function in functions:
        whole = _either(whole, function)
    return whole


def as_tensor(value: Any) -> torch.Tensor:
    """Return a value of a function in a compiled region, which may be a number."""
    return value if isinstance(value, torch.Tensor) else torch.full((), value)


# Mods.


def _mod(
    places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], names: str, text: str
) -> torch.Tensor:
    raise RuntimeError(f"{text} is a value of a kernel, and stands in attention alone")


def _fake_mod(
    places: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], names: str, text: str
) -> torch.Tensor:
    is_mask = len(places) == len(MaskMod.ARGUMENTS)
    return places[0].new_empty((1,), dtype=torch.bool if is_mask else torch.float32)


def _mapped_mod(info: Any, in_dims: Any, *arguments: Any) -> Any:
    return torch.ops.fmhagen.mod(*arguments), None  # its value is not computed in a graph


torch.library.custom_op("fmhagen::mod", _mod, mutates_args=()).register_fake(_fake_mod)
torch.library.register_vmap("fmhagen::mod", _mapped_mod)


def text_of(mod: Mod) -> str:
    """Return the expression of a mod from outside a compiled region, as a constant of it."""
    text: Any = _text_of_mask if isinstance(mod, MaskMod) else _text_of_score
    found: str = text(mod.node)
    return found


@_CONSTANT  # type: ignore[untyped-decorator]
def _text_of_mask(node: Node) -> str:
    return str(MaskMod(node))


@_CONSTANT  # type: ignore[untyped-decorator]
def _text_of_score(node: Node) -> str:
    return str(ScoreMod(node))


def tensors_of(mod: Mod, device: Any) -> dict[str, torch.Tensor]:
    """Return the tensors of a mod by name; of NumPy's arrays copies on a device."""
    return {name: _on(device, value) for name, value in mod.bound.items()}


def _on(device: Any, value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.as_tensor(value).to(device)


def _applied(mod: Mod, *arguments: Any) -> torch.Tensor:
    bound = tensors_of(mod, _device(arguments))
    return _value(arguments, list(bound.values()), ",".join(bound), text_of(mod))


def _device(arguments: Sequence[Any]) -> Any:
    """Return the device of places, which is that of Q."""
    devices = [x.device for x in arguments if isinstance(x, torch.Tensor) and x.dim()]
    return devices[0] if devices else "cpu"


def _value(
    arguments: Sequence[Any], tensors: list[torch.Tensor], names: str, text: str
) -> torch.Tensor:
    found: torch.Tensor = torch.ops.fmhagen.mod(
        [as_tensor(argument) for argument in arguments], tensors, names, text
    )
    return found


# What makes mods.


def _of_numbers(factory: Callable[..., Mod]) -> Function:
    """Return what stands for a function that makes a mod of numbers."""
    texts: Any = _CONSTANT(lambda *given, **options: str(factory(*given, **options)))

    def make(*given: Any, **options: Any) -> GraphMod:
        text = texts(*given, **options)
        return GraphMod(lambda *at: _value(at, [], "", text))

    return make


def _of_tensor(factory: Callable[..., Mod]) -> Function:
    """Return what stands for a function that makes a mod of a tensor, and of numbers behind it."""
    first = next(iter(inspect.signature(factory).parameters))
    is_sized = factory is scores.relative_bias  # NOTE: other sizes are no constants of a graph

    def of_tensor(dtype: Any, shape: tuple[int, ...], *given: Any, **options: Any) -> str:
        mod = factory(torch.empty(shape, dtype=dtype, device="meta"), *given, **options)
        return ",".join(mod.bound) + "\n" + str(mod)

    texts: Any = _CONSTANT(of_tensor)

    def make(*given: Any, **options: Any) -> GraphMod:
        source = given[0] if given else options.pop(first)
        tensor = torch.as_tensor(source)
        shape = tuple(tensor.shape) if is_sized else (1,) * tensor.dim()
        names, text = texts(tensor.dtype, shape, *given[1:], **options).split("\n")
        is_here = isinstance(source, torch.Tensor)

        def function(*at: Any) -> torch.Tensor:
            return _value(at, [tensor if is_here else tensor.to(_device(at))], names, text)

        return GraphMod(function)

    return make


_PREFIX_OF_NUMBER, _PREFIX_OF_TENSOR = _of_numbers(masks.prefix_lm), _of_tensor(masks.prefix_lm)


def _prefix_lm(prefix_length: Any, *given: Any, **options: Any) -> Any:
    if isinstance(prefix_length, int):
        return _PREFIX_OF_NUMBER(prefix_length, *given, **options)
    return _PREFIX_OF_TENSOR(prefix_length, *given, **options)


def _documents(offsets: Any, *, name: str = "document") -> GraphMod:
    if isinstance(offsets, torch.Tensor):
        # NOTE: of an exception of our own the compiler would show another message.
        limit = "are not made in a compiled region: how many rows they have is not known there"
        raise TypeError(f"documents of a tensor {limit}; make the mask outside it")
    edges = [int(edge) for edge in offsets]
    lengths = torch.tensor(edges).diff()
    bounds = [
        torch.tensor(part, dtype=torch.int32).repeat_interleave(lengths, output_size=edges[-1])
        for part in (edges[:-1], edges[1:])
    ]
    names, text = f"{name}_first,{name}_end", _text_of_documents(name)
    return GraphMod(lambda *at: _value(at, [x.to(_device(at)) for x in bounds], names, text))


@_CONSTANT  # type: ignore[untyped-decorator]
def _text_of_documents(name: str) -> str:
    return str(masks.documents([0, 1], name=name))


_OF_NUMBERS = (
    *(masks.causal, masks.sliding_window, masks.sink_tokens, masks.chunked, masks.dilated),
    *(masks.dilated_blocks, scores.soft_cap),
)
_OF_TENSORS = (
    *(masks.key_padding, masks.document, masks.dense),
    *(scores.alibi, scores.relative_bias, scores.temperature, scores.additive),
)


def _register() -> None:
    """Let functions stand in graphs, and expressions be constants of them."""
    constant: Any = torch.utils._pytree.register_constant
    constant(Node)
    own: dict[Function, Function] = {
        mods.applied: _applied,
        mods.both: _both,
        mods.either: _either,
        mods.complement: _complement,
        mods.chained: _chained,
        masks.and_masks: _all_of,
        masks.or_masks: _any_of,
        masks.not_mask: _complement,
        masks.documents: _documents,
        masks.prefix_lm: _prefix_lm,
        **{factory: _of_numbers(factory) for factory in _OF_NUMBERS},
        **{factory: _of_tensor(factory) for factory in _OF_TENSORS},
    }
    for function, substitute in own.items():
        stand_in_graphs(function, substitute)
    skip_outside_graphs(Mod.__init__)


_register()
