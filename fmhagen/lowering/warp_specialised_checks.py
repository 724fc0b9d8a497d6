"""What the warp-specialised main loop cannot do: numbers of a schedule that do not fit."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.plan.language import Language
from fmhagen.schedule import Rescale, Schedule, Store
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

# Shapes of the matrix unit and the copy engine that this main loop is written for.
GROUP_ROWS = 64  # rows of one warpgroup's accumulator
GROUP_THREADS = 128
MATRIX_K = 16  # depth of one 16-bit matrix instruction
BOX_LIMIT = 256  # most elements of a copy's box along one dimension
SPARE_REGISTERS = 28  # addresses, row statistics and loop state of a consumer thread


def check_shape(schedule: Schedule) -> None:
    """Refuse numbers that do not fit one another.

    Raises:
        ScheduleError: says which and what does.
    """
    if not 1 <= schedule.consumers <= 4:
        raise ScheduleError("consumers", schedule.consumers, "must be from 1 to 4 warpgroups")
    if schedule.tile_m != GROUP_ROWS * schedule.consumers:
        limit = f"must be {GROUP_ROWS} rows for each of the {schedule.consumers} consumers"
        hint = f"use tile_m={GROUP_ROWS * schedule.consumers}"
        raise ScheduleError("tile_m", schedule.tile_m, limit, hint)
    if schedule.tile_n % MATRIX_K or not MATRIX_K <= schedule.tile_n <= BOX_LIMIT:
        limit = f"must be a multiple of {MATRIX_K} from {MATRIX_K} to {BOX_LIMIT}"
        nearest = min(max(round(schedule.tile_n / MATRIX_K), 1) * MATRIX_K, BOX_LIMIT)
        raise ScheduleError("tile_n", schedule.tile_n, limit, f"use tile_n={nearest}")
    if not 1 <= schedule.stages <= 8:
        raise ScheduleError("stages", schedule.stages, "must be from 1 to 8")
    if schedule.q_stages not in (1, 2):
        raise ScheduleError("q_stages", schedule.q_stages, "must be 1 or 2")
    skipped = -(-GROUP_ROWS * (schedule.consumers * schedule.cluster - 1) // schedule.tile_n)
    if schedule.skip_hidden and schedule.overlap_tiles and skipped >= schedule.stages:
        # The last O += P V of a tile holds a V buffer while its successor's skipped ones arrive.
        limit = f"a consumer may skip {skipped} key tiles, which needs {skipped + 1} stages"
        raise ScheduleError("skip_hidden", True, limit, f"use stages={skipped + 1}")
    if schedule.ping_pong and schedule.consumers == 1:
        raise ScheduleError("ping_pong", True, "needs at least 2 consumers", "use ping_pong=False")
    if schedule.cluster not in (1, 2):
        raise ScheduleError("cluster", schedule.cluster, "must be 1 or 2 blocks")
    if schedule.split_q and schedule.store == Store.STAGED:
        raise ScheduleError("split_q", True, "needs store='direct'", "use store='direct'")
    if schedule.p_buffers not in (1, 2):
        raise ScheduleError("p_buffers", schedule.p_buffers, "must be 1 or 2")
    if schedule.p_buffers == 2 and schedule.rescale != Rescale.ON_OVERFLOW:
        raise ScheduleError("p_buffers", 2, "needs rescale='on_overflow'", "use p_buffers=1")
    one_staged = schedule.q_stages == 1 and schedule.store == Store.STAGED
    if schedule.persistent and one_staged and schedule.overlap_tiles:
        # The next tile's first S is issued before this tile's O, which leaves through its Q buffer.
        limit = "a persistent block that stages O needs two Q buffers"
        raise ScheduleError("q_stages", 1, limit, "use q_stages=2 or store='direct'")


def check_rescale(spec: AttentionSpec, schedule: Schedule, language: Language) -> None:
    """Refuse references that are not exact where they must be.

    Raises:
        ScheduleError: says why.
    """
    if language.may_hide and schedule.rescale != Rescale.ALWAYS:
        limit = "a score function that may give -inf needs the exact maximum in every step"
        raise ScheduleError("rescale", str(schedule.rescale), limit, "use rescale='always'")
    if spec.max_logit and schedule.rescale != Rescale.ALWAYS:
        limit = "the largest score of a head is that of references that are exact"
        raise ScheduleError("rescale", str(schedule.rescale), limit, "use rescale='always'")


def check_store(spec: AttentionSpec, schedule: Schedule) -> None:
    """Refuse to stage O where rows of it do not follow one another.

    Raises:
        ScheduleError: says why.
    """
    if spec.varlen and schedule.store == Store.STAGED:
        limit = "packed rows leave from registers, as a copy would reach into the next sequence"
        raise ScheduleError("store", str(schedule.store), limit, "use store='direct'")
    if spec.kv_cache and schedule.store == Store.STAGED:
        limit = "over a cache O leaves from registers"
        raise ScheduleError("store", str(schedule.store), limit, "use store='direct'")


def check_registers(spec: AttentionSpec, schedule: Schedule, target: Target) -> None:
    """Refuse registers that the warpgroups cannot be dealt, or that a tile does not fit.

    Raises:
        ScheduleError: says which and what does.
    """
    threads = (schedule.consumers + 1) * GROUP_THREADS
    entry = target.registers_per_block // threads // 8 * 8
    pool = entry * (schedule.consumers + 1)
    dealt = schedule.consumers * schedule.consumer_registers + schedule.producer_registers
    for name in ("producer_registers", "consumer_registers"):
        value = getattr(schedule, name)
        if value % 8 or not 24 <= value <= target.max_registers_per_thread + 1:
            raise ScheduleError(name, value, "must be a multiple of 8 from 24 to 256")
    if dealt > pool:
        # The pool is what the warpgroups enter with: beyond it setmaxnreg waits for ever.
        raise ScheduleError(
            "consumer_registers",
            schedule.consumer_registers,
            f"{schedule.consumers} consumers and the producer's {schedule.producer_registers}"
            f" take {dealt} of a pool of {pool}",
            f"use at most {(pool - schedule.producer_registers) // schedule.consumers // 8 * 8}",
        )
    need = (
        schedule.tile_n // 2
        + spec.dv // 2
        + schedule.tile_n // 4 * schedule.p_buffers
        + SPARE_REGISTERS
    )
    if need > schedule.consumer_registers:
        raise ScheduleError(
            "tile_n",
            schedule.tile_n,
            f"S, O and P need about {need} registers a thread;"
            f" a consumer has {schedule.consumer_registers}",
            "use a smaller tile_n or fewer consumers",
        )
