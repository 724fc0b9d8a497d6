"""Candidates: the schedules that a lowering takes for a spec, and the neighbours of one."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

from fmhagen.bench.variants import single_changes
from fmhagen.errors import ScheduleError
from fmhagen.lowering import lower
from fmhagen.schedule import Copy, MainLoop, Matrix, Rescale, Schedule, Store
from fmhagen.select import choose
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

GROUP_ROWS = 64  # query rows of a consumer of the warp-specialised loop
GROUP_THREADS = 128
WAVE_ROWS = 32  # query rows of a wave
REGISTER_STEP = 8  # registers are dealt in eights
LEAST_REGISTERS = 24  # for a producer
TILE_STEP = 16  # key columns: the depth of a matrix instruction
CACHE_ROWS = 16  # query rows of a tile over a cache


class Sizes(TypedDict, total=False):
    """Sizes of a call over a cache that the rules are told; see `select.choose`."""

    query_hint: int
    group_hint: int
    heads_hint: int


UNKNOWN = Sizes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """The values that a search draws from.

    Attributes:
        consumers, tile_n, stages, p_buffers, ping_pong, persistent, rescale: see `Schedule`.
        output: (q_stages, store) that make sense together.
        producer_registers: what the producer keeps at least; the consumers share what is left.
        cache_keys, cache_warps, cache_blocks, cache_stages: keys of a tile, warps of a block,
            blocks of a compute unit and stages of a warp of the loop over a key/value cache.
    """

    consumers: tuple[int, ...] = (2, 3, 4)
    tile_n: tuple[int, ...] = tuple(range(2 * TILE_STEP, 257, TILE_STEP))
    stages: tuple[int, ...] = (2, 3, 4)
    output: tuple[tuple[int, Store], ...] = (
        (2, Store.STAGED),
        (1, Store.DIRECT),
        (2, Store.DIRECT),
    )
    p_buffers: tuple[int, ...] = (1, 2)
    ping_pong: tuple[bool, ...] = (True, False)
    persistent: tuple[bool, ...] = (True,)
    rescale: tuple[Rescale, ...] = (Rescale.ON_OVERFLOW, Rescale.ON_GROWTH)
    producer_registers: tuple[int, ...] = (32,)
    cache_keys: tuple[int, ...] = (16, 32, 64)
    cache_warps: tuple[int, ...] = (8, 4, 2)
    cache_blocks: tuple[int, ...] = (1, 2, 4)
    cache_stages: tuple[int, ...] = (2, 3, 4, 6, 8)


FULL = Space(
    stages=(1, 2, 3, 4, 5, 6),
    output=tuple(itertools.product((1, 2), Store)),
    persistent=(True, False),
    rescale=tuple(Rescale),
    producer_registers=(24, 32, 40),
    cache_warps=(8, 4, 2, 1),
    cache_blocks=(1, 2, 3, 4, 6, 8),
    cache_stages=tuple(range(1, 17)),
)
"""All that the lowering takes, near enough."""


def register_split(
    consumers: int, target: Target, producer: int = LEAST_REGISTERS
) -> tuple[int, int]:
    """Return (producer, consumer) registers a thread that use the whole pool.

    The pool is what the warpgroups enter with; what does not divide goes to the producer.
    """
    most = (target.max_registers_per_thread + 1) // REGISTER_STEP * REGISTER_STEP
    entry = target.registers_per_block // ((consumers + 1) * GROUP_THREADS)
    entry = min(entry // REGISTER_STEP * REGISTER_STEP, most)
    pool = entry * (consumers + 1)
    consumer = min((pool - producer) // consumers // REGISTER_STEP * REGISTER_STEP, most)
    rest = (pool - consumers * consumer) // REGISTER_STEP * REGISTER_STEP
    return min(rest, entry), consumer


def candidates(
    spec: AttentionSpec,
    target: Target,
    space: Space | None = None,
    hints: Sizes = UNKNOWN,
) -> tuple[Schedule, ...]:
    """Return the schedules to weigh: the default, the alternatives of `choose`, then the space.

    Each is one that the lowering takes; none stands twice. Whether heads share tiles and whether
    keys are cut into parts is what the rules say: both follow from the sizes of a call.

    Args:
        spec: what to compute.
        target: the chip.
        space: what to draw from.
        hints: the sizes that `choose` is told.

    Raises:
        UnsupportedSpecError: the target does not support the spec.
    """
    drawn: Iterator[Schedule] = iter(())
    rules = choose(spec, target, rows=(), **hints).schedule
    if rules.main_loop == MainLoop.SPLIT_KV:
        drawn = _split_kv(space or Space())
    elif MainLoop.WARP_SPECIALISED in target.main_loops:
        drawn = (
            dataclasses.replace(schedule, pack_heads=rules.pack_heads, split_keys=rules.split_keys)
            for schedule in _warp_specialised(space or Space(), target)
        )
    elif MainLoop.WAVE_PIPELINED in target.main_loops:
        drawn = _waves()
    found = dict.fromkeys(itertools.chain(weighed(spec, target, hints), drawn))
    return tuple(schedule for schedule in found if is_taken(spec, schedule, target))


def _split_kv(space: Space) -> Iterator[Schedule]:
    """Draw the loop over a cache: how K and V are copied, keys of a tile, warps, blocks, stages.

    Its rows are those of a matrix instruction, and how many parts a sequence is cut into follows
    from the sizes and lengths of each call.
    """
    # What goes straight to registers has no ring.
    copies = tuple(
        (copy, stages)
        for copy in Copy
        for stages in ((1,) if copy == Copy.DIRECT else space.cache_stages)
    )
    axes = itertools.product(copies, space.cache_keys, space.cache_warps, space.cache_blocks)
    for (copy, stages), tile_n, warps, blocks in axes:
        yield Schedule(
            main_loop=MainLoop.SPLIT_KV,
            tile_m=CACHE_ROWS,
            tile_n=tile_n,
            consumers=warps,
            stages=stages,
            copy=copy,
            blocks_per_unit=blocks,
        )


def _waves() -> Iterator[Schedule]:
    """Draw the loops of waves: order, matrix instruction, waves, tile, how far reads run ahead."""
    prefetches = (3, 4, 5, 7, 9, 11)
    loops: tuple[tuple[MainLoop, int, Matrix, bool], ...] = (
        *itertools.product((MainLoop.WAVE_PIPELINED,), prefetches, Matrix, (False, True)),
        *itertools.product((MainLoop.WAVE_PING_PONG,), prefetches, Matrix, (False,)),
        (MainLoop.WAVE_INTERLEAVED, 0, Matrix.WIDE, False),
    )
    for waves, tile_n, choice in itertools.product((8, 4, 2), (64, 128), loops):
        loop, prefetch, matrix, ping_pong = choice
        yield Schedule(
            main_loop=loop,
            tile_m=WAVE_ROWS * waves,
            tile_n=tile_n,
            consumers=waves,
            ping_pong=ping_pong,
            prefetch=prefetch,
            matrix=matrix,
        )


def weighed(spec: AttentionSpec, target: Target, hints: Sizes = UNKNOWN) -> tuple[Schedule, ...]:
    """Return what `choose` gives and what it says that it weighed; see `candidates`."""
    choice = choose(spec, target, **hints)
    rules = choose(spec, target, rows=(), **hints)
    others = (*choice.rejected, *rules.rejected)
    return tuple(
        dict.fromkeys((choice.schedule, rules.schedule, *(schedule for schedule, _ in others)))
    )


def drawn_order(schedules: tuple[Schedule, ...], *, first: int, seed: int) -> tuple[Schedule, ...]:
    """Return schedules in a drawn order, those that stand first left where they are.

    A budget may end a search before it is through: what it has seen is then spread over the space.
    """
    rest = list(schedules[first:])
    random.Random(seed).shuffle(rest)
    return (*schedules[:first], *rest)


def neighbours(spec: AttentionSpec, schedule: Schedule, target: Target) -> tuple[Schedule, ...]:
    """Return what differs from a schedule by a step in one thing, and the lowering takes."""
    if schedule.main_loop == MainLoop.SPLIT_KV:
        return _that_fit(spec, schedule, target, _cache_steps(schedule))
    if schedule.main_loop != MainLoop.WARP_SPECIALISED:
        return ()
    changes: list[dict[str, Any]] = [
        *({"tile_n": schedule.tile_n + step * TILE_STEP} for step in (-2, -1, 1, 2)),
        *single_changes(schedule),
        *({"q_stages": q_stages, "store": store} for q_stages in (1, 2) for store in Store),
        {"p_buffers": 1, "rescale": Rescale.ON_GROWTH},
    ]
    for consumers in (schedule.consumers - 1, schedule.consumers, schedule.consumers + 1):
        for least in (24, 32, 40):
            producer, consumer = register_split(max(consumers, 1), target, least)
            changes.append(
                {
                    "consumers": consumers,
                    "tile_m": GROUP_ROWS * consumers,
                    "producer_registers": producer,
                    "consumer_registers": consumer,
                }
            )
    return _that_fit(spec, schedule, target, changes)


def _that_fit(
    spec: AttentionSpec, schedule: Schedule, target: Target, changes: list[dict[str, Any]]
) -> tuple[Schedule, ...]:
    found = dict.fromkeys(dataclasses.replace(schedule, **change) for change in changes)
    return tuple(other for other in found if other != schedule and is_taken(spec, other, target))


def _cache_steps(schedule: Schedule) -> list[dict[str, Any]]:
    """Return the changes of a step in one thing, or in two that share a compute unit's memory."""
    warps, stages, blocks = schedule.consumers, schedule.stages, schedule.blocks_per_unit
    return [
        *({"stages": max(1, stages + step)} for step in (-2, -1, 1, 2)),
        *({"blocks_per_unit": max(1, blocks + step)} for step in (-1, 1)),
        *({"tile_n": keys} for keys in (schedule.tile_n // 2, schedule.tile_n * 2)),
        *({"tile_n": keys, "stages": n} for keys, n in _traded(schedule.tile_n, stages)),
        *({"consumers": max(1, count)} for count in (warps // 2, warps * 2)),
        *({"consumers": count, "stages": n} for count, n in _traded(warps, stages)),
        *({"consumers": count, "blocks_per_unit": n} for count, n in _traded(warps, blocks)),
        *({"copy": copy} for copy in Copy),
    ]


def _traded(one: int, other: int) -> tuple[tuple[int, int], ...]:
    """Return twice one number with half of another, and the other way round."""
    return (max(1, one // 2), other * 2), (one * 2, max(1, other // 2))


def is_taken(spec: AttentionSpec, schedule: Schedule, target: Target) -> bool:
    """Return whether the lowering takes a schedule."""
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
            space.output,
            space.p_buffers,
            space.ping_pong,
            space.persistent,
            space.rescale,
        )
        for split, tile_n, stages, output, p_buffers, ping_pong, persistent, rescale in axes:
            yield Schedule(
                main_loop=MainLoop.WARP_SPECIALISED,
                tile_m=GROUP_ROWS * consumers,
                tile_n=tile_n,
                consumers=consumers,
                stages=stages,
                q_stages=output[0],
                persistent=persistent,
                store=output[1],
                ping_pong=ping_pong,
                p_buffers=p_buffers,
                rescale=rescale,
                producer_registers=split[0],
                consumer_registers=split[1],
            )
