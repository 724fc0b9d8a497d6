"""Vector work of a slot table: the score function of the next unit, before its row maximum."""

from __future__ import annotations

from fmhagen.language import Language
from fmhagen.lowering.slot_draft import Shape
from fmhagen.slots import Atom

VECTOR_CLK = 4  # a vector instruction of 64 lanes, also a packed one
RAISE_CLK = 16  # v_exp_f32 and its kin, at a quarter of the rate

# Clocks of the vector port for one score, where an operation is more than one vector instruction.
_CLK = {
    "exp2": RAISE_CLK,
    "log2": RAISE_CLK,
    "sqrt": RAISE_CLK,
    "exp": RAISE_CLK + VECTOR_CLK,
    "log": RAISE_CLK + VECTOR_CLK,
    "div": RAISE_CLK + VECTOR_CLK,
    "rsqrt": 2 * RAISE_CLK,
    "sigmoid": 2 * RAISE_CLK + 2 * VECTOR_CLK,
    "tanh": 2 * RAISE_CLK + 3 * VECTOR_CLK,
    "where": 2 * VECTOR_CLK,
    "load": 4 * VECTOR_CLK,
    "floor_div": 10 * VECTOR_CLK,
    "floor_mod": 12 * VECTOR_CLK,
}


def modify_clk(language: Language) -> int:
    """Return the clocks of the vector port that the score function takes for one score."""
    if language.score is None:
        return 0
    work = sum(count * _CLK.get(op, VECTOR_CLK) for op, count in language.score_ops)
    return VECTOR_CLK + work  # the scale comes first


def modify_atoms(shape: Shape, pair: int, latest: int) -> list[Atom]:
    """Return the atoms of two scores: one if they fit a slot, else two."""
    block, element = divmod(2 * pair, shape.form.rows**2 // 64)
    eight = pair // 4
    row = eight % shape.form.lane_rows
    key = eight // shape.form.lane_rows * shape.form.span + pair % 4 * 2
    count = 2 if 2 * shape.modify_clk <= shape.form.slot_clk else 1
    return [
        Atom(
            call="modify",
            arguments=(
                *(f"s_next[{block}]", str(element + i), str(count)),
                *("params", "visible", str(row), f"kv_idx + {key + i}"),
            ),
            clk=count * shape.modify_clk,
            latest=latest,
        )
        for i in range(0, 2, count)
    ]
