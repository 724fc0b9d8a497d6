"""The constants of the kernels over a key/value cache."""

from __future__ import annotations

import math

from fmhagen.lowering.common import LN2
from fmhagen.lowering.split_kv_shapes import (
    BARRIER_BYTES,
    COMBINE_WARPS,
    LANES,
    LINE_BYTES,
    MATRIX_K,
    MEET_STEPS,
    MOST_PARTS,
    PARTS_AHEAD,
    SWIZZLE_BYTES,
    TILE_ROWS,
    box_columns,
    boxes_of,
    boxes_of_copy,
    combine_values,
    least_steps,
    piece_rows,
    stage_bytes,
)
from fmhagen.plan.attention import Constant, SharedRegion
from fmhagen.plan.language import Language
from fmhagen.schedule import Copy, Schedule
from fmhagen.spec import AttentionSpec

LOG2_E = Constant(
    ctype="f32", name="LOG2_E", value=math.log2(math.e), comment="exp(x) = exp2(LOG2_E * x)"
)


def constants_of(
    spec: AttentionSpec,
    schedule: Schedule,
    shared: tuple[SharedRegion, ...],
    language: Language,
) -> tuple[Constant, ...]:
    """Return every number of an emitted file, in printing order."""

    def number(name: str, value: int, comment: str) -> Constant:
        return Constant(ctype="u32", name=name, value=value, comment=comment)

    tile_n, d, dv, warps = schedule.tile_n, spec.d, spec.dv, schedule.consumers
    rows = piece_rows(spec, schedule)
    row_box = rows * SWIZZLE_BYTES
    values = combine_values(spec)
    bulk = (
        number("TILE_PIECES", tile_n // rows, "copies of rows that a tile takes"),
        number(
            "K_COPIES",
            boxes_of(spec, d) // boxes_of_copy(spec, d),
            "copies of columns of a piece of K",
        ),
        number("V_COPIES", boxes_of(spec, dv) // boxes_of_copy(spec, dv), "the same of V"),
        number("BOX_BYTES", row_box, "rows of a piece in one box of columns"),
        number("K_PIECE_BYTES", row_box * boxes_of(spec, d), "a piece of K"),
        number("V_PIECE_BYTES", row_box * boxes_of(spec, dv), "a piece of V"),
        number("V_TILE_BYTES", tile_n * SWIZZLE_BYTES * boxes_of(spec, dv), "V of a stage"),
        number("BARRIER_BYTES", BARRIER_BYTES, "one mbarrier"),
    )
    page = (number("PAGE_SIZE", spec.page_size or 0, "keys of a page"),)
    return (
        number("TILE_M", TILE_ROWS, "rows of a tile: one matrix instruction's"),
        number("TILE_N", tile_n, "keys of a warp's tile"),
        number("HEAD_DIM", d, "d"),
        number("HEAD_DIM_V", dv, "dv"),
        *(page if spec.page_size is not None else ()),
        number("WARPS", warps, "of a block"),
        number("THREADS", warps * LANES, "of a block"),
        number("BLOCKS_PER_UNIT", schedule.blocks_per_unit, "blocks that a compute unit holds"),
        number("STEP_KEYS", warps * tile_n, "keys of a block's step"),
        number("STAGES", schedule.stages, "tiles of K and V in flight, a warp"),
        *(
            (number("MEET_STEPS", MEET_STEPS, "after which the warps of a block meet"),)
            if schedule.copy == Copy.BULK
            else ()
        ),
        number("LINE_BYTES", LINE_BYTES, "of L2"),
        number("Q_LINES", -(-d * 2 // LINE_BYTES), "that a row of Q has"),
        number("MATRIX_K", MATRIX_K, "depth of one matrix instruction"),
        number("ROW_BYTES", SWIZZLE_BYTES, "one row of a box, and of the 128-byte swizzle"),
        number("BOX_ROWS", rows, "rows of a box"),
        number("BOX_COLUMNS", box_columns(spec), "columns of a box"),
        *(
            (number("CHUNK_COLUMNS", box_columns(spec) // 8, "columns of 16 bytes"),)
            if schedule.copy == Copy.GATHER
            else ()
        ),
        number("K_COLUMN_BOXES", boxes_of(spec, d), "boxes that hold d columns"),
        number("V_COLUMN_BOXES", boxes_of(spec, dv), "boxes that hold dv columns"),
        *(bulk if schedule.copy == Copy.BULK else ()),
        number("K_TILE_BYTES", tile_n * SWIZZLE_BYTES * boxes_of(spec, d), "K of a stage"),
        number("STAGE_BYTES", stage_bytes(spec, tile_n), "K and V of a stage"),
        *(number(r.name, r.offset_bytes, "see the shared-memory map") for r in shared),
        *(
            (
                number("MOST_PARTS", MOST_PARTS, "of a sequence"),
                number("LEAST_STEPS", least_steps(schedule), "of a part"),
            )
            if spec.batch_invariant
            else ()
        ),
        number("COMBINE_WARPS", COMBINE_WARPS, "of a block of the second kernel"),
        number("COMBINE_THREADS", COMBINE_WARPS * LANES, "of a block of the second kernel"),
        number("COMBINE_VALUES", values, "columns of O that a lane of it adds up"),
        number("PARTS_AHEAD", PARTS_AHEAD, "of a row, loaded before their weights are known"),
        number("BANDS", len(language.bands), "ranges of keys that the mask shows a row"),
        LN2,
        *((LOG2_E,) if language.score is not None or spec.sink else ()),
    )
