"""Mask and score functions that stand in compiled regions of PyTorch.

Dynamo traces such a function itself, as a part of the body of a higher-order operator: so its own
guards watch the constants that the function reads, and every tensor that it reads is an input of
the graph. When that graph is run, or traced further, the operator turns the body into text, calls
`fmhagen::attention` with it, and is gone: what a compiler sees is the one custom operator.

Inside the body the arguments of a function are what `fmhagen::place` gives, of one element each,
and its value is one more tensor of the attention operator, under the name of `VALUE`.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fmhagen.expr.mods import MaskMod, Mod, ScoreMod
from fmhagen.expr.nodes import Parameter
from fmhagen.expr.substitution import with_parameters
from fmhagen.frontends.graph_mods import as_tensor
from fmhagen.frontends.graph_nodes import ancestors, error_at, is_ours, number, wrapped
from fmhagen.runtime.parameters import joined_captures

try:
    from torch._higher_order_ops.base_hop import BaseHOP as _Base
except ImportError:  # of an older PyTorch: there functions end a graph
    _Base: Any = None  # type: ignore[no-redef]

VALUE = "params.value_of_"
"""Before mask_mod or score_mod: the name of what it gives, among the names of an operator."""
_KINDS: Mapping[str, type[Mod]] = {"mask_mod": MaskMod, "score_mod": ScoreMod}
_TENSORS, _NAMES = 3, 5
_TEXTS = {"mask_mod": 6, "score_mod": 7}
"""Where an attention operator has its tensors and names, and its functions as texts."""


def _place(q: torch.Tensor, name: str) -> torch.Tensor:
    raise RuntimeError(f"{name} is a value of a kernel, and stands in graphs alone")


def _fake_place(q: torch.Tensor, name: str) -> torch.Tensor:
    # NOTE: of one dimension, since PyTorch reads an index without any on the host.
    return q.new_empty((1,), dtype=torch.float32 if name == "score" else torch.int32)


def _mapped_place(info: Any, in_dims: Any, q: torch.Tensor, name: str) -> Any:
    return torch.ops.fmhagen.place(q, name), None  # the same for all slices of q


torch.library.custom_op("fmhagen::place", _place, mutates_args=()).register_fake(_fake_place)
torch.library.register_vmap("fmhagen::place", _mapped_place)


def values_of(
    q: torch.Tensor,
    mask_mod: Callable[..., Any] | None,
    score_mod: Callable[..., Any] | None,
) -> dict[str, torch.Tensor]:
    """Return what functions give for places of a kernel, by name; to be called in a body."""
    found = {}
    places = [torch.ops.fmhagen.place(q, name) for name in MaskMod.ARGUMENTS]
    if mask_mod is not None:
        found["value_of_mask_mod"] = as_tensor(mask_mod(*places))
    if score_mod is not None:
        score = torch.ops.fmhagen.place(q, "score")
        found["value_of_score_mod"] = as_tensor(score_mod(score, *places))
    return found


class _Body:
    """A body: its nodes, those that depend on a place, and the values of all others.

    NOTE: it has no __dict__, where a trace would look for tensors, and find others' names.
    """

    __slots__ = (
        *("declared", "found", "last", "mods", "module", "named", "names", "nodes"),
        *("placed", "read", "scalars"),
    )

    def __init__(self, module: Any, operands: tuple[Any, ...]) -> None:
        """Take the graph of a body, and what its placeholders are."""
        self.module = module
        self.nodes: list[Any] = list(module.graph.nodes)
        self.found: dict[Any, Any] = {}  # value by node
        self.placed: set[Any] = set()  # nodes that depend on a place
        self.read: set[Any] = set()  # nodes that depend on a placeholder
        self.scalars: set[Any] = set()  # nodes that compute with scalar tensors alone
        self.named: dict[str, Any] = {}  # tensors that functions read, by the name in the kernel
        self.names: dict[Any, str] = {}  # of these, by their nodes
        self.mods: dict[Any, Mod] = {}  # by the nodes that apply them
        self.declared: dict[Parameter, Any] = {}  # tensors that mods read
        self.last: Any = None  # node of a function that was evaluated last
        places = [node for node in self.nodes if node.op == "placeholder"]
        self.found.update(zip(places, operands, strict=True))
        self.read.update(places)

    def run(self) -> Any:
        """Return what the body gives."""
        for node in self.nodes:
            inputs = node.all_input_nodes
            if node.op == "output":
                return torch.fx.node.map_arg(node.args[0], self.found.__getitem__)
            if node.op == "placeholder":
                continue
            if any(other in self.read for other in inputs):
                self.read.add(node)
            if is_ours(node, "attention", "attention_with_lse"):
                self.found[node] = self._attention(node)
            elif is_ours(node, "place") or any(other in self.placed for other in inputs):
                self.placed.add(node)
            else:
                self.found[node] = self._evaluate(node, self.found.__getitem__)
                if node in self.read and self._is_of_scalars(node):
                    self.scalars.add(node)
        raise AssertionError("a graph has an output")

    def _is_of_scalars(self, node: Any) -> bool:
        """Return whether a trace computes a node: arithmetic on scalars stays in the kernel."""
        values = [self.found[other] for other in (node, *node.all_input_nodes)]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        is_item = node.op == "call_method" and node.target == "item"
        whole = isinstance(self.found[node], torch.Tensor) or is_item
        return whole and bool(tensors) and all(tensor.dim() == 0 for tensor in tensors)

    def _attention(self, node: Any) -> Any:
        """Call an attention operator with functions as text, and the tensors that they read."""
        arguments = list(node.args)
        tensors, names = node.args[_TENSORS], node.args[_NAMES].split(",")
        values = dict(zip(names, tensors, strict=False))
        functions = {mod: values.pop(VALUE + mod) for mod in _KINDS if VALUE + mod in values}
        self._name_tensors(self.found[node.args[0]], names)
        traced = {mod: self._traced(mod, value) for mod, value in functions.items()}
        captured = joined_captures(*(mod.bound for mod in traced.values()))
        arguments[_TENSORS] = [*values.values(), *captured.values()]
        own = [*values, *(f"params.{name}" for name in captured), *names[len(tensors) :]]
        arguments[_NAMES] = ",".join(own)
        for mod, found in traced.items():
            arguments[_TEXTS[mod]] = str(type(found)(found.node))
        return node.target(*torch.fx.node.map_arg(arguments, self.found.__getitem__))

    def _name_tensors(self, q: torch.Tensor, taken: list[str]) -> None:
        """Name what functions read by the order in which they do, so that graphs share kernels."""
        names = (f"captured_{n}" for n in itertools.count())
        free = (name for name in names if f"params.{name}" not in taken)
        for node in self.nodes:
            if node not in self.placed | self.scalars or is_ours(node, "place"):
                continue
            inputs = node.all_input_nodes
            if is_ours(node, "mod"):
                inputs = [other for other in node.args[0] if isinstance(other, torch.fx.Node)]
                self.mods[node] = self._mod(node, free)
            for other in inputs:
                value = self.found.get(other)
                is_inside = other in self.placed | self.scalars
                if is_inside or not isinstance(value, torch.Tensor):
                    continue
                if other not in self.read and not value.dim():
                    continue  # a constant
                if wrapped(node.target) is not None:
                    value = self.found[other] = value.to(q.device)  # was an array of NumPy
                known = [name for name, tensor in self.named.items() if tensor is value]
                self.names[other] = known[0] if known else next(free)
                self.named[self.names[other]] = value

    def _mod(self, node: Any, numbers: Iterator[str]) -> Mod:
        """Return the mod that a node applies, its tensors named as those of functions are."""
        places, tensors, names, text = node.args
        mod = (ScoreMod if len(places) == len(ScoreMod.ARGUMENTS) else MaskMod)(text)
        values = dict(zip(filter(None, names.split(",")), tensors, strict=True))
        others: dict[Parameter, Parameter] = {}
        for parameter in mod.parameters:
            if parameter.name not in values:
                continue  # declared, and given by the call
            value = self.found[values[parameter.name]]
            same = (p for p, known in self.declared.items() if known is value)
            own = next((p for p in same if p == replace(parameter, name=p.name)), None)
            others[parameter] = own or replace(parameter, name=next(numbers))
            self.declared[others[parameter]] = value
        bound = {other.name: self.declared[other] for other in others.values()}
        return type(mod)(with_parameters(mod.node, others), bound=bound)

    def _traced(self, mod: str, value: Any) -> Mod:
        """Return the mod of a function, of which a node is the value."""
        tensors, names = self.named, _KINDS[mod].ARGUMENTS
        self.last = value

        def function(*arguments: Any) -> Any:
            # NOTE: `tensors` is a name of the closure, where a trace finds what it calls them.
            return self._with_places(value, dict(zip(names, arguments, strict=True)), tensors)

        try:
            return _KINDS[mod](function)
        except Exception as error:
            raise error_at(self.last, error) from error

    def _with_places(
        self, value: Any, places: Mapping[str, Any], tensors: Mapping[str, Any]
    ) -> Any:
        """Return the value of a node for what the places are in a trace."""
        needed = ancestors(value)
        found: dict[Any, Any] = {}

        def lookup(node: Any) -> Any:
            if node in self.names:
                return tensors[self.names[node]]
            return found[node] if node in found else number(self.found[node])

        for node in self.nodes:
            if node not in needed:
                continue
            if is_ours(node, "place"):
                found[node] = places[node.args[1]]
            elif node in self.placed or node in self.scalars:
                self.last = node
                found[node] = self._evaluate(node, lookup)
            elif node not in self.read and node.op != "get_attr":
                # NOTE: a constant again, with a value, since a trace keeps one as a number.
                with _disable_current_modes():
                    found[node] = self._evaluate(node, lookup)
        return lookup(value)

    def _evaluate(self, node: Any, lookup: Callable[[Any], Any]) -> Any:
        if node in self.mods:
            return self.mods[node](*torch.fx.node.map_arg(node.args[0], lookup))
        args = torch.fx.node.map_arg(node.args, lookup)
        kwargs = torch.fx.node.map_arg(node.kwargs, lookup)
        if node.op == "get_attr":
            return operator.attrgetter(node.target)(self.module)
        if node.op == "call_method":
            if node.target == "item" and node in self.scalars:
                return args[0]  # NOTE: a parameter of the kernel, since the number may change
            return getattr(args[0], node.target)(*args[1:], **kwargs)
        target = node.target
        if node in self.placed:
            target = wrapped(target) or target
        return target(*args, **kwargs)


def _operator() -> Any:
    """Return the higher-order operator, or None where this PyTorch has none."""
    if _Base is None:
        return None

    # NOTE: PyTorch keeps its base class for itself, so nothing here relies on more of it than
    # that Dynamo calls it with the graph of a function and what that graph reads.
    class FunctionsInAttention(_Base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("fmhagen_attention")

        def __call__(self, subgraph: Any, *operands: Any, **_: Any) -> Any:
            return _Body(subgraph, operands).run()

    return FunctionsInAttention()


attention_body = _operator()
"""Called with a function without arguments, that calls an attention operator; None: not here."""
