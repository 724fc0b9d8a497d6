"""Rules for the main loops in which every wave loads and computes."""

from __future__ import annotations

from fmhagen.choice import Choice, fits
from fmhagen.schedule import MainLoop, Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target


def choose_wave_pipelined(spec: AttentionSpec, target: Target) -> Choice:
    """Return the schedule of a spec that a target supports, with the reasons."""

    def schedule(loop: MainLoop, waves: int, tile_n: int, prefetch: int = 0) -> Schedule:
        return Schedule(
            main_loop=loop, tile_m=32 * waves, tile_n=tile_n, consumers=waves, prefetch=prefetch
        )

    is_narrow = max(spec.d, spec.dv) <= 64
    tile_n = 128 if is_narrow else 64
    pipelined = MainLoop.WAVE_PIPELINED
    wished = [schedule(pipelined, 8, tile_n, prefetch) for prefetch in (7, 5, 3)]
    wished.append(schedule(pipelined, 4, 64, 7))
    best = next(wish for wish in wished if fits(spec, wish, target))
    waves = best.consumers
    others = (
        (schedule(pipelined, 4, 64, 7), "blocks of four waves read K and V from L2 twice as often"),
        (
            schedule(MainLoop.WAVE_INTERLEAVED, 8, 128 if is_narrow else 64),
            "the softmax stands between the products: two thirds of the matrix rate",
        ),
        (
            schedule(MainLoop.WAVE_INTERLEAVED, 4, 64),
            "one wave a SIMD leaves the matrix cores idle during softmax",
        ),
    )
    width = "two waves a SIMD fill one another's gaps" if waves == 8 else "a SIMD's registers"
    why_waves = {
        8: f"eight waves of 32 queries: {width}",
        4: f"four waves of 32 queries: O, Q and S of one wave take more than half of {width}",
    }
    return Choice(
        schedule=best,
        reasons=(
            why_waves[waves],
            f"tile_n {tile_n}: the softmax of {tile_n // 2} keys stands between the matrix"
            " instructions of the next",
            f"prefetch {best.prefetch}: operands are on their way from LDS for"
            f" {2 * best.prefetch} matrix instructions",
        ),
        rejected=tuple(
            (other, why) for other, why in others if other != best and fits(spec, other, target)
        ),
    )
