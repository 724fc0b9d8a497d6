"""The score function for two keys at once, in packed arithmetic where a chip has it.

A lane of gfx942 adds and multiplies two fp32 numbers in one instruction. So what a score function
does is printed for a pair of neighbouring keys: sums and products on pairs, everything else on one
number after the other. What is the same for all keys stays a single number, a whole number that
grows with the key is converted once a unit of keys, constant factors go together, and one at the
end is left to the exponential.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fmhagen.expr.cxx import text_of, wrapped
from fmhagen.expr.cxx_place import place_names
from fmhagen.expr.linear import linear
from fmhagen.expr.naming import names_of
from fmhagen.expr.nodes import Node, Type, walk
from fmhagen.lowering.score_split import Statement, split_score
from fmhagen.lowering.slot_score import RAISE_CLK, VECTOR_CLK, one_clk
from fmhagen.score_pair import Position, ScorePair

_SUM, _PRODUCT, _WHOLE = 12, 13, 20  # how tightly a text binds
_LOG2_E = 1.4426950408889634
_PACKED = ("add", "sub", "mul", "neg")
# Functions of a pair: by what their operand is multiplied before, and what they cost then.
_OF_PAIRS = {
    "exp": ("exp2_pair", _LOG2_E, 2 * RAISE_CLK),
    "exp2": ("exp2_pair", 1.0, 2 * RAISE_CLK),
}
_WORDS = ("raw", "score", "kv_idx", "q_idx", "params", "place", "key", "row", "keys")

Text = tuple[str, int]


def make_score_pair(score: Node, mask: Node | None) -> ScorePair:
    """Print a score function for a pair of keys.

    Args:
        score: the score function.
        mask: the mask, which shares the place of a tile of work with it.
    """
    factor, inner = _without_factor(score)
    members = place_names(*(node for node in (mask, score) if node is not None))
    printer = _Printer(root=inner, members=members)
    result = printer.pair(inner)[0]
    if not _is_paired(inner):
        result = f"f32x2{{{result}, {result}}}"
    positions = tuple(
        Position(
            name=f"position_{i}",
            lines=tuple(wrapped(f"    const f32 first_{i} = {text};", " " * 8)),
            first=f"first_{i}",
            slope=slope,
        )
        for i, (text, slope) in enumerate(printer.positions)
    )
    return ScorePair(
        factor=factor,
        positions=positions,
        parts=split_score(tuple(printer.lines), (result, printer.clk), positions),
    )


def _without_factor(score: Node) -> tuple[float, Node]:
    """Split off the constant factors above 0 that a score ends with."""
    factor, inner = 1.0, score
    while inner.op == "mul":
        constants = [arg for arg in inner.args if arg.is_const and 1e-6 < arg.value < 1e6]
        if not constants:
            break
        factor *= constants[0].value
        inner = inner.args[1] if inner.args[0] is constants[0] else inner.args[0]
    return factor, inner


def _is_paired(node: Node) -> bool:
    """Return whether an expression differs from key to key."""
    return node.reads("score", "kv_idx")


def _is_score(node: Node) -> bool:
    return node.op == "leaf" and node.value == "score"


def _is_packed(node: Node) -> bool:
    """Return whether an expression is arithmetic of pairs; some divisions are products."""
    return node.type == Type.F32 and (
        node.op in _PACKED or (node.op == "div" and not _is_paired(node.args[1]))
    )


def _numbers_of(node: Node) -> Iterator[Node]:
    """Yield the fp32 pairs that an expression takes apart: its operands, below whole numbers."""
    for arg in node.args:
        if not _is_paired(arg):
            continue
        if arg.type == Type.F32:
            yield arg
        else:
            yield from _numbers_of(arg)


def _position(node: Node) -> int | None:
    """Return by how much a converted whole number grows with the key, or None if unevenly."""
    if node.op != "cast" or node.type != Type.F32 or node.args[0].type != Type.I32:
        return None
    form = linear(node.args[0])
    slopes = [count for term, count in form.terms.items() if _is_paired(term)]
    is_even = all(term.op == "leaf" or not _is_paired(term) for term in form.terms)
    return slopes[0] if len(slopes) == 1 and is_even and abs(slopes[0]) < 2**16 else None


@dataclass(slots=True, kw_only=True)
class _Printer:
    root: Node
    members: dict[Node, str]
    lines: list[Statement] = field(default_factory=list)
    positions: list[tuple[str, str]] = field(default_factory=list)
    clk: int = 0
    pairs: dict[Node, str] = field(default_factory=dict)
    singles: tuple[dict[Node, str], dict[Node, str]] = ({}, {})

    def __post_init__(self) -> None:
        """Print a statement for what is used twice, taken apart or not packed, operands first."""
        nodes = [node for node in walk(self.root) if _is_paired(node)]
        self._define_loads()
        self.singles = (dict(self.members), dict(self.members))
        for node in nodes:
            if node.op == "leaf" and node.value == "kv_idx":
                self.singles[0][node], self.singles[1][node] = "kv_idx", "(kv_idx + 1)"
        named = self._named(nodes)
        taken = {*_WORDS, *self.members.values()}
        names = names_of(tuple(node for node in nodes if node in named), taken)
        for node in nodes:
            if node in named:
                self._define(node, "score" if _is_score(node) else names[node])

    def _define_loads(self) -> None:
        """Read what is the same for all keys of a row, ahead of what may be left out."""
        loads = tuple(
            node
            for node in walk(self.root)
            if node.op == "load" and not _is_paired(node) and node not in self.members
        )
        self.members = dict(self.members)
        for node, name in names_of(loads, _WORDS).items():
            self._state(str(node.type), name, text_of(node, self.members)[0])
            self.members[node] = name

    def _named(self, nodes: list[Node]) -> set[Node]:
        uses: dict[Node, int] = {}
        apart: set[Node] = set()
        for node in nodes:
            for arg in node.args:
                uses[arg] = uses.get(arg, 0) + 1
            if node.type != Type.F32 or not (_is_packed(node) or node.op in (*_OF_PAIRS, "tanh")):
                apart |= set(_numbers_of(node))
        return {
            node
            for node in nodes
            if node.op == "load"
            or node in apart
            or (
                node.type == Type.F32
                and node is not self.root
                and not _is_score(node)
                and _position(node) is None
                and (uses.get(node, 0) > 1 or not _is_packed(node))
            )
        }

    def pair(self, node: Node) -> Text:
        """Return an fp32 expression for both keys, or a single number if it is the same."""
        if node in self.pairs:
            return self.pairs[node], _WHOLE
        if not _is_paired(node):
            text, level = text_of(node, self.members)
            return (text if level > _PRODUCT else f"({text})"), _WHOLE
        if _is_score(node) or node.op in ("mul", "div"):
            return (
                self._product(node, 1.0)
                if _is_packed(node) or _is_score(node)
                else self._apart(node)
            )
        if node.op in ("add", "sub"):
            left, right = (self.pair(arg) for arg in node.args)
            # NOTE: a sum with a product is one instruction.
            products = [arg for arg in node.args if arg not in self.pairs and _is_product(arg)]
            self.clk += 0 if products else VECTOR_CLK
            if node.op == "add":
                return f"{left[0]} + {right[0]}", _SUM
            return f"{left[0]} - {_whole(right)}", _SUM
        if node.op == "neg":
            return f"-{_whole(self.pair(node.args[0]))}", _PRODUCT
        position = _position(node)
        if position is not None:
            return self._at_position(node, position)
        if node.op == "tanh":  # 1 - 2 / (1 + e^2x)
            name = f"inverse_{len(self.lines)}"
            power = self._product(node.args[0], 2 * _LOG2_E)[0]
            self.clk += 2 * RAISE_CLK
            self._state("f32x2", f"power_{len(self.lines)}", f"exp2_pair({power})")
            self.clk += VECTOR_CLK + 2 * RAISE_CLK
            self._state("f32x2", name, f"reciprocal_pair({self.lines[-1].name} + 1.0f)")
            self.clk += VECTOR_CLK
            return f"1.0f - 2.0f * {name}", _SUM
        if node.op in _OF_PAIRS:
            call, factor, clk = _OF_PAIRS[node.op]
            operand = self._product(node.args[0], factor)[0]
            self.clk += clk
            return f"{call}({operand})", _WHOLE
        return self._apart(node)

    def _product(self, node: Node, factor: float) -> Text:
        """Return factor * node; the factors that are the same for all keys go together."""
        others: list[str] = []
        while node not in self.pairs:
            if _is_score(node):
                return self._times(("raw", _WHOLE), ["visible.scale", *others], factor)
            if node.op == "div" and node.args[1].is_const and node.args[1].value:
                factor /= node.args[1].value
                node = node.args[0]
            elif node.op == "div" and not _is_paired(node.args[1]):
                others.append(f"reciprocal_approx({self.pair(node.args[1])[0]})")
                node = node.args[0]
            elif node.op == "mul" and not all(map(_is_paired, node.args)):
                same = node.args[1] if _is_paired(node.args[0]) else node.args[0]
                if same.is_const:
                    factor *= same.value
                else:
                    others.append(self.pair(same)[0])
                node = node.args[1] if node.args[0] is same else node.args[0]
            elif node.op == "mul":
                left, right = (self.pair(arg) for arg in node.args)
                self.clk += VECTOR_CLK
                return self._times(
                    (f"{_factor(left)} * {_factor(right)}", _PRODUCT), others, factor
                )
            else:
                break
        slope = _position(node)
        if slope is not None and node not in self.pairs and (others or factor != 1.0):
            return self._at_position(node, slope, _together(others, factor))
        return self._times(self.pair(node), others, factor)

    def _times(self, pair: Text, others: list[str], factor: float) -> Text:
        together = _together(others, factor)
        if not together:
            return pair
        self.clk += VECTOR_CLK
        return f"{_factor(pair)} * {together}", _PRODUCT

    def _at_position(self, node: Node, slope: int, factor: str = "") -> Text:
        at_key = f"static_cast<f32>({text_of(node.args[0], self.members)[0]})"
        step = f"{float(slope)!r}f"
        position = (at_key, step)
        if factor:
            position = (f"{factor} * {at_key}", factor if slope == 1 else f"{factor} * {step}")
        if position not in self.positions:
            self.positions.append(position)
            self.clk += VECTOR_CLK  # for the next pair
        return f"keys.position_{self.positions.index(position)}[row]", _WHOLE

    def _define(self, node: Node, name: str) -> None:
        if node.type != Type.F32:
            for i, text in enumerate(self._texts(node)):
                self._state(str(node.type), f"{name}_{i}", text)
                self.singles[i][node] = f"{name}_{i}"
            return
        self._state("f32x2", name, self.pair(node)[0])
        self.pairs[node] = name
        for i, names in enumerate(self.singles):
            names[node] = f"{name}[{i}]"

    def _state(self, ctype: str, name: str, text: str) -> None:
        """Print a statement; what was counted since the last one is its work."""
        self.lines.append(Statement(ctype=ctype, name=name, text=text, clk=self.clk))
        self.clk = 0

    def _apart(self, node: Node) -> Text:
        """Return an fp32 expression that is computed for one key after the other."""
        return f"f32x2{{{', '.join(self._texts(node))}}}", _WHOLE

    def _texts(self, node: Node) -> list[str]:
        found: set[Node] = set()
        stack = [node]
        while stack:
            below = stack.pop()
            if (
                below not in found
                and _is_paired(below)
                and (below is node or below not in self.singles[0])
            ):
                found.add(below)
                stack.extend(below.args)
        self.clk += 2 * sum(one_clk(below.op) for below in found if below.args)
        return [text_of(node, self._clamped(node, names))[0] for names in self.singles]

    def _clamped(self, node: Node, names: dict[Node, str]) -> dict[Node, str]:
        """Return the names for an expression; a key that indexes a tensor is at most the last."""
        if node.op != "load":
            return names
        changed = {
            arg: f"minimum_i32({names[arg]}, place.seqlen_k - 1)"
            for arg in node.args
            if arg.op == "leaf" and arg.value == "kv_idx"
        }
        return {**names, **changed}


def _together(others: list[str], factor: float) -> str:
    """Return a product of numbers as one factor, or "" for 1."""
    factors = others + ([f"{factor!r}f"] if factor != 1.0 else [])
    return factors[0] if len(factors) == 1 else f"({' * '.join(factors)})" if factors else ""


def _is_product(node: Node) -> bool:
    return _is_score(node) or node.op in ("mul", "div")


def _factor(text: Text) -> str:
    return text[0] if text[1] >= _PRODUCT else f"({text[0]})"


def _whole(text: Text) -> str:
    return text[0] if text[1] >= _WHOLE else f"({text[0]})"
