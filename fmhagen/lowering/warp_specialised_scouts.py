"""Scouts of the warp-specialised loop: what they hand on through shared memory."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.lowering.warp_specialised_shared import BARRIER_BYTES, GROUP_WARPS
from fmhagen.plan.attention import Constant, SharedRegion
from fmhagen.plan.language import Language
from fmhagen.schedule import Schedule, Store
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

WORD_BYTES = 4
ROW_WORDS = 4  # threads that share a row of S, each with a word of bits
RUN_WORDS = 2
RUNS = 8  # runs of key tiles found ahead
SEEN_STAGES = 4  # partly visible key tiles looked through ahead
WORD_KEYS = 32 * ROW_WORDS  # of a row of bits


def check_scouts(spec: AttentionSpec, schedule: Schedule, language: Language) -> None:
    """Refuse scouts where there is nothing to find, or nobody free to do it.

    Raises:
        ScheduleError: says why.
    """
    limit = ""
    if language.right_only:
        limit = "has nothing to find where each row sees all keys before an end"
    elif spec.kv_cache:
        limit = "has no warps to spare beside those that copy from a cache"
    elif language.may_hide:
        limit = "does not know what a score function hides"
    elif schedule.tile_n > WORD_KEYS:
        limit = f"needs a tile_n of at most {WORD_KEYS}"
    if limit:
        raise ScheduleError("scouts", True, limit, "use scouts=False")


def scout_warps(schedule: Schedule) -> int:
    """Return how many warps are scouts: those of the producer that neither copy nor store."""
    return GROUP_WARPS - (3 if schedule.store == Store.STAGED else 2)


def add_scouts(
    schedule: Schedule, regions: tuple[SharedRegion, ...], used_bytes: int, target: Target
) -> tuple[tuple[SharedRegion, ...], int]:
    """Append what scouts hand on to a shared-memory map.

    Raises:
        ScheduleError: there is no room for it.
    """
    warps, scouts = schedule.consumers * GROUP_WARPS, scout_warps(schedule)
    rows = (
        ("RUNS_FULL", RUNS * BARRIER_BYTES, "a run has been found (1)"),
        ("RUNS_EMPTY", RUNS * BARRIER_BYTES, f"it has been read ({warps} consumer warps + 1)"),
        ("SEEN_FULL", SEEN_STAGES * BARRIER_BYTES, f"bits are there ({scouts} scouts)"),
        ("SEEN_EMPTY", SEEN_STAGES * BARRIER_BYTES, f"all are read ({warps} consumer warps)"),
        ("SMEM_RUNS", RUNS * RUN_WORDS * WORD_BYTES, f"runs [{RUNS}]"),
        (
            "SMEM_SEEN",
            SEEN_STAGES * schedule.tile_m * ROW_WORDS * WORD_BYTES,
            f"which keys each row sees [{SEEN_STAGES}]",
        ),
    )
    added = []
    for name, size, comment in rows:
        used_bytes = -(-used_bytes // 16) * 16
        added.append(
            SharedRegion(name=name, offset_bytes=used_bytes, size_bytes=size, comment=comment)
        )
        used_bytes += size
    if used_bytes > target.shared_memory_per_block_bytes:
        limit = (
            f"needs {used_bytes} bytes of shared memory; {target.name} has"
            f" {target.shared_memory_per_block_bytes} a block"
        )
        raise ScheduleError("scouts", True, limit, "use scouts=False")
    return (*regions, *added), used_bytes


def scout_constants(schedule: Schedule) -> tuple[Constant, ...]:
    """Return the constants of the scouts."""

    def number(name: str, value: int, comment: str, *, joins: bool = False) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment, joins=joins)

    return (
        number("RUNS", RUNS, "runs found ahead"),
        number("SEEN_STAGES", SEEN_STAGES, "key tiles looked through ahead", joins=True),
        number("SCOUTS", scout_warps(schedule), "warps"),
        number("FIRST_SCOUT", GROUP_WARPS - scout_warps(schedule), "of the block", joins=True),
        number("SEEN_ROW_BYTES", ROW_WORDS * WORD_BYTES, "bits of a row"),
        number("RUN_BYTES", RUN_WORDS * WORD_BYTES, "a run", joins=True),
    )
