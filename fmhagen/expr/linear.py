"""Linear form of an int expression: a whole number times each of its terms, plus a number."""

from __future__ import annotations

from dataclasses import dataclass, field

from fmhagen.expr import build
from fmhagen.expr.nodes import Node, Type
from fmhagen.expr.ranges import range_of


@dataclass(frozen=True, slots=True)
class Linear:
    """sum of factor * term, plus a constant; terms are what linear algebra cannot open."""

    terms: dict[Node, int] = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Return self + factor * other."""
        terms = dict(self.terms)
        for term, count in other.terms.items():
            total = terms.get(term, 0) + factor * count
            if total:
                terms[term] = total
            else:
                terms.pop(term, None)
        return Linear(terms, self.constant + factor * other.constant)

    def times(self, factor: int) -> Linear:
        """Return factor * self."""
        return Linear().plus(self, factor)

    def without(self, term: Node) -> Linear:
        """Return the form less one term."""
        return Linear({t: c for t, c in self.terms.items() if t is not term}, self.constant)

    def node(self) -> Node:
        """Return the form as an expression, what is added before what is taken away."""
        total: Node | None = None
        for term, count in sorted(self.terms.items(), key=lambda item: item[1] < 0):
            part = build.mul(term, build.const(abs(count)))
            if total is None:
                total = part if count > 0 else build.neg(part)
            else:
                total = build.add(total, part) if count > 0 else build.sub(total, part)
        if total is None:
            return build.const(self.constant)
        if self.constant > 0 and total.op == "neg":
            return build.sub(build.const(self.constant), total.args[0])
        return build.add(total, build.const(self.constant))

    def is_at_least_zero(self) -> bool:
        """Return whether it is known to be 0 or more."""
        return _lowest(self) >= 0 or _lowest(_rounded(self)) >= 0


def linear(node: Node) -> Linear:
    """Return the linear form of an int expression."""
    if node.op == "const":
        return Linear({}, int(node.value))
    args = node.args
    match node.op:
        case "add":
            return linear(args[0]).plus(linear(args[1]))
        case "sub":
            return linear(args[0]).plus(linear(args[1]), -1)
        case "neg":
            return linear(args[0]).times(-1)
        case "mul" if args[0].is_const:
            return linear(args[1]).times(int(args[0].value))
        case "mul" if args[1].is_const:
            return linear(args[0]).times(int(args[1].value))
        case "shl" if args[1].is_const:
            return linear(args[0]).times(1 << int(args[1].value))
    return Linear({node: 1})


def _lowest(form: Linear) -> float:
    total = float(form.constant)
    for term, count in form.terms.items():
        low, high = range_of(term)
        total += count * (low if count > 0 else high)
    return total


def _rounded(form: Linear) -> Linear:
    """Write c * C * (x // C) as c * x - c * (x % C), which may cancel the x beside it."""
    result = Linear({}, form.constant)
    for term, count in form.terms.items():
        divisor = term.args[1] if term.op == "floor_div" else None
        if divisor is not None and divisor.is_const and count % int(divisor.value) == 0:
            times = count // int(divisor.value)
            result = result.plus(linear(term.args[0]), times)
            rest = build.floor_mod(term.args[0], divisor)
            result = result.plus(Linear({rest: 1}), -times)
        else:
            result = result.plus(Linear({term: count}))
    return result


def never_less(a: Node, b: Node) -> bool:
    """Return whether a >= b is known for int expressions."""
    if a.type != Type.I32 or b.type != Type.I32:
        return False
    return linear(a).plus(linear(b), -1).is_at_least_zero()
