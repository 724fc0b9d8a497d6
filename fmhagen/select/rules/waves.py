"""Rules for the main loops in which every wave loads and computes."""

from __future__ import annotations

from fmhagen.expr.bands import bounds_of
from fmhagen.formula import mask_of, score_of
from fmhagen.schedule import MainLoop, Matrix, Schedule
from fmhagen.select.choice import Choice, first_fitting, fits, is_crowded
from fmhagen.spec import AttentionSpec, CacheScale
from fmhagen.targets import Target

_PIPELINED, _GROUPS = MainLoop.WAVE_PIPELINED, MainLoop.WAVE_PING_PONG
_PREFETCHES = (7, 5, 4, 3, 2)
_TOO_LONG = "the score function of 32 keys is longer than their P V hides"


def choose_wave_pipelined(spec: AttentionSpec, target: Target) -> Choice:
    """Return the schedule of a spec that a target supports, with the reasons.

    Raises:
        UnsupportedSpecError: no schedule fits.
    """
    is_narrow = max(spec.d, spec.dv) <= 64
    # NOTE: nobody knows what registers a user's function takes, so some are left to it.
    is_known = spec.score_mod is None
    tile_n = 128 if is_narrow and is_known else 64
    prefetches: tuple[int, ...] = (7, 5, 3) if is_known else (3,)
    if (
        spec.kv_scale == CacheScale.TOKEN
    ):  # whose factors take registers, and so does looking them up
        prefetches = (3,) if spec.page_size is not None else (5, 3)
    wished = [_schedule(_PIPELINED, 8, tile_n, prefetch) for prefetch in prefetches]
    if is_known:
        wished += [_schedule(_GROUPS, 8, tile_n, prefetch) for prefetch in _PREFETCHES]
    if is_narrow and spec.kv_scale == CacheScale.TOKEN:
        wished += [_schedule(_PIPELINED, 8, 64, prefetch) for prefetch in prefetches]
    alone = _alone_prefetch(spec)
    wished += [_schedule(_PIPELINED, 4, 64, min(prefetch, alone)) for prefetch in prefetches]
    best = first_fitting(spec, wished, target)
    shorter = best
    has_score = score_of(spec) is not None
    # NOTE: finding rows of a cache takes as long for a key in longer units.
    if is_known and tile_n == 64 and has_score and is_crowded(spec, best, target):
        wides = [_schedule(_PIPELINED, 8, 128, prefetch) for prefetch in (3, 2)]
        best = next((wish for wish in wides if fits(spec, wish, target)), best)
    others = (
        (next((wish for wish in wishes if fits(spec, wish, target)), best), why)
        for wishes, why in (((shorter,), _TOO_LONG), *_others(tile_n, is_narrow))
    )
    return Choice(
        schedule=best,
        reasons=_reasons(best, is_longer=best != shorter),
        rejected=tuple((other, why) for other, why in others if other != best),
    )


def _alone_prefetch(spec: AttentionSpec) -> int:
    """Return how far a wave that is alone on its SIMD may prefetch beside a score function.

    NOTE: a mask that is asked about each key takes registers, too; farther, clang 19 spills.
    """
    mask = mask_of(spec)
    is_asked = mask is not None and not bounds_of(mask).exact
    return 5 if is_asked and score_of(spec) is not None else _PREFETCHES[0]


def _schedule(
    loop: MainLoop, waves: int, tile_n: int, prefetch: int = 0, matrix: Matrix = Matrix.WIDE
) -> Schedule:
    return Schedule(
        main_loop=loop,
        tile_m=32 * waves,
        tile_n=tile_n,
        consumers=waves,
        prefetch=prefetch,
        matrix=matrix,
    )


def _reasons(best: Schedule, *, is_longer: bool) -> tuple[str, ...]:
    unit = best.tile_n // 2
    if best.main_loop == _GROUPS:
        waves = (
            "eight waves of 32 queries in two groups: O, Q and one unit of S fill half of a SIMD's"
            " registers, two units do not fit"
        )
        order = f"tile_n {best.tile_n}: while a group multiplies, the other is at its softmax of"
        return waves, f"{order} {unit} keys", _prefetch(best)
    waves = (
        "eight waves of 32 queries: two waves a SIMD fill one another's gaps"
        if best.consumers == 8
        else "four waves of 32 queries: O, Q and S of one wave take more than half of a SIMD's"
        " registers"
    )
    order = f"tile_n {best.tile_n}: the softmax of {unit} keys stands between the matrix"
    order += " instructions of the next"
    if is_longer:
        order += ", and the score function of the first 32 beside Q K^T of the others"
    return waves, order, _prefetch(best)


def _prefetch(best: Schedule) -> str:
    return (
        f"prefetch {best.prefetch}: operands are on their way from LDS for"
        f" {2 * best.prefetch} matrix instructions"
    )


def _others(tile_n: int, is_narrow: bool) -> tuple[tuple[tuple[Schedule, ...], str], ...]:
    """Return the alternatives, those that a chip may well prefer first; of each what fits first."""

    def eight(loop: MainLoop, matrix: Matrix) -> tuple[Schedule, ...]:
        return tuple(_schedule(loop, 8, tile_n, prefetch, matrix) for prefetch in _PREFETCHES)

    return (
        (
            eight(_GROUPS, Matrix.WIDE),
            "two groups of waves in turn: level with the best in the static model; needs two"
            " barriers a unit",
        ),
        (
            eight(_PIPELINED, Matrix.NARROW),
            "an exponential is longer than a matrix instruction of 16 clocks; less power, though",
        ),
        (
            eight(_GROUPS, Matrix.NARROW),
            "two groups of waves in turn, with matrix instructions of 16 clocks",
        ),
        (
            (_schedule(_PIPELINED, 4, 64, 7),),
            "blocks of four waves read K and V from L2 twice as often",
        ),
        (
            (_schedule(MainLoop.WAVE_INTERLEAVED, 8, 128 if is_narrow else 64),),
            "the softmax stands between the products: two thirds of the matrix rate",
        ),
        (
            (_schedule(MainLoop.WAVE_INTERLEAVED, 4, 64),),
            "one wave a SIMD leaves the matrix cores idle during softmax",
        ),
    )
