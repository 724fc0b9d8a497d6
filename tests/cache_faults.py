"""Faults planted in kernels over a key/value cache, and the diagnosis that each must get.

As in `faults.py`: an edit matches a stated number of times, so that a change of a template cannot
disarm a fault unseen.
"""

from __future__ import annotations

from dataclasses import dataclass

from faults import EVERY, UNORDERED, WRONG_RESULT, Benign, Fault, drop, swap

WRITES = ("written_twice", "out_of_bounds")
LOST = (WRONG_RESULT, "unwritten")  # what nobody computed


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFault(Fault):
    """One fault, and the name of the call that shows it."""

    call: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBenign(Benign):
    """One edit that is no fault, or is not seen, and the name of a call."""

    call: str


FAULTS = (
    # ---- synchronisation ----
    CacheFault(
        name="no_wait_for_a_tile",
        call="window",
        edits=drop("wait_full<STAGES>(ring.full, used);"),
        kinds=UNORDERED,
        words=("SMEM_RING",),
    ),
    CacheFault(
        name="wait_for_the_tile_before",
        call="window",
        edits=swap(
            "wait_full<STAGES>(ring.full, used);", "wait_full<STAGES>(ring.full, used - 1);"
        ),
        kinds=(*UNORDERED, "deadlock"),
    ),
    CacheFault(
        name="barriers_not_fenced",
        call="window",
        edits=drop("mbarrier_init_fence();"),
        kinds=("proxy",),
        words=("mbarrier_init_fence",),
    ),
    CacheFault(
        name="too_few_bytes_expected",
        call="window",
        edits=swap(
            "mbarrier_arrive_expect_tx(barrier, STAGE_BYTES);",
            "mbarrier_arrive_expect_tx(barrier, STAGE_BYTES - 16);",
        ),
        kinds=("barrier", "race", "uninitialised", "deadlock"),
    ),
    CacheFault(
        name="copy_into_the_stage_that_is_read",
        call="window",
        edits=swap(
            "copy_tile(params, ring, stage,", "copy_tile(params, ring, (stage + 1) % STAGES,"
        ),
        kinds=(*UNORDERED, "barrier", "deadlock"),
    ),
    CacheFault(
        name="values_cleared_without_a_proxy_fence",
        call="window",
        edits=swap("proxy_fence(); warp_sync(); }", "warp_sync(); }"),
        kinds=("proxy",),
        words=("tma_load_5d",),
    ),
    CacheFault(
        name="o_staged_without_a_proxy_fence",
        call="long",
        edits=swap("are free again proxy_fence(); block_sync();", "are free again\n block_sync();"),
        kinds=("proxy",),
        words=("tma_load_5d",),
    ),
    CacheFault(
        name="merge_before_all_warps_have_staged",
        call="window",
        edits=swap(
            "o[4 * i + 2 * half + 1]); } } } block_sync();", "o[4 * i + 2 * half + 1]); } } }"
        ),
        kinds=UNORDERED,
        words=("SMEM_STATES", "SMEM_PLACES", "SMEM_RING"),
    ),
    CacheFault(
        name="next_run_before_all_warps_have_merged",
        call="window",
        edits=swap(
            "are free again proxy_fence(); block_sync();", "are free again\n proxy_fence();"
        ),
        kinds=("race",),
        words=("SMEM_STATES", "SMEM_PLACES", "SMEM_RING"),
    ),
    CacheFault(
        name="gather_not_waited_for",
        call="gather",
        edits=drop("copy_async_wait<STAGES - 1>();"),
        kinds=UNORDERED,
        words=("SMEM_RING",),
    ),
    CacheFault(
        name="gather_waited_for_one_group_too_late",
        call="gather",
        edits=swap("copy_async_wait<STAGES - 1>();", "copy_async_wait<STAGES>();"),
        kinds=UNORDERED,
        words=("SMEM_RING",),
    ),
    CacheFault(
        name="no_group_where_nothing_is_copied",
        call="gather",
        edits=swap(
            "// NOTE: also where nothing was copied: waits count groups. copy_async_commit();",
            "if (loads.walk.b < params.batch) { copy_async_commit(); }",
        ),
        kinds=(*UNORDERED, "unfinished"),
    ),
    CacheFault(
        name="scales_stored_a_tile_later_still",
        call="token",
        edits=swap(
            "store_scales(ring, loads); if", "if (stage > 0) { store_scales(ring, loads); } if"
        ),
        kinds=UNORDERED,
        words=("SMEM_SCALES",),
    ),
    CacheFault(
        name="scales_of_another_stage",
        call="token",
        edits=swap("ring.scales + (used - 1) % STAGES", "ring.scales + used % STAGES"),
        kinds=(*UNORDERED, WRONG_RESULT),
    ),
    CacheFault(
        name="queries_read_before_all_are_staged",
        call="wide",
        edits=swap("second[2], second[3]); } block_sync();", "second[2], second[3]); }"),
        kinds=UNORDERED,
        words=("SMEM_Q",),
    ),
    CacheFault(
        name="no_wait_for_the_kernel_before",
        call="window",
        edits=swap("wait_for_primary_knowing(known); Ring ring;", "Ring ring;"),
        kinds=("race",),
        words=("wait_for_primary",),
    ),
    CacheFault(
        name="parts_added_before_they_are_written",
        call="window",
        edits=swap("wait_for_primary_knowing(known); const bool has_parts", "const bool has_parts"),
        kinds=("race",),
        words=("workspace",),
    ),
    CacheFault(
        name="dependents_launched_before_the_wait",
        call="window",
        edits=swap(
            "wait_for_primary_knowing(known); Ring ring;",
            "launch_dependents(); wait_for_primary_knowing(known); Ring ring;",
        ),
        kinds=("race",),
        words=("launch_dependents",),
    ),
    CacheFault(
        name="warps_of_a_row_do_not_wait_for_one_another",
        call="sequences",
        edits=swap("sum.o[j + 3]); } block_sync();", "sum.o[j + 3]); }"),
        kinds=UNORDERED,
    ),
    # ---- limits ----
    CacheFault(
        name="one_query_too_many",
        call="window",
        edits=swap(
            "rows.exists[half] = m < params.seqlen_q;", "rows.exists[half] = m <= params.seqlen_q;"
        ),
        kinds=WRITES,
    ),
    CacheFault(
        name="rows_that_do_not_exist_are_stored",
        call="window",
        edits=swap("if (half == 0 ? !rows.exists[0] : !rows.exists[1]) { continue; }", ""),
        kinds=WRITES,
    ),
    CacheFault(
        name="more_keys_than_there_is_room_for",
        call="beyond",
        edits=swap("0, i32(params.capacity)));", "0, 1 << 20));"),
        kinds=("out_of_bounds",),
        words=("load_global_i32",),
    ),
    CacheFault(
        name="one_key_too_many_visible",
        call="window",
        edits=swap("column < ends[half] - first &&", "column <= ends[half] - first &&"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="window_one_key_short",
        call="window",
        edits=swap("column >= begins[half] - first", "column > begins[half] - first"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="tiles_unmasked_up_to_the_last_row",
        call="window",
        edits=swap(
            "clamp(end_key_0(params, place, m_first)", "clamp(end_key_0(params, place, m_last)"
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="tiles_unmasked_from_the_first_row_on",
        call="window",
        edits=swap(
            "clamp(first_key_0(params, place, m_last)", "clamp(first_key_0(params, place, m_first)"
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="keys_of_the_last_row_alone",
        call="window",
        edits=swap("clamp(first_key_0(params, place, 0),", "clamp(first_key_0(params, place, 2),"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="keys_of_the_first_row_alone",
        call="window",
        edits=swap(
            "end_key_0(params, place, i32(params.seqlen_q) - 1)", "end_key_0(params, place, 0)"
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="pages_of_keys_that_nobody_sees",
        call="beyond",
        edits=swap("} return other; }", "} return n; }"),
        kinds=("out_of_bounds",),
        words=("load_global_i32",),
    ),
    CacheFault(
        name="hidden_values_not_cleared",
        call="window",
        edits=swap("clear_hidden_values(tile + K_TILE_BYTES, walk.sequence, n_first);", ";"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="one_hidden_value_not_cleared",
        call="contiguous",
        edits=swap(
            "!is_seen(sequence, n_first + row, 1)", "!is_seen(sequence, n_first + row - 1, 2)"
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="tile_taken_for_one_without_hidden_keys",
        call="window",
        edits=swap(
            "n_first + TILE_N <= sequence.end[i];", "n_first + TILE_N <= sequence.end[i] + 8;"
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="hidden_keys_gathered",
        call="gather",
        edits=swap("(seen >> key & 1) * 16", "16"),
        kinds=(WRONG_RESULT, "out_of_bounds"),
    ),
    # ---- the cut ----
    CacheFault(
        name="both_parts_of_a_group_in_one_slot",
        call="window",
        edits=swap("(position > group * cut.steps_per_group ? 1 : 0)", "0"),
        kinds=("written_twice",),
        words=("workspace",),
    ),
    CacheFault(
        name="parts_of_all_row_tiles_in_one_place",
        call="tiles",
        edits=swap("first_row + row_tile * TILE_M;", "first_row;"),
        kinds=("written_twice",),
        words=("workspace",),
    ),
    CacheFault(
        name="parts_of_heads_overlap",
        call="window",
        edits=swap(
            "(slot * params.num_heads + hk * params.heads_per_group)",
            "(slot * params.num_heads + hk)",
        ),
        kinds=("written_twice",),
        words=("workspace",),
    ),
    CacheFault(
        name="a_part_taken_for_the_whole",
        call="window",
        edits=swap("walk.begin == 0 && walk.end == walk.sequence.steps", "walk.begin == 0"),
        kinds=(WRONG_RESULT, "uninitialised"),
    ),
    CacheFault(
        name="sequences_do_not_count_for_a_step",
        call="window",
        edits=swap("warp_add(steps) + params.batch", "warp_add(steps)"),
        kinds=LOST,
    ),
    CacheFault(
        name="shares_rounded_down",
        call="window",
        edits=swap(
            "(cut.total_steps + params.num_groups - 1) / params.num_groups",
            "cut.total_steps / params.num_groups",
        ),
        kinds=LOST,
    ),
    CacheFault(
        name="a_step_of_the_next_group",
        call="window",
        edits=swap("walk.group_end - walk.position;", "walk.group_end - walk.position + 1;"),
        kinds=(WRONG_RESULT, "written_twice", "uninitialised"),
    ),
    CacheFault(
        name="group_begins_where_its_sequence_ends",
        call="window",
        edits=swap("begin = shuffle_from(end - own, owner);", "begin = shuffle_from(end, owner);"),
        kinds=(*LOST, "written_twice", "uninitialised", "out_of_bounds"),
    ),
    CacheFault(
        name="sequences_of_a_lane_not_told_apart",
        call="long",
        edits=swap("b += lowest_bit(found);", ""),
        kinds=(*LOST, "written_twice", "uninitialised"),
    ),
    CacheFault(
        name="empty_sequences_left_out",
        call="contiguous",
        edits=swap("(part.index > 0 && walk.begin >= walk.end)", "(walk.begin >= walk.end)"),
        kinds=LOST,
    ),
    CacheFault(
        name="last_part_forgotten",
        call="contiguous",
        edits=swap(
            "parts.count = (steps + part_steps(params, steps) - 1) / part_steps(params, steps);",
            "parts.count = steps / part_steps(params, steps);",
        ),
        kinds=LOST,
    ),
    CacheFault(
        name="last_part_of_a_share_forgotten",
        call="window",
        edits=swap("/ cut.steps_per_group - item + 1;", "/ cut.steps_per_group - item;"),
        kinds=LOST,
    ),
    CacheFault(
        name="a_whole_sequence_at_a_boundary_taken_for_a_cut_one",
        call="aligned",
        edits=swap("parts.position < boundary &&", "parts.position <= boundary &&"),
        kinds=(WRONG_RESULT, "uninitialised"),
    ),
    CacheFault(
        name="sequence_added_up_once_a_boundary",
        call="few",
        edits=swap("parts.position >= item * cut.steps_per_group && ", ""),
        kinds=("written_twice",),
    ),
    CacheFault(
        name="heads_and_queries_exchanged_in_the_sum",
        call="window",
        edits=swap(
            "u32 m = row / params.heads_per_group;"
            " const u32 h = hk * params.heads_per_group + row % params.heads_per_group;",
            "u32 m = row % params.seqlen_q;"
            " const u32 h = hk * params.heads_per_group + row / params.seqlen_q;",
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="parts_added_with_the_weight_of_the_first",
        call="contiguous",
        edits=swap("exp2_approx(lse[j] - reference);", "exp2_approx(lse[0] - reference);"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="every_warp_of_a_row_adds_the_first_parts",
        call="sequences",
        edits=swap("u32 first = member * PARTS_AHEAD;", "u32 first = 0;"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="every_warp_of_a_row_stores",
        call="sequences",
        edits=drop("if (member > 0) { return; }"),
        kinds=WRITES,
    ),
    CacheFault(
        name="warps_merged_without_their_references",
        call="contiguous",
        edits=swap(
            "exp2_approx(references[w] - guarded);", "references[w] == -infinity() ? 0.0f : 1.0f;"
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="o_of_a_warp_without_a_tile",
        call="window",
        edits=swap("places[w] != 0 ? from : smem + SMEM_STATES", "from"),
        kinds=("out_of_bounds", "uninitialised"),
    ),
    CacheFault(
        name="lse_stored_by_every_warp",
        call="window",
        edits=swap("if (step == 0 && lane % 4 == 0) {", "if (lane % 4 == 0) {"),
        kinds=("written_twice",),
    ),
    CacheFault(
        name="parts_of_a_fixed_cut_in_one_slot",
        call="invariant",
        edits=swap(
            "walk.b * params.splits + walk.begin / part_steps", "walk.b + walk.begin / part_steps"
        ),
        kinds=("written_twice", WRONG_RESULT),
    ),
    CacheFault(
        name="a_part_of_a_fixed_cut_has_two_owners",
        call="invariant",
        edits=swap(
            "walk.position + walk.end < walk.group_end",
            "walk.position + walk.end <= walk.group_end",
        ),
        kinds=("written_twice",),
    ),
    # ---- scales, sinks, bands ----
    CacheFault(
        name="sink_counted_once_a_part",
        call="sink",
        edits=swap("if (is_whole) { finish_row", "if (true) { finish_row"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="overlapping_bands_computed_twice",
        call="bands",
        edits=swap(
            "sequence.first[i] = sequence.first[i] > last[i - 1] ? sequence.first[i]"
            " : last[i - 1];",
            ";",
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="scale_of_the_key_in_another_page",
        call="token",
        edits=swap(
            "shuffle_from(u32(loads.page), lane / BOX_ROWS)", "shuffle_from(u32(loads.page), 0)"
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="scale_of_another_head",
        call="token",
        edits=swap("hk * params.v_scale_stride_h", "0 * params.v_scale_stride_h"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="scale_beyond_the_page",
        call="token",
        edits=swap("const u32 row = n % PAGE_SIZE; loads", "const u32 row = n; loads"),
        kinds=(WRONG_RESULT, "out_of_bounds"),
    ),
    CacheFault(
        name="scales_of_hidden_keys_read",
        call="token",
        edits=swap(
            "if (u64(page) < params.num_pages && is_seen(loads.walk.sequence, n, 1))"
            " { loads.k_scale",
            "{ loads.k_scale",
        ),
        kinds=(WRONG_RESULT, "out_of_bounds"),
    ),
    CacheFault(
        name="values_with_the_scales_of_keys",
        call="token",
        edits=swap(
            "scale_values(s, o, o_exponent, scales + TILE_N * 4);",
            "scale_values(s, o, o_exponent, scales);",
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="o_not_moved_with_its_exponent",
        call="token",
        edits=swap(
            "{ o[i] *= alpha; } o_exponent = exponent;", "{ o[i] *= 1.0f; } o_exponent = exponent;"
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="scale_of_another_sequence",
        call="head",
        edits=swap("b * params.k_scale_stride_b", "0 * params.k_scale_stride_b"),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="scale_of_values_left_out_of_a_warp",
        call="head",
        edits=swap(
            "weights[w] *= load_shared_f32(smem + SMEM_FACTORS + w * 4);",
            "weights[w] *= 1.0f;",
        ),
        kinds=(WRONG_RESULT,),
    ),
    CacheFault(
        name="numbers_read_as_unsigned",
        call="head",
        edits=swap("const u32 biased = four ^ 0x80808080;", "const u32 biased = four;"),
        kinds=(WRONG_RESULT,),
    ),
)

BENIGN = (
    CacheBenign(
        name="no_wait_for_copies_at_the_end",
        call="gather",
        edits=drop("copy_async_wait<0>();"),
        why="every tile whose copy was started has been waited for; what is left are empty groups",
    ),
    CacheBenign(
        name="queries_of_rows_that_do_not_exist",
        call="window",
        edits=swap(
            "rows.exists[half] ? load_global_u32(row + 8 * i) : 0", "load_global_u32(row + 8 * i)"
        ),
        why="they are the last query's, and their results are not stored",
    ),
    CacheBenign(
        name="no_dependents_launched",
        call="window",
        edits=drop("launch_dependents();", EVERY),
        why="the end of a block does the same, only later",
    ),
    CacheBenign(
        name="no_warp_sync_after_a_step",
        call="window",
        edits=swap(
            "gemm_pv(o, p, tile + K_TILE_BYTES); warp_sync();",
            "gemm_pv(o, p, tile + K_TILE_BYTES);",
        ),
        why="not seen: a matrix instruction is a meeting of all lanes, and clocks are a warp's",
    ),
)
