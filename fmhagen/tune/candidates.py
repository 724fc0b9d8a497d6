"""Candidates: the schedules that a lowering takes for a spec."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from fmhagen.errors import ScheduleError
from fmhagen.lowering import lower
from fmhagen.schedule import MainLoop, Rescale, Schedule
from fmhagen.select import choose
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

GROUP_ROWS = 64  # query rows of a consumer of the warp-specialised loop
GROUP_THREADS = 128
REGISTER_STEP = 8  # registers are dealt in eights
LEAST_REGISTERS = 24  # for a producer
PRODUCER_REGISTERS = (24, 32, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The values that a search draws from.

    Attributes:
        consumers, tile_n, stages, q_stages, p_buffers: see `Schedule`.
        ping_pong, persistent: likewise.
        rescale: likewise.
        producer_registers: what the producer keeps; the consumers share what is left.
    """

    consumers: tuple[int, ...] = (2, 3, 4)
    tile_n: tuple[int, ...] = tuple(range(32, 257, 16))
    stages: tuple[int, ...] = (2, 3, 4, 5)
    q_stages: tuple[int, ...] = (1, 2)
    p_buffers: tuple[int, ...] = (1, 2)
    ping_pong: tuple[bool, ...] = (True, False)
    persistent: tuple[bool, ...] = (True, False)
    rescale: tuple[Rescale, ...] = (Rescale.ON_OVERFLOW, Rescale.ON_GROWTH)
    producer_registers: tuple[int, ...] = PRODUCER_REGISTERS


def register_split(
    consumers: int, target: Target, producer: int = LEAST_REGISTERS
) -> tuple[int, int]:
    """Return (producer, consumer) registers a thread that use the whole pool.

    The pool is what the warpgroups enter with; what does not divide goes to the producer.
    """
    entry = target.registers_per_block // ((consumers + 1) * GROUP_THREADS)
    entry = min(entry // REGISTER_STEP * REGISTER_STEP, target.max_registers_per_thread + 1)
    pool = entry * (consumers + 1)
    most = (target.max_registers_per_thread + 1) // REGISTER_STEP * REGISTER_STEP
    consumer = min((pool - producer) // consumers // REGISTER_STEP * REGISTER_STEP, most)
    rest = (pool - consumers * consumer) // REGISTER_STEP * REGISTER_STEP
    return min(rest, entry), consumer


def candidates(
    spec: AttentionSpec, target: Target, space: Space | None = None
) -> tuple[Schedule, ...]:
    """Return the schedules to weigh: the default, the alternatives of `choose`, then the space.

    Each is one that the lowering takes; none stands twice.

    Raises:
        UnsupportedSpecError: the target does not support the spec.
    """
    choice = choose(spec, target)
    drawn: Iterator[Schedule] = iter(())
    if choice.schedule.main_loop == MainLoop.WARP_SPECIALISED:
        drawn = _warp_specialised(space or Space(), target)
    weighed = (choice.schedule, *(schedule for schedule, _ in choice.rejected))
    found = {
        schedule: None
        for schedule in itertools.chain(weighed, drawn)
        if _is_taken(spec, schedule, target)
    }
    return tuple(found)


def drawn_order(schedules: tuple[Schedule, ...], *, first: int, seed: int) -> tuple[Schedule, ...]:
    """Return schedules in a drawn order, those that stand first left where they are.

    A budget may end a search before it is through: what it has seen is then spread over the space.
    """
    rest = list(schedules[first:])
    random.Random(seed).shuffle(rest)
    return (*schedules[:first], *rest)


def _is_taken(spec: AttentionSpec, schedule: Schedule, target: Target) -> bool:
    try:
        lower(spec, schedule, target)
    except ScheduleError:
        return False
    return True


def _warp_specialised(space: Space, target: Target) -> Iterator[Schedule]:
    for consumers in space.consumers:
        splits = sorted(
            {register_split(consumers, target, least) for least in space.producer_registers}
        )
        axes = itertools.product(
            splits,
            space.tile_n,
            space.stages,
            space.q_stages,
            space.p_buffers,
            space.ping_pong,
            space.persistent,
            space.rescale,
        )
        for split, tile_n, stages, q_stages, p_buffers, ping_pong, persistent, rescale in axes:
            yield Schedule(
                main_loop=MainLoop.WARP_SPECIALISED,
                tile_m=GROUP_ROWS * consumers,
                tile_n=tile_n,
                consumers=consumers,
                stages=stages,
                q_stages=q_stages,
                persistent=persistent,
                ping_pong=ping_pong,
                p_buffers=p_buffers,
                rescale=rescale,
                producer_registers=split[0],
                consumer_registers=split[1],
            )
