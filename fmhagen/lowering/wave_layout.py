"""How the loops of free waves lay K and V out in LDS, and the constants that say so."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fmhagen.lowering.common import LN2, LOG2E, regions_of
from fmhagen.lowering.wave_interleaved import (
    ELEMENT_BYTES,
    GROWTH_LOG2,
    LOAD_ELEMENTS,
    WAVE_LANES,
    WAVE_ROWS,
    XCDS,
)
from fmhagen.plan.attention import Constant, SharedRegion
from fmhagen.plan.slots import MatrixForm
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec, CacheScale

LINE_BYTES = 128  # all banks once; columns are swizzled within it
LEAST_SCALE = Constant(
    ctype="f32", name="LEAST_SCALE", value=2.0**-126, comment="the smallest normal number"
)
NOWHERE = 0xFFFFFFF0  # an offset that lies outside every resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """How one unit of K and V goes to LDS.

    Attributes:
        k_eights: 16-byte pieces of a K row in LDS, those past d without use.
        k_pieces: of these, in one unit, are a thread's.
        v_pairs: pairs of rows of V^T in LDS, those past dv without use.
        v_keys: keys of a piece of V.
        v_pieces: pieces that are a thread's.
    """

    k_eights: int
    k_pieces: int
    v_pairs: int
    v_keys: int
    v_pieces: int


def staging_of(spec: AttentionSpec, schedule: Schedule) -> Staging:
    """Deal the pieces of a unit evenly to the threads; rows in LDS are padded until they go up."""
    unit = schedule.tile_n // 2
    threads = schedule.consumers * WAVE_LANES
    k_step = LINE_BYTES // ELEMENT_BYTES // LOAD_ELEMENTS
    k_eights = k_step * -(-spec.d // (k_step * LOAD_ELEMENTS))
    while unit * k_eights % threads:
        k_eights += k_step
    found = []
    for keys in (8, 4):
        pairs = 32 * -(-spec.dv // 64)
        while unit // keys * pairs % threads:
            pairs += 32
        found.append((pairs, -keys))
    v_pairs, negative_keys = min(found)
    v_keys = -negative_keys
    return Staging(
        k_eights=k_eights,
        k_pieces=unit * k_eights // threads,
        v_pairs=v_pairs,
        v_keys=v_keys,
        v_pieces=unit // v_keys * v_pairs // threads,
    )


def shared_map(schedule: Schedule, staging: Staging) -> tuple[tuple[SharedRegion, ...], int]:
    """Return the regions of even and odd units of K and of V^T, and the bytes of all."""
    unit = schedule.tile_n // 2
    k_bytes = unit * staging.k_eights * LOAD_ELEMENTS * ELEMENT_BYTES
    v_bytes = unit * staging.v_pairs * 2 * ELEMENT_BYTES
    return regions_of(
        (
            f"SMEM_{tensor}_{parity}",
            size,
            f"{parity.lower()} units of {tensor}{shape}, columns swizzled by {swizzle}",
        )
        for tensor, size, shape, swizzle in (
            ("K", k_bytes, "[UNIT][K_EIGHTS * 8]", "k_swizzle"),
            ("V", v_bytes, "^T [V_PAIRS * 2][UNIT]", "v_unit_swizzle"),
        )
        for parity in ("EVEN", "ODD")
    )


def constants_of(
    spec: AttentionSpec,
    schedule: Schedule,
    shared: tuple[SharedRegion, ...],
    staging: Staging,
    form: MatrixForm,
    derived: tuple[int, int, float],
) -> tuple[Constant, ...]:
    """Return the constants; `derived` is (fragments, waves a SIMD, mean of p / rounded p)."""

    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    def real(name: str, value: float, comment: str) -> Constant:
        return Constant(ctype="f32", name=name, value=value, comment=comment)

    fragments, waves_per_simd, factor = derived
    k_row_bytes = staging.k_eights * LOAD_ELEMENTS * ELEMENT_BYTES
    blocks = form.rows**2 // WAVE_LANES
    growth = GROWTH_LOG2 if schedule.conditional_rescale else 0.0
    return (
        number("TILE_M", schedule.tile_m, "query rows of a tile"),
        number("TILE_N", schedule.tile_n, "key columns of two steps"),
        number("UNIT", schedule.tile_n // 2, "key columns of a step"),
        number("HEAD_DIM", spec.d, "d"),
        number("HEAD_DIM_V", spec.dv, "dv"),
        number("MATRIX_ROWS", form.rows, "rows and columns of an accumulator"),
        number("BLOCK_ELEMENTS", blocks, "of an accumulator, are a lane's"),
        number("LANE_ROWS", form.lane_rows, "query rows of a lane"),
        number("EIGHT_SPAN", form.span, "keys or depths, of which a lane holds eight"),
        number("Q_EIGHTS", -(-spec.d // form.span) * form.lane_rows, "of Q, are a lane's"),
        number("VALUE_EIGHTS", -(-spec.dv // form.span) * form.lane_rows, "of O, are a lane's"),
        number("SCORE_BLOCKS", schedule.tile_n // 4 // blocks, "accumulators of S of a unit"),
        number("VALUE_BLOCKS", -(-spec.dv // 32) * 16 // blocks, "accumulators of O"),
        number("WAVE_LANES", WAVE_LANES, "threads of a wave"),
        number("WAVE_ROWS", WAVE_ROWS, "query rows of a wave"),
        number("THREADS", schedule.consumers * WAVE_LANES, f"{schedule.consumers} waves"),
        number("WAVES_PER_SIMD", waves_per_simd, "at least: a register limit for the compiler"),
        number("FRAGMENTS", fragments, "operands on their way from LDS"),
        number("K_EIGHTS", staging.k_eights, "16-byte pieces of a K row in LDS"),
        number("K_ROW_BYTES", k_row_bytes, "one K row in LDS"),
        number(
            "K_READS",
            LINE_BYTES // ELEMENT_BYTES // form.span,
            "operands in 128 bytes of K",
        ),
        number("K_PIECES", staging.k_pieces, "of these, in one unit, are a thread's"),
        number("V_PAIRS", staging.v_pairs, "pairs of rows of V^T in LDS"),
        number("V_KEYS", staging.v_keys, "keys of a piece of V, two columns wide"),
        number("V_PIECES", staging.v_pieces, "of these, in one unit, are a thread's"),
        *(number(r.name, r.offset_bytes, "see the shared-memory map") for r in shared),
        number("NOWHERE", NOWHERE, "an offset outside every resource: gives zeros"),
        number("XCDS", XCDS, "dies that blocks are dealt to in turn"),
        real("GROWTH_LOG2", growth, "O is rescaled when a maximum grew by more than 2^this"),
        real("ROUNDING_FACTOR", factor, "mean of p / rounded p"),
        real("ROUNDING_LOG2", math.log2(factor), "its log2, added to every exponent"),
        LN2,
        *((LOG2E,) if spec.sink else ()),
    )


def lookup_keys(spec: AttentionSpec, staging: Staging) -> int:
    """Return how many keys of a piece of V certainly lie in one page."""
    assert spec.page_size is not None
    return math.gcd(spec.page_size, staging.v_keys)


def cache_constants(spec: AttentionSpec, staging: Staging, bands: int) -> tuple[Constant, ...]:
    """Return the constants of a kernel over a cache besides."""

    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    if not spec.kv_cache:
        return ()
    own: tuple[Constant, ...] = (
        number("BANDS", bands, "ranges of keys that the mask shows a row"),
    )
    if spec.kv_scale in (CacheScale.TENSOR, CacheScale.HEAD):
        own = (*own, LEAST_SCALE)
    if spec.page_size is None:
        return own
    keys = lookup_keys(spec, staging)
    return (
        *own,
        number("PAGE_SIZE", spec.page_size, "keys of a page"),
        number("LOOKUP_KEYS", keys, "keys of a piece of V that lie in one page"),
    )
