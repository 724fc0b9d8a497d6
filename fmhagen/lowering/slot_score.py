"""Vector work of a slot table: the score function of the next unit, before its row maximum."""

from __future__ import annotations

from fmhagen.lowering.slot_draft import VECTOR_CLK as VECTOR_CLK
from fmhagen.lowering.slot_draft import Draft, Shape
from fmhagen.plan.slots import Atom

RAISE_CLK = 16  # v_exp_f32 and its kin, at a quarter of the rate
MATRIX_LATENCY_CLK = 2 * 32  # from the last matrix instruction of S to the first use of S

# Clocks of the vector port for one score, where an operation is more than one vector instruction.
_CLK = {
    "exp2": RAISE_CLK,
    "log2": RAISE_CLK,
    "sqrt": RAISE_CLK,
    "exp": RAISE_CLK + VECTOR_CLK,
    "log": RAISE_CLK + VECTOR_CLK,
    "div": RAISE_CLK + VECTOR_CLK,
    "quotient": RAISE_CLK + 10 * VECTOR_CLK,
    "root": RAISE_CLK + 10 * VECTOR_CLK,
    "rsqrt": 2 * RAISE_CLK,
    "sigmoid": 2 * RAISE_CLK + 2 * VECTOR_CLK,
    "tanh": 2 * RAISE_CLK + 3 * VECTOR_CLK,
    "where": 2 * VECTOR_CLK,
    "load": 4 * VECTOR_CLK,
    "floor_div": 10 * VECTOR_CLK,
    "floor_mod": 12 * VECTOR_CLK,
}


def one_clk(op: str) -> int:
    """Return the clocks of the vector port that an operation takes for one score."""
    return _CLK.get(op, VECTOR_CLK)


def scores_at(shape: Shape, pair: int) -> int:
    """Return the slot behind the last matrix instruction of a pair of scores of the next unit."""
    blocks = shape.unit // 32
    done = pair * blocks // (shape.unit // 4) + 1  # blocks of 32 keys
    return shape.form.uses * shape.key_fragments * done // blocks


def score_atoms(shape: Shape, latest: int) -> list[tuple[int, Atom]]:
    """Return the atoms that the score function has for the next unit, with the pair of each.

    NOTE: the parts of a pair stand apart, with parts of other pairs between them: what they give
    has a latency.
    """
    pairs = shape.unit // 4
    parts = len(shape.score_clks)
    return [
        (turn - part, _score_atom(shape, turn - part, part, latest))
        for turn in range(pairs + parts - 1)
        for part in range(parts)
        if 0 <= turn - part < pairs
    ]


def _score_atom(shape: Shape, pair: int, part: int, latest: int) -> Atom:
    block, element = divmod(2 * pair, shape.form.rows**2 // 64)
    row, key = _row_and_key(shape, pair)
    is_last = part == len(shape.score_clks) - 1
    before = (f"score_{pair}",) if part else ()
    return Atom(
        call="modify" if is_last else f"begin_score_{part}",
        arguments=(
            *(f"s_next[{block}]", str(element), "params", "visible", "keys"),
            *(row, key),
            *before,
        ),
        result="" if is_last else f"{'' if part else 'f32x2 '}score_{pair}",
        earliest=scores_at(shape, pair) + MATRIX_LATENCY_CLK // shape.form.clk,
        clk=shape.score_clks[part],
        latest=latest,
    )


def place_fetches(shape: Shape, draft: Draft, second: int) -> None:
    """Place the reads of what the score function takes by the key, at an even pace in S = Q K^T."""
    pairs = shape.unit // 4 if shape.fetched_loads else 0
    for pair in range(pairs):
        row, key = _row_and_key(shape, pair)
        clk = 2 * shape.fetched_loads * one_clk("load")
        arguments = ("keys", "params", "visible", row, key)
        atom = Atom(call="fetch", arguments=arguments, clk=clk, is_memory=True)
        draft.put(pair * second // pairs, atom)


def _row_and_key(shape: Shape, pair: int) -> tuple[str, str]:
    """Return the lane's row that a pair of scores is of, and its first key, behind the lane's."""
    eight = pair // 4
    rows = shape.form.lane_rows
    return str(eight % rows), str(eight // rows * shape.form.span + pair % 4 * 2)
