"""Solving a mask for the key: a formula over bounds of kv_idx and of q_idx.

A comparison of int expressions is solved for kv_idx if kv_idx stands in one term of it: as itself,
or within //, abs, min, max and where. What cannot be solved, or is bounded by something that
falls as q_idx grows, remains as it is: the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal as Choice

from fmhagen.expr import build
from fmhagen.expr.linear import Linear, linear
from fmhagen.expr.nodes import Node, Type
from fmhagen.expr.ranges import RISES, STAYS, direction, range_of

KEY, ROW = "kv_idx", "q_idx"


class Kind(StrEnum):
    """What one literal says."""

    KEY_FROM = "kv_idx >= bound"
    KEY_BELOW = "kv_idx < bound"
    ROW_FROM = "q_idx >= bound"
    ROW_BELOW = "q_idx < bound"
    UNIFORM = "bound, which depends on neither"
    REST = "bound, which is not solved"


@dataclass(frozen=True, slots=True)
class Literal:
    """One condition: its kind, and its bound or condition."""

    kind: Kind
    bound: Node


@dataclass(frozen=True, slots=True)
class Junction:
    """All ("and") or any ("or") of some formulas."""

    op: Choice["and", "or"]
    parts: tuple[Formula, ...]


Formula = Literal | Junction


def both(*parts: Formula) -> Formula:
    """All of some formulas."""
    return Junction("and", parts)


def either(*parts: Formula) -> Formula:
    """Any of some formulas."""
    return Junction("or", parts)


def solve(mask: Node) -> Formula:
    """Return a mask as a formula."""
    args = mask.args
    match mask.op:
        case "const":
            return Junction("and" if mask.value else "or", ())
        case "and":
            return both(solve(args[0]), solve(args[1]))
        case "or":
            return either(solve(args[0]), solve(args[1]))
        case "xor":
            return either(
                both(solve(args[0]), solve(build.not_(args[1]))),
                both(solve(build.not_(args[0])), solve(args[1])),
            )
        case "where":
            return either(
                both(solve(args[0]), solve(args[1])),
                both(solve(build.not_(args[0])), solve(args[2])),
            )
        case "not" if args[0].op in ("and", "or"):
            x, y = (solve(build.not_(arg)) for arg in args[0].args)
            return either(x, y) if args[0].op == "and" else both(x, y)
        case "not" if args[0].op == "xor":
            return solve(build.xor(args[0].args[0], build.not_(args[0].args[1])))
        case "not" if args[0].op == "where":
            c, a, b = args[0].args
            return solve(build.where(c, build.not_(a), build.not_(b)))
    return _comparison(mask)


def _comparison(atom: Node) -> Formula:
    if not atom.reads(KEY, ROW):
        return Literal(Kind.UNIFORM, atom)
    leaf = KEY if atom.reads(KEY) else ROW
    solved: Formula | None = None
    if atom.op in ("lt", "le", "eq", "ne") and atom.args[0].type == Type.I32:
        difference = linear(atom.args[1]).plus(linear(atom.args[0]), -1)
        less_one = Linear({}, -1)
        match atom.op:
            case "le":
                solved = _at_least_zero(difference, leaf)
            case "lt":
                solved = _at_least_zero(difference.plus(less_one), leaf)
            case "eq":
                solved = _both_or_none(
                    _at_least_zero(difference, leaf), _at_least_zero(difference.times(-1), leaf)
                )
            case "ne":
                above = _at_least_zero(difference.plus(less_one), leaf)
                below = _at_least_zero(difference.times(-1).plus(less_one), leaf)
                solved = None if above is None or below is None else either(above, below)
    if solved is None or not _is_usable(solved):
        return Literal(Kind.REST, atom)
    return solved


def _both_or_none(a: Formula | None, b: Formula | None) -> Formula | None:
    return None if a is None or b is None else both(a, b)


def _is_usable(formula: Formula) -> bool:
    """Return whether all bounds of keys rise or stay as the row grows."""
    if isinstance(formula, Junction):
        return all(_is_usable(part) for part in formula.parts)
    return direction(formula.bound, ROW) in (STAYS, RISES)


def _at_least_zero(form: Linear, leaf: str) -> Formula | None:
    """Solve form >= 0 for a leaf; None if that cannot be done."""
    dependents = [term for term in form.terms if term.reads(leaf)]
    if not dependents:
        node = build.le(build.const(0), form.node())
        if leaf == KEY and node.reads(ROW):
            return _at_least_zero(form, ROW)
        return Literal(Kind.UNIFORM, node)
    if len(dependents) > 1:
        return None
    term = dependents[0]
    count, others = form.terms[term], form.without(term)
    if count > 0:  # term >= bound
        bound = others.times(-1) if count == 1 else _negated_quotient(others, count)
        return _term_from(term, bound, leaf)
    bound = others if count == -1 else _quotient(others, -count)
    return _term_up_to(term, bound, leaf)


def _quotient(form: Linear, divisor: int) -> Linear:
    return linear(build.floor_div(form.node(), build.const(divisor)))


def _negated_quotient(form: Linear, divisor: int) -> Linear:
    return _quotient(form, divisor).times(-1)


def _divisor(term: Node, leaf: str) -> Node | None:
    """Return the positive divisor of a term x // divisor, or None if it is no such term."""
    divisor = term.args[1]
    if term.op == "shr" and divisor.is_const:
        return build.const(1 << int(divisor.value))
    is_positive = range_of(divisor)[0] >= 1 and not divisor.reads(leaf)
    return divisor if term.op == "floor_div" and is_positive else None


