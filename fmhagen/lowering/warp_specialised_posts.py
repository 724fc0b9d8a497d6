"""Posts: one thread finds tiles of work for all warps of a block, and says so in shared memory."""

from __future__ import annotations

from fmhagen.expr.nodes import walk
from fmhagen.lowering.common import regions_of
from fmhagen.lowering.warp_specialised_masks import is_wide
from fmhagen.lowering.warp_specialised_shared import BARRIER_BYTES, WORD_BYTES
from fmhagen.plan.attention import Constant, SharedRegion
from fmhagen.plan.language import Language
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec

POSTS_OF_Q = 2  # for each Q tile: the thread that loads V may be a tile behind
POSTED_BANDS = 4  # whose runs a post holds
TILE_WORDS, RUN_WORDS = 3, 3  # of a post: the tile's first row, b, h; a run of key tiles
PACKED_RUN_WORDS = 2  # of all runs: words that are read at once, behind an even number of others
SEQUENCE_WORDS, MAP_WORDS = 4, 3  # more, of packed sequences; of a block map
RUNS_OF_BAND = 4  # a run ends where a band is first or last touched, or first or last whole


def finds_tiles_for_all(spec: AttentionSpec, schedule: Schedule, language: Language) -> bool:
    """Return whether one thread finds tiles for all: where it takes long to find one."""
    takes_long = spec.varlen or not language.right_only
    return takes_long and not spec.kv_cache and schedule.overlap_tiles and schedule.q_stages > 1


def posts_all_runs(spec: AttentionSpec, language: Language) -> bool:
    """Return whether a post holds all runs of a tile: where bands say all, and are few.

    To read one takes a register, which narrow heads do not have.
    """
    bands_say_all = not language.mapped and language.rest is None and not language.right_only
    return is_wide(spec) and bands_say_all and len(language.bands) <= POSTED_BANDS


def posts_ranges_of_rows(spec: AttentionSpec, schedule: Schedule, language: Language) -> bool:
    """Return whether posts hold the keys that bands show to each row: where they read tensors."""
    bounds = (bound for band in language.bounds.bands for bound in (band.first, band.end))
    reads = any(node.op == "load" for bound in bounds for node in walk(bound))
    is_two_groups = schedule.consumers == 2 and schedule.p_buffers == 1
    return reads and is_two_groups and posts_all_runs(spec, language)


def add_posts(
    spec: AttentionSpec,
    schedule: Schedule,
    language: Language,
    regions: tuple[SharedRegion, ...],
    used_bytes: int,
) -> tuple[tuple[SharedRegion, ...], int]:
    """Append the posts to a shared-memory map that takes `used_bytes`."""
    words = TILE_WORDS + RUN_WORDS
    if posts_all_runs(spec, language):
        words = TILE_WORDS + 1 + PACKED_RUN_WORDS * RUNS_OF_BAND * len(language.bands)
    words += SEQUENCE_WORDS * spec.varlen + MAP_WORDS * language.mapped
    posts = POSTS_OF_Q * schedule.q_stages
    rows: tuple[tuple[str, int, str], ...] = (
        ("T_FULL", posts * BARRIER_BYTES, "a tile is posted (1)"),
        ("SMEM_POSTED", posts * words * WORD_BYTES, f"tiles, their key tiles [{posts}]"),
    )
    if posts_ranges_of_rows(spec, schedule, language):
        size = posts * schedule.tile_m * ranges_bytes(language)
        rows = (*rows, ("SMEM_RANGES", size, f"the keys that bands show to their rows [{posts}]"))
    added, used_bytes = regions_of(rows, used_bytes)
    return (*regions, *added), used_bytes


def ranges_bytes(language: Language) -> int:
    """Return the bytes of a row's ranges of keys."""
    return 2 * WORD_BYTES * len(language.bands)


def post_constants(
    regions: tuple[SharedRegion, ...], q_stages: int, language: Language
) -> tuple[Constant, ...]:
    """Return the constants of posts, if there are any."""
    size = next((r.size_bytes for r in regions if r.name == "SMEM_POSTED"), 0)
    if not size:
        return ()
    posts = POSTS_OF_Q * q_stages
    rows = (
        ("POSTS", posts, "tiles of work that are posted", False),
        ("POSTED_BYTES", size // posts, "a post", True),
        *(
            (("RANGES_BYTES", ranges_bytes(language), "the ranges of a row", True),)
            if any(r.name == "SMEM_RANGES" for r in regions)
            else ()
        ),
        ("NO_TILE", 2**32 - 1, "a post that says that none follows", True),
    )
    return tuple(
        Constant(ctype="u32", name=name, value=value, comment=comment, joins=joins)
        for name, value, comment, joins in rows
    )
