"""Rules for mask and score functions in the warp-specialised loop: they make steps narrower."""

from __future__ import annotations

import dataclasses

from fmhagen.expr.bands import bounds_of
from fmhagen.expr.finite import may_hide
from fmhagen.expr.nodes import walk
from fmhagen.formula import mask_of, score_of
from fmhagen.schedule import Schedule
from fmhagen.select.choice import Choice
from fmhagen.spec import AttentionSpec

GROUP_ROWS = 64  # of a consumer warpgroup
MATRIX_K = 16  # keys of one matrix instruction of P V


def less_keys(spec: AttentionSpec, depth: int) -> int:
    """Return how many keys narrower a step is, so that the functions have the registers they take.

    The numbers are those with which no kernel spills.
    """
    mask, score = mask_of(spec), score_of(spec)
    bounds = bounds_of(mask)
    less = 16 if depth > 192 and not bounds.exact else 0
    if depth <= 64 and may_hide(score):
        less = 16  # what a row has seen takes registers that four warpgroups do not have
    if score is None or not score.reads("q_idx", "kv_idx"):
        return less
    loads = sum(n.op == "load" and n.reads("q_idx", "kv_idx") for n in walk(score))
    is_long = sum(n.op != "load" and n.reads("score", "kv_idx") for n in walk(score)) > _LONG_SCORE
    kind = 3 if loads and (is_long or loads > 1) else 2 if loads else 1 if is_long else 0
    row = _NARROWER[min(deepest for deepest in _NARROWER if depth <= deepest)]
    if spec.kv_cache and depth <= 64 and spec.window_left is not None:
        less = 16  # the four warpgroups of these depths have no register to spare
    if 128 < depth <= 192 and not bounds.right_only:
        less = 32  # what a thread's rows see takes registers, too
    return max(less, row[kind])


# Operations of a score function beyond which it takes registers of its own: soft cap and ALiBi
# together take fewer.
_LONG_SCORE = 9

# Keys less, by the deepest head, for a score function that is short, that is long, that reads an
# element for each score, and that is long and reads one or reads several.
_NARROWER = {
    64: (0, 48, 32, 48),
    96: (0, 64, 32, 80),
    128: (0, 64, 64, 96),
    192: (16, 48, 64, 80),
    256: (16, 32, 32, 32),
}


def narrowed(choice: Choice, less: int) -> Choice:
    """Return a choice whose steps are narrower."""

    def narrow(schedule: Schedule) -> Schedule:
        tile_n = max(MATRIX_K, schedule.tile_n - less)
        skip = schedule.skip_hidden and tile_n >= GROUP_ROWS
        return dataclasses.replace(schedule, tile_n=tile_n, skip_hidden=skip)

    return dataclasses.replace(
        choice,
        schedule=narrow(choice.schedule),
        reasons=(
            *choice.reasons,
            f"tile_n {less} less: the mask or score function takes registers",
        ),
        rejected=tuple((narrow(schedule), reason) for schedule, reason in choice.rejected),
    )
