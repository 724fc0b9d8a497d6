"""Substitution of parts of an expression; constants that come in are folded."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fmhagen.expr import build
from fmhagen.expr.exact import exactly
from fmhagen.expr.nodes import Node, Parameter, walk

_MAKERS: dict[str, Callable[..., Node]] = {
    "add": build.add,
    "sub": build.sub,
    "mul": build.mul,
    "div": build.div,
    "quotient": lambda a, b: exactly(build.div(a, b)),
    "root": lambda a: exactly(build.unary("sqrt", a)),
    "floor_div": build.floor_div,
    "floor_mod": build.floor_mod,
    "neg": build.neg,
    "abs": build.absolute,
    "min": build.minimum,
    "max": build.maximum,
    "and": build.and_,
    "or": build.or_,
    "xor": build.xor,
    "not": build.not_,
    "shl": build.shl,
    "shr": build.shr,
    "lt": build.lt,
    "le": build.le,
    "eq": build.eq,
    "ne": build.ne,
    "where": build.where,
}


def rebuilt(node: Node, args: tuple[Node, ...]) -> Node:
    """Return the operation of a node on other operands."""
    if node.op in _MAKERS:
        return _MAKERS[node.op](*args)
    if node.op == "cast":
        return build.cast(args[0], node.type)
    if node.op == "load":
        return build.load(node.value, *args)
    return build.unary(node.op, args[0])


def substitute(root: Node, replacements: dict[Node, Node]) -> Node:
    """Return an expression with some of its nodes replaced by others of their types."""
    done = dict(replacements)
    for node in walk(root):
        if node not in done:
            args = tuple(done[arg] for arg in node.args)
            done[node] = node if args == node.args else rebuilt(node, args)
    return done[root]


def with_parameters(root: Node, replacements: Mapping[Parameter, Parameter]) -> Node:
    """Return an expression that reads some parameters under other declarations."""
    others = {
        node: build.param(replacements[node.value])
        for node in walk(root)
        if node.op == "param" and node.value in replacements
    }
    for node in walk(root):
        if node.op == "load" and node.value in replacements:
            args = (substitute(arg, others) for arg in node.args)
            others[node] = build.load(replacements[node.value], *args)
    return substitute(root, others)
