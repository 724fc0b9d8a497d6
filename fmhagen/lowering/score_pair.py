"""The score function for two keys at once, in packed arithmetic where a chip has it.

A lane of gfx942 adds and multiplies two fp32 numbers in one instruction. So what a score function
does is printed for a pair of neighbouring keys: sums and products on pairs, everything else on one
number after the other. What is the same for all keys stays a single number, a whole number that
grows with the key is converted once a unit of keys, constant factors go together, and one at the
end is left to the exponential.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fmhagen.expr.cxx import text_of, wrapped
from fmhagen.expr.cxx_place import place_names
from fmhagen.expr.naming import names_of
from fmhagen.expr.nodes import Node, Type
from fmhagen.lowering.score_fetch import fetched_nodes, make_fetches, nodes_outside
from fmhagen.lowering.score_split import Statement, split_score
from fmhagen.lowering.score_terms import (
    PRODUCT,
    SUM,
    WHOLE,
    Text,
    as_factor,
    as_whole,
    is_packed,
    is_paired,
    is_product,
    is_score,
    numbers_of,
    product_of,
    slope_of,
    without_factor,
)
from fmhagen.lowering.slot_score import RAISE_CLK, VECTOR_CLK, one_clk
from fmhagen.plan.score_pair import Fetch, Position, ScorePair

_LOG2_E = 1.4426950408889634
# Functions of a pair: by what their operand is multiplied before, and what they cost then.
_OF_PAIRS = {
    "exp": ("exp2_pair", _LOG2_E, 2 * RAISE_CLK),
    "exp2": ("exp2_pair", 1.0, 2 * RAISE_CLK),
}
_WORDS = ("raw", "score", "kv_idx", "q_idx", "params", "place", "key", "row", "keys", "at")


def make_score_pair(score: Node, mask: Node | None, *, fetches: int = 0) -> ScorePair:
    """Print a score function for a pair of keys.

    Args:
        score: the score function.
        mask: the mask, which shares the place of a tile of work with it.
        fetches: how many of the elements that it reads by the key are fetched ahead of it.
    """
    factor, inner = without_factor(score)
    members = place_names(*(node for node in (mask, score) if node is not None))
    nodes = fetched_nodes(inner)[:fetches]
    fetched = make_fetches(nodes, members, {*_WORDS, *members.values()})
    printer = _Printer(root=inner, members=members, fetched=fetched)
    result = printer.pair(inner)[0]
    if not is_paired(inner):
        result = f"f32x2{{{result}, {result}}}"
        printer.clk += VECTOR_CLK
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
        fetches=tuple(fetched.values()),
    )


@dataclass(slots=True, kw_only=True)
class _Printer:
    root: Node
    members: dict[Node, str]
    fetched: dict[Node, Fetch]
    lines: list[Statement] = field(default_factory=list)
    positions: list[tuple[str, str]] = field(default_factory=list)
    clk: int = 0
    pairs: dict[Node, str] = field(default_factory=dict)
    singles: tuple[dict[Node, str], dict[Node, str]] = ({}, {})

    def __post_init__(self) -> None:
        """Print a statement for what is used twice, taken apart or not packed, operands first."""
        reached = nodes_outside(self.root, self.fetched)
        nodes = [node for node in reached if is_paired(node) and node not in self.fetched]
        self._define_loads(reached)
        self.singles = (dict(self.members), dict(self.members))
        for node, fetch in self.fetched.items():
            self.singles[0][node], self.singles[1][node] = fetch.texts
            self.clk += 0 if fetch.use == "{}" else 2 * VECTOR_CLK
            if node.type == Type.F32:
                self.pairs[node] = f"f32x2{{{', '.join(fetch.texts)}}}"
        for node in nodes:
            if node.op == "leaf" and node.value == "kv_idx":
                self.singles[0][node], self.singles[1][node] = "kv_idx", "(kv_idx + 1)"
        named = self._named(nodes)
        taken = {*_WORDS, *self.members.values()}
        names = names_of(tuple(node for node in nodes if node in named), taken)
        for node in nodes:
            if node in named:
                self._define(node, "score" if is_score(node) else names[node])

    def _define_loads(self, reached: tuple[Node, ...]) -> None:
        """Read what is the same for all keys of a row, ahead of what may be left out."""
        loads = tuple(
            node
            for node in reached
            if node.op == "load" and not is_paired(node) and node not in self.members
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
            if node.type != Type.F32 or not (is_packed(node) or node.op in (*_OF_PAIRS, "tanh")):
                apart |= {number for number in numbers_of(node) if number in nodes}
        return {
            node
            for node in nodes
            if node.op == "load"
            or node in apart
            or (
                node.type == Type.F32
                and node is not self.root
                and not is_score(node)
                and slope_of(node) is None
                and (uses.get(node, 0) > 1 or not is_packed(node))
            )
        }

    def pair(self, node: Node) -> Text:
        """Return an fp32 expression for both keys, or a single number if it is the same."""
        if node in self.pairs:
            return self.pairs[node], WHOLE
        if not is_paired(node):
            text, level = text_of(node, self.members)
            return (text if level > PRODUCT else f"({text})"), WHOLE
        if is_score(node) or node.op in ("mul", "div"):
            return (
                self._product(node, 1.0) if is_packed(node) or is_score(node) else self._apart(node)
            )
        if node.op in ("add", "sub"):
            left, right = (self.pair(arg) for arg in node.args)
            # NOTE: a sum with a product is one instruction.
            products = [arg for arg in node.args if arg not in self.pairs and is_product(arg)]
            self.clk += 0 if products else VECTOR_CLK
            if node.op == "add":
                return f"{left[0]} + {right[0]}", SUM
            return f"{left[0]} - {as_whole(right)}", SUM
        if node.op == "neg":
            return f"-{as_whole(self.pair(node.args[0]))}", PRODUCT
        position = slope_of(node)
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
            return f"1.0f - 2.0f * {name}", SUM
        if node.op in _OF_PAIRS:
            call, factor, clk = _OF_PAIRS[node.op]
            operand = self._product(node.args[0], factor)[0]
            self.clk += clk
            return f"{call}({operand})", WHOLE
        return self._apart(node)

    def _product(self, node: Node, factor: float) -> Text:
        """Return factor * node; the factors that are the same for all keys go together."""
        others: list[str] = []
        while node not in self.pairs:
            if is_score(node):
                return self._times(("raw", WHOLE), ["visible.scale", *others], factor)
            if node.op == "div" and node.args[1].is_const and node.args[1].value:
                factor /= node.args[1].value
                node = node.args[0]
            elif node.op == "div" and not is_paired(node.args[1]):
                others.append(f"reciprocal_approx({self.pair(node.args[1])[0]})")
                node = node.args[0]
            elif node.op == "mul" and not all(map(is_paired, node.args)):
                same = node.args[1] if is_paired(node.args[0]) else node.args[0]
                if same.is_const:
                    factor *= same.value
                else:
                    others.append(self.pair(same)[0])
                node = node.args[1] if node.args[0] is same else node.args[0]
            elif node.op == "mul":
                left, right = (self.pair(arg) for arg in node.args)
                self.clk += VECTOR_CLK
                return self._times(
                    (f"{as_factor(left)} * {as_factor(right)}", PRODUCT), others, factor
                )
            else:
                break
        slope = slope_of(node)
        if slope is not None and node not in self.pairs and (others or factor != 1.0):
            return self._at_position(node, slope, product_of(others, factor))
        return self._times(self.pair(node), others, factor)

    def _times(self, pair: Text, others: list[str], factor: float) -> Text:
        together = product_of(others, factor)
        if not together:
            return pair
        self.clk += VECTOR_CLK
        return f"{as_factor(pair)} * {together}", PRODUCT

    def _at_position(self, node: Node, slope: int, factor: str = "") -> Text:
        at_key = f"static_cast<f32>({text_of(node.args[0], self.members)[0]})"
        step = f"{float(slope)!r}f"
        position = (at_key, step)
        if factor:
            position = (f"{factor} * {at_key}", factor if slope == 1 else f"{factor} * {step}")
        if position not in self.positions:
            self.positions.append(position)
            self.clk += VECTOR_CLK  # for the next pair
        return f"keys.position_{self.positions.index(position)}[row]", WHOLE

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
        return f"f32x2{{{', '.join(self._texts(node))}}}", WHOLE

    def _texts(self, node: Node) -> list[str]:
        found: set[Node] = set()
        stack = [node]
        while stack:
            below = stack.pop()
            if (
                below not in found
                and is_paired(below)
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
