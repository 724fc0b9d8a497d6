"""Choice of a schedule: a pure function of spec and target that gives its reasons."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.errors import ScheduleError
from fmhagen.schedule import MainLoop, Rescale, Schedule, Store
from fmhagen.schedules import Row, find_row, shipped_rows
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target
from fmhagen.validate import check_support


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A schedule and why it was chosen.

    Attributes:
        schedule: the schedule to use.
        reasons: one sentence for each decision.
        rejected: (schedule, why not) for the alternatives that were weighed.
        row: the row of the shipped table that it is, or None where the rules chose.
    """

    schedule: Schedule
    reasons: tuple[str, ...]
    rejected: tuple[tuple[Schedule, str], ...]
    row: Row | None = None


def choose(
    spec: AttentionSpec,
    target: Target,
    *,
    seqlen_hint: int | None = None,
    rows: tuple[Row, ...] | None = None,
) -> Choice:
    """Return the default schedule of a spec on a target, with the reasons.

    A row of the table of measured schedules comes before the rules.

    Args:
        spec: what to compute.
        target: the chip.
        seqlen_hint: the most keys that a sequence will have, if the caller knows.
        rows: the table; None means the shipped one, () the rules alone.

    Raises:
        UnsupportedSpecError: the target does not support the spec.
    """
    by_rules = _choose_by_rules(spec, target)
    table = shipped_rows() if rows is None else rows
    row = find_row(table, spec, target.name, seqlen_hint)
    if row is None or not _fits(spec, row.schedule, target):
        return by_rules
    if row.schedule == by_rules.schedule:
        return Choice(
            schedule=row.schedule,
            reasons=(str(row), *by_rules.reasons),
            rejected=by_rules.rejected,
            row=row,
        )
    others = ((by_rules.schedule, "what the rules choose; measured slower"), *by_rules.rejected)
    return Choice(
        schedule=row.schedule,
        reasons=(str(row),),
        rejected=tuple((other, why) for other, why in others if other != row.schedule),
        row=row,
    )


def _choose_by_rules(spec: AttentionSpec, target: Target) -> Choice:
    check_support(spec, target)
    table = {
        MainLoop.WARP_SPECIALISED: _choose_warp_specialised,
        MainLoop.WAVE_PIPELINED: _choose_wave_pipelined,
    }
    return table[MainLoop(target.main_loops[0])](spec, target)


def default_schedule(
    spec: AttentionSpec, target: Target, *, seqlen_hint: int | None = None
) -> Schedule:
    """Return the schedule of `choose` alone."""
    return choose(spec, target, seqlen_hint=seqlen_hint).schedule


def candidates(spec: AttentionSpec, target: Target) -> tuple[Schedule, ...]:
    """Return every schedule that the target's lowering accepts for a spec, best first."""
    choice = choose(spec, target)
    return (choice.schedule, *(schedule for schedule, _ in choice.rejected))


def _choose_warp_specialised(spec: AttentionSpec, target: Target) -> Choice:
    depth = max(spec.d, spec.dv)
    if depth <= 64:
        return _choose_shallow()
    if depth <= 96:
        return _choose_three_groups()
    if depth <= 128:
        return _choose_square(spec)
    return _choose_deep(spec)


# (producer, consumer) registers a thread, by consumers: what the warpgroups enter with, dealt anew.
_REGISTERS = {2: (40, 232), 3: (32, 160), 4: (32, 112)}
_PING_PONG = (
    "ping-pong: a warp is held at its matrix instructions, so its softmax runs under the products"
    " of the other warpgroups"
)
_TWO_Q = "two Q buffers and a persistent grid hide the load of Q and the store of O"
_NO_MAXIMUM = "rescale on_overflow: no row maximum, a fifth fewer instructions of softmax"
_IN_STEP = "the warpgroups fall into step and wait for the tensor cores together"
_MAXIMUM = "a row maximum in every step"


def _warp_specialised(
    consumers: int,
    tile_n: int,
    *,
    stages: int = 2,
    rescale: Rescale = Rescale.ON_OVERFLOW,
    store: Store = Store.STAGED,
    q_stages: int = 0,
    ping_pong: bool = True,
) -> Schedule:
    producer, consumer = _REGISTERS[consumers]
    return Schedule(
        main_loop=MainLoop.WARP_SPECIALISED,
        tile_m=64 * consumers,
        tile_n=tile_n,
        consumers=consumers,
        stages=stages,
        q_stages=q_stages or (2 if store == Store.STAGED else 1),
        persistent=True,
        store=store,
        ping_pong=ping_pong,
        rescale=rescale,
        producer_registers=producer,
        consumer_registers=consumer,
    )


