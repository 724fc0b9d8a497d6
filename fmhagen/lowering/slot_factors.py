"""Factors of keys and values in a slot table: each token of an 8-bit cache has two of its own.

A lane loads the factors of one key of a unit. Those of its scores, and of the values that it
brings to LDS, it gets from other lanes.
"""

from __future__ import annotations

from fmhagen.lowering.slot_draft import Shape
from fmhagen.lowering.slot_score import VECTOR_CLK
from fmhagen.plan.slots import Atom

SLOTS_AHEAD = 2  # that a value's factor is asked for before the product
PAIRS_AHEAD = 1  # that factors are asked for before their scores are multiplied


def value_factor(name: str) -> Atom:
    """Return how a lane gets the factor of a value that it brings to LDS: v_factor_PIECE_KEY."""
    piece, key = name.split("_")[2:]
    return Atom(
        call="factor_of",
        arguments=("w.v_scale", f"w.v_key[{piece}] + {key}"),
        result=f"const f32 {name}",
        clk=VECTOR_CLK,
        is_memory=True,
    )


def key_factors(shape: Shape, pair: int, latest: int) -> Atom:
    """Return how a lane gets the factors of the keys of two scores of the next unit."""
    eight = pair // 4
    key = eight // shape.form.lane_rows * shape.form.span + pair % 4 * 2
    return Atom(
        call="factors_at",
        arguments=("w.k_scale[0]", str(key)),
        result=f"const f32x2 k_factors_{pair}",
        clk=VECTOR_CLK,
        is_memory=True,
        latest=latest,
    )


def scaling(shape: Shape, pair: int, earliest: int, latest: int) -> Atom:
    """Return the product of two scores of the next unit and their keys' factors."""
    block, element = divmod(2 * pair, shape.form.rows**2 // 64)
    return Atom(
        call="scale_keys",
        arguments=(f"s_next[{block}]", str(element), f"k_factors_{pair}"),
        clk=VECTOR_CLK,
        earliest=earliest,
        latest=latest,
    )
