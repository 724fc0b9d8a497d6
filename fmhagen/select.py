"""Choice of a schedule: a pure function of spec and target that gives its reasons."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.schedule import MainLoop, Rescale, Schedule
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
    """

    schedule: Schedule
    reasons: tuple[str, ...]
    rejected: tuple[tuple[Schedule, str], ...]


def choose(spec: AttentionSpec, target: Target) -> Choice:
    """Return the default schedule of a spec on a target, with the reasons.

    Raises:
        UnsupportedSpecError: the target does not support the spec.
    """
    check_support(spec, target)
    table = {
        MainLoop.WARP_SPECIALISED: _choose_warp_specialised,
        MainLoop.WAVE_INTERLEAVED: _choose_wave_interleaved,
    }
    return table[MainLoop(target.main_loops[0])](spec)


def default_schedule(spec: AttentionSpec, target: Target) -> Schedule:
    """Return the schedule of `choose` alone."""
    return choose(spec, target).schedule


def candidates(spec: AttentionSpec, target: Target) -> tuple[Schedule, ...]:
    """Return every schedule that the target's lowering accepts for a spec, best first."""
    choice = choose(spec, target)
    return (choice.schedule, *(schedule for schedule, _ in choice.rejected))


def _choose_warp_specialised(spec: AttentionSpec) -> Choice:
    # (producer, consumer) registers a thread: what the warpgroups enter with, dealt anew.
    registers = {2: (40, 232), 3: (32, 160), 4: (32, 112)}

    def schedule(
        consumers: int, tile_n: int, stages: int, rescale: Rescale, *, ping_pong: bool = True
    ) -> Schedule:
        producer, consumer = registers[consumers]
        return Schedule(
            main_loop=MainLoop.WARP_SPECIALISED,
            tile_m=64 * consumers,
            tile_n=tile_n,
            consumers=consumers,
            stages=stages,
            q_stages=2,
            persistent=True,
            ping_pong=ping_pong,
            rescale=rescale,
            producer_registers=producer,
            consumer_registers=consumer,
        )

    common = (
        "ping-pong: a warp is held at its matrix instructions, so its softmax runs under the"
        " products of the other warpgroups",
        "two Q buffers and a persistent grid hide the load of Q and the store of O",
    )
    if spec.d == 64:
        return Choice(
            schedule=schedule(4, 64, 4, Rescale.ON_OVERFLOW),
            reasons=(
                "four consumer warpgroups: at head_dim 64 the softmax bounds, and more warps hide"
                " more of its latency",
                "tile_n 64 is the widest whose S, P and O fit 112 registers a thread",
                "four stages fit, since a K or V tile is 8 KiB",
                "rescale on_overflow: no row maximum, a fifth fewer instructions of softmax",
                *common,
            ),
            rejected=(
                (schedule(3, 128, 4, Rescale.ON_OVERFLOW), "fewer warps to hide the softmax"),
                (
                    schedule(4, 64, 4, Rescale.ON_OVERFLOW, ping_pong=False),
                    "the warpgroups fall into step and wait for the tensor cores together",
                ),
                (schedule(4, 64, 4, Rescale.ON_GROWTH), "a row maximum in every step"),
            ),
        )
    growth, overflow = Rescale.ON_GROWTH, Rescale.ON_OVERFLOW
    reasons = (
        "two consumer warpgroups of 64 rows: S (64), O (64) and P (32) fit 232 registers",
        "tile_n 128 equals tile_m, so a causal tile has at most two partly visible steps",
        *common,
    )
    wide = (schedule(3, 80, 2, overflow), "slower below 4096 keys and when causal")
    if spec.causal:
        return Choice(
            schedule=schedule(2, 128, 2, growth),
            reasons=(
                *reasons,
                "rescale on_growth: causal tiles have few steps, and a vote of the warpgroup in"
                " each step costs more there than the row maximum",
            ),
            rejected=(wide, (schedule(2, 128, 2, overflow), "a warpgroup's vote in every step")),
        )
    return Choice(
        schedule=schedule(2, 128, 2, overflow),
        reasons=(
            *reasons,
            "rescale on_overflow: no row maximum, a fifth fewer instructions of softmax",
        ),
        rejected=(
            wide,
            (schedule(2, 128, 2, growth), "a row maximum in every step"),
            (
                schedule(2, 128, 2, overflow, ping_pong=False),
                "the warpgroups fall into step and wait for the tensor cores together",
            ),
        ),
    )


def _choose_wave_interleaved(spec: AttentionSpec) -> Choice:
    def schedule(consumers: int, tile_n: int) -> Schedule:
        return Schedule(
            main_loop=MainLoop.WAVE_INTERLEAVED,
            tile_m=32 * consumers,
            tile_n=tile_n,
            consumers=consumers,
        )

    tile_n = 64 if spec.d > 64 else 128
    return Choice(
        schedule=schedule(8, tile_n),
        reasons=(
            "eight waves of 32 queries: two waves a SIMD hide one another's softmax",
            f"tile_n {tile_n}: K and V, double buffered, fill the 64 KiB of LDS",
        ),
        rejected=(
            (schedule(4, 64), "one wave a SIMD leaves the matrix cores idle during softmax"),
        ),
    )