def _term_from(term: Node, bound: Linear, leaf: str) -> Formula | None:
    """Solve term >= bound."""
    if term.op == "leaf":
        return Literal(Kind.KEY_FROM if leaf == KEY else Kind.ROW_FROM, bound.node())
    args = term.args
    match term.op:
        case "floor_div" | "shr" if (divisor := _divisor(term, leaf)) is not None:
            scaled = linear(build.mul(bound.node(), divisor))
            if divisor.is_const:
                scaled = bound.times(int(divisor.value))
            return _at_least_zero(linear(args[0]).plus(scaled, -1), leaf)
        case "abs":
            up = _at_least_zero(linear(args[0]).plus(bound, -1), leaf)
            down = _at_least_zero(linear(args[0]).times(-1).plus(bound, -1), leaf)
            return None if up is None or down is None else either(up, down)
        case "max" | "min":
            x, y = (_at_least_zero(linear(arg).plus(bound, -1), leaf) for arg in args)
            if x is None or y is None:
                return None
            return either(x, y) if term.op == "max" else both(x, y)
        case "where":
            return _cases(term, [linear(arg).plus(bound, -1) for arg in args[1:]], leaf)
    return None


def _term_up_to(term: Node, bound: Linear, leaf: str) -> Formula | None:
    """Solve term <= bound."""
    if term.op == "leaf":
        end = bound.plus(Linear({}, 1)).node()
        return Literal(Kind.KEY_BELOW if leaf == KEY else Kind.ROW_BELOW, end)
    args = term.args
    match term.op:
        case "floor_div" | "shr" if (divisor := _divisor(term, leaf)) is not None:
            next_one = bound.plus(Linear({}, 1))
            scaled = linear(build.mul(next_one.node(), divisor))
            if divisor.is_const:
                scaled = next_one.times(int(divisor.value))
            last = scaled.plus(Linear({}, -1))
            return _at_least_zero(last.plus(linear(args[0]), -1), leaf)
        case "abs":
            return _both_or_none(
                _at_least_zero(bound.plus(linear(args[0]), -1), leaf),
                _at_least_zero(bound.plus(linear(args[0])), leaf),
            )
        case "max" | "min":
            x, y = (_at_least_zero(bound.plus(linear(arg), -1), leaf) for arg in args)
            if x is None or y is None:
                return None
            return both(x, y) if term.op == "max" else either(x, y)
        case "where":
            return _cases(term, [bound.plus(linear(arg), -1) for arg in args[1:]], leaf)
    return None


def _cases(term: Node, forms: list[Linear], leaf: str) -> Formula | None:
    x, y = (_at_least_zero(form, leaf) for form in forms)
    if x is None or y is None:
        return None
    condition = term.args[0]
    return either(both(solve(condition), x), both(solve(build.not_(condition)), y))