def _choose_shallow() -> Choice:
    """Depths to 64, where the softmax bounds."""
    return Choice(
        schedule=_warp_specialised(4, 64, stages=4),
        reasons=(
            "four consumer warpgroups: to head_dim 64 the softmax bounds, and more warps hide more"
            " of its latency",
            "tile_n 64 is the widest whose S, P and O fit 112 registers a thread",
            "four stages fit, since a K or V tile is 8 KiB",
            _NO_MAXIMUM,
            _PING_PONG,
            _TWO_Q,
        ),
        rejected=(
            (_warp_specialised(3, 128, stages=4), "fewer warps to hide the softmax"),
            (_warp_specialised(4, 64, stages=4, ping_pong=False), _IN_STEP),
            (_warp_specialised(4, 64, stages=4, rescale=Rescale.ON_GROWTH), _MAXIMUM),
        ),
    )


def _choose_three_groups() -> Choice:
    """Depths above 64 to 96, where three warpgroups fit."""
    return Choice(
        schedule=_warp_specialised(3, 96),
        reasons=(
            "three consumer warpgroups: O of 64 rows takes at most 48 registers a thread",
            "tile_n 96 leaves S, P and O within 160 registers a thread",
            _NO_MAXIMUM,
            _PING_PONG,
            _TWO_Q,
        ),
        rejected=((_warp_specialised(2, 128), "fewer warps to hide the softmax"),),
    )


def _choose_square(spec: AttentionSpec) -> Choice:
    """Depths above 96 to 128: square tiles of two warpgroups."""
    reasons = (
        "two consumer warpgroups of 64 rows: S (64), O (64) and P (32) fit 232 registers",
        "tile_n 128 equals tile_m, so a causal tile has at most two partly visible steps",
        _NO_MAXIMUM,
        _PING_PONG,
        _TWO_Q,
    )
    staged = _warp_specialised(2, 128)
    direct = _warp_specialised(2, 128, store=Store.DIRECT, q_stages=2)
    growth = _warp_specialised(2, 128, rescale=Rescale.ON_GROWTH)
    growth_direct = _warp_specialised(
        2, 128, rescale=Rescale.ON_GROWTH, store=Store.DIRECT, q_stages=2
    )
    if spec.causal:
        return Choice(
            schedule=direct,
            reasons=(
                *reasons,
                "O leaves from registers: a causal block has many short tiles, and a Q buffer that"
                " waits for no store is loaded sooner",
            ),
            rejected=(
                (growth_direct, _MAXIMUM),
                (staged, "the next Q waits for the store of O"),
                (growth, _MAXIMUM),
            ),
        )
    return Choice(
        schedule=staged,
        reasons=reasons,
        rejected=(
            (direct, "stores of 16 bytes a lane in place of the copy engine's"),
            (growth, _MAXIMUM),
            (_warp_specialised(3, 80), "slower below 4096 keys"),
            (_warp_specialised(2, 128, ping_pong=False), _IN_STEP),
        ),
    )


def _choose_deep(spec: AttentionSpec) -> Choice:
    """Depths above 128, where shared memory holds one Q buffer."""
    tile_n = 64 if max(spec.d, spec.dv) > 192 else 128 if spec.dv <= 128 else 96
    growth = _warp_specialised(2, tile_n, store=Store.DIRECT, rescale=Rescale.ON_GROWTH)
    overflow = _warp_specialised(2, tile_n, store=Store.DIRECT)
    return Choice(
        schedule=growth if spec.causal else overflow,
        reasons=(
            f"two stages of K and V tiles of {tile_n} keys leave room for one Q buffer, so O leaves"
            " from registers and Q is loaded again as soon as S is complete",
            "rescale on_growth: a causal tile has few steps" if spec.causal else _NO_MAXIMUM,
            _PING_PONG,
        ),
        rejected=(
            (overflow if spec.causal else growth, "within two percent of it"),
            (_warp_specialised(2, tile_n - 16, store=Store.DIRECT), "more steps of less work"),
        ),
    )


def _choose_wave_pipelined(spec: AttentionSpec, target: Target) -> Choice:
    def schedule(loop: MainLoop, waves: int, tile_n: int, prefetch: int = 0) -> Schedule:
        return Schedule(
            main_loop=loop, tile_m=32 * waves, tile_n=tile_n, consumers=waves, prefetch=prefetch
        )

    is_narrow = max(spec.d, spec.dv) <= 64
    tile_n = 128 if is_narrow else 64
    pipelined = MainLoop.WAVE_PIPELINED
    wished = [schedule(pipelined, 8, tile_n, prefetch) for prefetch in (7, 5, 3)]
    wished.append(schedule(pipelined, 4, 64, 7))
    best = next(wish for wish in wished if _fits(spec, wish, target))
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
            (other, why) for other, why in others if other != best and _fits(spec, other, target)
        ),
    )


def _fits(spec: AttentionSpec, schedule: Schedule, target: Target) -> bool:
    """Return whether the lowering accepts a schedule."""
    from fmhagen.lowering import lower

    try:
        lower(spec, schedule, target)
    except ScheduleError:
        return False
    return True
