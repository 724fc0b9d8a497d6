"""Planted faults: small edits of emitted files, and the diagnosis that each must get.

An edit must match a stated number of times, so that a change of a template cannot disarm a fault
unseen: the test fails and asks for the table to be kept in step.
"""

import re
from dataclasses import dataclass

WRONG_RESULT = "wrong result"  # no alarm, but O or LSE differ from float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One replacement in an emitted file; any white space matches any other.

    Attributes:
        old: the text to find.
        new: what stands there instead.
        count: how often `old` occurs; None means at least once.
        only: the occurrence to replace, from 0; None means all.
    """

    old: str
    new: str
    count: int | None = 1
    only: int | None = None

    def apply(self, text: str) -> str:
        """Return the edited text.

        Raises:
            AssertionError: the text does not hold `old` as often as it should.
        """
        found = list(re.finditer(r"\s+".join(map(re.escape, self.old.split())), text))
        if self.count is None:
            assert found, f"{self.old!r} does not occur"
        else:
            assert len(found) == self.count, f"{self.old!r} occurs {len(found)} times"
        chosen = found if self.only is None else [found[self.only]]
        for match in reversed(chosen):
            text = text[: match.start()] + self.new + text[match.end() :]
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Some edits of one file under a name."""

    name: str
    edits: tuple[Edit, ...]

    def apply(self, text: str) -> str:
        """Return an emitted file with all edits."""
        for edit in self.edits:
            text = edit.apply(text)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Change):
    """One fault.

    Attributes:
        name: what is wrong, as an identifier.
        edits: what makes it so.
        kinds: the kinds of alarm that name it rightly, or WRONG_RESULT.
        words: each alarm's message holds one of these.
        magnitude: of the queries; large ones force the softmax to move its reference.
    """

    kinds: tuple[str, ...]
    words: tuple[str, ...] = ("",)
    magnitude: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Benign(Change):
    """An edit that looks like a fault and raises no alarm, and why.

    Either it is none, or the emulator does not see it ("not seen: ..."): then an emulator that
    learns to see it fails the test, and the entry moves up to the faults.
    """

    why: str


def drop(old: str, count: int | None = 1, only: int | None = None) -> tuple[Edit, ...]:
    """Return the edit that removes a statement."""
    return (Edit(old=old, new=";", count=count, only=only),)


def swap(old: str, new: str, count: int | None = 1, only: int | None = None) -> tuple[Edit, ...]:
    """Return the edit that replaces one text by another."""
    return (Edit(old=old, new=new, count=count, only=only),)


K_FULL = "wait_full<STAGES>(smem + K_FULL, steps);"
V_FULL = "wait_full<STAGES>(smem + V_FULL, steps - 1);"
Q_FULL = "wait_full<Q_STAGES>(smem + Q_FULL, tiles"
O_FULL = "wait_full<Q_STAGES>(smem + O_FULL, tiles);"
WAIT_EMPTY = "mbarrier_wait(empty + "
RELEASE_K = "release<STAGES>(smem + K_EMPTY, steps);"
RELEASE_V = "release<STAGES>(smem + V_EMPTY, steps - 1);"
RELEASE_O = "release<Q_STAGES>(smem + O_FULL, tiles);"
EVERY = None  # all occurrences, at least one
UNORDERED = ("race", "uninitialised")

SM90 = (
    # ---- waits ----
    Fault(
        name="no_wait_for_k_full",
        edits=drop(K_FULL, EVERY),
        kinds=UNORDERED,
        words=("SMEM_K",),
    ),
    Fault(
        name="no_wait_for_k_full_in_the_inner_loop",
        edits=swap(
            "--n_tile; issue_step(smem, group, steps, q_rows, s, p, o);",
            f"--n_tile; issue_qk(smem, steps, q_rows, s); {V_FULL}"
            " issue_pv(smem, steps - 1, p, o);",
            EVERY,
            only=-1,
        ),
        kinds=UNORDERED,
        words=("SMEM_K",),
    ),
    Fault(
        name="no_wait_for_v_full",
        edits=drop(V_FULL, EVERY),
        kinds=UNORDERED,
        words=("SMEM_V",),
    ),
    Fault(
        name="no_wait_for_the_last_v_full",
        edits=drop(V_FULL, EVERY, only=-1),
        kinds=UNORDERED,
        words=("SMEM_V",),
    ),
    Fault(
        name="no_wait_for_q_full",
        edits=swap(Q_FULL, "(void)(tiles", EVERY),
        kinds=UNORDERED,
        words=("SMEM_Q",),
    ),
    Fault(
        name="no_wait_for_q_empty",
        edits=swap(WAIT_EMPTY, "if (empty != smem_base() + Q_EMPTY) " + WAIT_EMPTY),
        kinds=("race", "barrier"),  # as with K
        words=("SMEM_Q", "Q_FULL"),
    ),
    Fault(
        name="no_wait_for_k_empty",
        edits=swap(WAIT_EMPTY, "if (empty != smem_base() + K_EMPTY) " + WAIT_EMPTY),
        kinds=("race", "barrier"),  # the producer may lap the loads that are still in flight
        words=("SMEM_K", "K_FULL"),
    ),
    Fault(
        name="no_wait_for_v_empty",
        edits=swap(WAIT_EMPTY, "if (empty != smem_base() + V_EMPTY) " + WAIT_EMPTY),
        kinds=("race", "barrier"),  # as with K
        words=("SMEM_V", "V_FULL"),
    ),
    Fault(name="no_wait_for_o_full", edits=drop(O_FULL), kinds=UNORDERED, words=("SMEM_Q",)),
    # ---- phases ----
    Fault(
        name="wrong_phase_of_every_full_barrier",
        edits=swap(
            "mbarrier_wait(barriers + use % COUNT * BARRIER_BYTES, use / COUNT % 2);",
            "mbarrier_wait(barriers + use % COUNT * BARRIER_BYTES, use / COUNT % 2 ^ 1);",
        ),
        kinds=(*UNORDERED, "deadlock"),
    ),
    Fault(
        name="wrong_phase_of_k_full",
        edits=swap(K_FULL, "wait_full<STAGES>(smem + K_FULL, steps + STAGES);", EVERY),
        kinds=(*UNORDERED, "deadlock"),
        words=("SMEM_K", "K_FULL"),
    ),
    Fault(
        name="wrong_phase_of_every_empty_barrier",
        edits=swap("use / COUNT % 2 ^ 1);", "use / COUNT % 2);"),
        kinds=("deadlock",),
        words=("_EMPTY",),
    ),
    Fault(
        name="phase_that_never_turns",
        edits=swap("use / COUNT % 2);", "0);"),
        kinds=(*UNORDERED, "deadlock"),
    ),
    # ---- arrivals ----
    Fault(
        name="no_release_of_k",
        edits=drop(RELEASE_K, EVERY),
        kinds=("deadlock",),
        words=("K_EMPTY",),
    ),
    Fault(
        name="no_release_of_the_first_k",
        edits=drop(RELEASE_K, EVERY, only=0),
        kinds=("deadlock", "race"),
        words=("K_EMPTY", "SMEM_K"),
    ),
    Fault(
        name="no_release_of_v",
        edits=drop(RELEASE_V, EVERY),
        kinds=("deadlock",),
        words=("V_EMPTY",),
    ),
    Fault(name="no_release_of_o", edits=drop(RELEASE_O), kinds=("deadlock",), words=("O_FULL",)),
    Fault(
        name="no_release_of_q",
        edits=drop("mbarrier_arrive(smem + Q_EMPTY + tiles % Q_STAGES * BARRIER_BYTES);"),
        kinds=("deadlock",),
        words=("Q_EMPTY",),
    ),
    Fault(
        name="release_of_k_twice",
        edits=swap(RELEASE_K, RELEASE_K + RELEASE_K, EVERY),
        kinds=("race", "deadlock", "barrier"),
        words=("K_EMPTY", "SMEM_K", "K_FULL"),
    ),
    Fault(
        name="half_of_the_bytes_expected",
        edits=swap("tx(barrier, BOXES * BOX_BYTES);", "tx(barrier, BOXES * BOX_BYTES / 2);"),
        kinds=("deadlock", "barrier", *UNORDERED),
    ),
    Fault(
        name="more_bytes_expected_than_come",
        edits=swap("tx(barrier, BOXES * BOX_BYTES);", "tx(barrier, BOXES * BOX_BYTES + 16);"),
        kinds=("deadlock",),
        words=("bytes pending",),
    ),
    Fault(
        name="one_arrival_too_many_expected",
        edits=swap(
            "mbarrier_init(smem + K_EMPTY + stage * BARRIER_BYTES, CONSUMER_WARPS);",
            "mbarrier_init(smem + K_EMPTY + stage * BARRIER_BYTES, CONSUMER_WARPS + 1);",
        ),
        kinds=("deadlock", "race"),
        words=("K_EMPTY", "SMEM_K"),
    ),
    Fault(
        name="one_arrival_too_few_expected",
        edits=swap(
            "mbarrier_init(smem + K_EMPTY + stage * BARRIER_BYTES, CONSUMER_WARPS);",
            "mbarrier_init(smem + K_EMPTY + stage * BARRIER_BYTES, CONSUMER_WARPS - 1);",
        ),
        kinds=("race", "barrier", "deadlock"),
        words=("K_EMPTY", "SMEM_K"),
    ),
    # ---- matrix instructions ----
    Fault(
        name="no_wait_for_the_first_s",
        edits=drop("wgmma_wait<0>(); softmax_first_step", 1),
        kinds=("matrix", "race"),
    ),
    Fault(name="no_wait_for_s", edits=drop("wgmma_wait<1>();", EVERY), kinds=("matrix", "race")),
    Fault(
        name="wait_for_s_one_group_short",
        edits=swap("wgmma_wait<1>();", "wgmma_wait<2>();", EVERY),
        kinds=("matrix", "race"),
    ),
    Fault(
        name="no_wait_for_o_before_it_is_rescaled",
        edits=swap(
            "wgmma_wait<0>(); rescale(s, o, reference, sum, params.scale_log2); softmax_masked",
            "rescale(s, o, reference, sum, params.scale_log2); softmax_masked",
        ),
        kinds=("matrix",),
        words=("wait is missing",),
    ),
    Fault(
        name="no_wait_before_v_is_released",
        edits=swap("wgmma_wait<0>(); " + RELEASE_V, RELEASE_V, EVERY),
        kinds=("matrix", "race", "divergence"),
    ),
    Fault(
        name="no_wait_for_the_last_o",
        edits=drop("wgmma_wait<0>();", EVERY, only=-1),
        kinds=("matrix", "race"),
    ),
    Fault(
        name="no_fence_before_wgmma",
        edits=swap("; wgmma_fence();", ";", EVERY),
        kinds=("matrix",),
        words=("wgmma_fence",),
    ),
    Fault(
        name="no_fence_before_s",
        edits=swap("; wgmma_fence();", ";", EVERY, only=0),
        kinds=("matrix",),
        words=("wgmma_fence",),
    ),
    Fault(
        name="no_fence_before_o",
        edits=swap("; wgmma_fence();", ";", EVERY, only=1),
        kinds=("matrix",),
        words=("wgmma_fence",),
        magnitude=60.0,
    ),
    Fault(
        name="no_commit_of_s",
        edits=drop("wgmma_commit();", EVERY, only=0),
        kinds=("matrix", "race", "unfinished"),
    ),
    Fault(
        name="wrong_swizzle_of_k",
        edits=swap("u64 k = descriptor_k_major(", "u64 k = 3ull << 62 ^ descriptor_k_major("),
        kinds=(WRONG_RESULT, "misaligned"),
        words=("descriptor", ""),
    ),
    Fault(
        name="wrong_swizzle_of_v",
        edits=swap("descriptor_k_major(KV_BOX", "3ull << 62 ^ descriptor_k_major(KV_BOX"),
        kinds=(WRONG_RESULT, "misaligned", *UNORDERED),
    ),
    Fault(
        name="no_swizzle_of_k",
        edits=swap("u64 k = descriptor_k_major(", "u64 k = 1ull << 62 ^ descriptor_k_major("),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="wrong_stride_in_the_descriptor_of_v",
        edits=swap("descriptor_k_major(KV_BOX", "96ull << 32 ^ descriptor_k_major(KV_BOX"),
        kinds=(WRONG_RESULT,),
    ),
    # ---- tiles handed back too early ----
    Fault(
        name="k_released_before_s_is_complete",
        edits=(
            *swap(RELEASE_K, ";", EVERY),
            *swap(
                "step > 0); } wgmma_commit();",
                "step > 0); } wgmma_commit(); release<STAGES>(smem + K_EMPTY, use);",
            ),
        ),
        kinds=("race", "barrier"),
        words=("SMEM_K", "K_FULL"),
    ),
    Fault(
        name="k_released_before_s_is_complete_in_masked_steps",
        edits=swap(
            f"wgmma_wait<1>(); {RELEASE_K} mask_scores",
            f"{RELEASE_K} wgmma_wait<1>(); mask_scores",
        ),
        kinds=("race",),
        words=("SMEM_K",),
    ),
    Fault(
        name="v_released_before_o_is_complete",
        edits=swap(f"wgmma_wait<0>(); {RELEASE_V}", f"{RELEASE_V} wgmma_wait<0>();", EVERY),
        kinds=("race",),
        words=("SMEM_V",),
    ),
    Fault(
        name="o_handed_over_before_it_is_staged",
        edits=(
            *swap("proxy_fence(); warp_sync(); " + RELEASE_O, ";"),
            *swap(
                "sync(1 + group, GROUP_THREADS); stage_output(o,",
                f"sync(1 + group, GROUP_THREADS); proxy_fence(); warp_sync(); {RELEASE_O}"
                " stage_output(o,",
            ),
        ),
        kinds=("race", "proxy", "uninitialised"),
        words=("SMEM_Q",),
    ),
    # ---- fences and meetings ----
    Fault(
        name="no_proxy_fence_before_o_is_sent",
        edits=swap("; proxy_fence();", ";"),
        kinds=("proxy",),
        words=("proxy fence",),
    ),
    Fault(
        name="no_warp_sync_before_o_is_handed_over",
        edits=swap("; warp_sync();", ";"),
        kinds=("proxy", "race"),
        words=("SMEM_Q",),
    ),
    Fault(
        name="no_meeting_after_the_barriers_are_initialised",
        edits=swap("} block_sync();", "}"),
        kinds=("race", "barrier"),
        words=("barrier",),
    ),
    Fault(
        name="no_fence_after_the_barriers_are_initialised",
        edits=swap("} mbarrier_init_fence();", "}"),
        kinds=("barrier", "proxy"),
        words=("init",),
    ),
    Fault(
        name="no_wait_until_o_has_been_read",
        edits=swap("; tma_store_wait_read();", ";"),
        kinds=("race", "unfinished"),
        words=("SMEM_Q", "tma_store_wait_read"),
    ),
    Fault(
        name="no_commit_of_the_store_of_o",
        edits=swap("} tma_store_commit();", "}"),
        kinds=("race", "unfinished"),
        words=("SMEM_Q", "tma_store_commit"),
    ),
    Fault(
        name="named_barrier_with_a_warp_too_few",
        edits=swap(
            "named_barrier_sync(1 + group, GROUP_THREADS);",
            "if (thread_index() % 128 >= 32) named_barrier_sync(1 + group, GROUP_THREADS);",
        ),
        kinds=("deadlock",),
        words=("named",),
    ),
    # ---- places ----
    Fault(
        name="k_from_the_tile_next_door",
        edits=swap("map, n_tile * TILE_N, hk", "map, (n_tile + (TILES == SMEM_K)) * TILE_N, hk"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="key_head_of_the_query_head",
        edits=swap(
            "query_head(params, tile) / params.heads_per_group)", "query_head(params, tile))"
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="q_one_row_too_far",
        edits=swap("&params.q_map, tile.m_first,", "&params.q_map, tile.m_first + 1,"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="o_one_row_too_far",
        edits=swap("i32(tile.m_first),", "i32(tile.m_first + 1),"),
        kinds=("unwritten", "written_twice"),
    ),
    Fault(
        name="lse_one_row_too_many",
        edits=swap("if (m < params.seqlen_q) {", "if (m <= params.seqlen_q) {"),
        kinds=("out_of_bounds", "written_twice"),
        words=("store_global_f32", "lse"),
    ),
    Fault(
        name="two_threads_produce",
        edits=swap("if (thread_index() == 0) { load", "if (thread_index() < 2) { load"),
        kinds=("barrier", "race", "deadlock"),
    ),
    # ---- arithmetic ----
    Fault(
        name="one_key_too_many_visible",
        edits=swap("i % 2) < ends[", "i % 2) <= ends["),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="one_key_too_few_visible",
        edits=swap("i % 2) < ends[", "i % 2) + 1 < ends["),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="one_key_tile_too_few",
        edits=swap(
            "m_end - 1), 0, n_end)) + TILE_N - 1) / TILE_N",
            "m_end - 1), 0, n_end))) / TILE_N",
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="one_step_unmasked_that_is_not",
        edits=swap(
            "i32(tile.m_first)), 0, n_end)) / TILE_N;",
            "i32(tile.m_first)), 0, n_end)) / TILE_N + 1;",
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="wrong_column_of_a_lane",
        edits=swap("return thread_index() % 4 * 2;", "return thread_index() % 4;"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="probabilities_packed_in_the_wrong_order",
        edits=swap("pack_bf16x2(s[2 * i], s[2 * i + 1])", "pack_bf16x2(s[2 * i + 1], s[2 * i])"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="o_staged_without_the_swizzle",
        edits=swap("(chunk % 8 ^ row % 8) * 16", "chunk % 8 * 16"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="o_not_rescaled",
        edits=swap("o[i] *= alpha[i / 2 % 2];", "o[i] *= 1.0f;"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="overflow_not_noticed",
        edits=swap("return !(step_sum[0] < limit && step_sum[1] < limit);", "return false;"),
        kinds=(WRONG_RESULT,),
        magnitude=60.0,
    ),
    Fault(
        name="overflow_repaired_with_the_old_reference",
        edits=swap("rescale(s, o, reference, sum, params.scale_log2); step_sum[0]", "step_sum[0]"),
        kinds=(WRONG_RESULT,),
        magnitude=60.0,
    ),
    Fault(
        name="overflow_repaired_by_a_warp_alone",
        edits=swap("group_any(group, overflows", "warp_any(overflows", EVERY),
        kinds=("deadlock", "divergence", "race", "matrix"),
        magnitude=60.0,
    ),
    Fault(
        name="row_maximum_of_half_a_row",
        edits=swap("x = maximum(x, shuffle_xor(x, 2));", ";"),
        kinds=(WRONG_RESULT, "race", "matrix", "divergence"),
        magnitude=60.0,
    ),
    Fault(
        name="row_sum_of_half_a_row",
        edits=swap("sum[i] += shuffle_xor(sum[i], 2);", ";"),
        kinds=(WRONG_RESULT,),
    ),
)

SM90_BENIGN = (
    Benign(
        name="no_named_barrier_before_o_is_staged",
        edits=drop("named_barrier_sync(1 + group, GROUP_THREADS);"),
        why="a warp stages its O over the sixteen rows of Q that it alone multiplies, and its wait"
        " for S covered the whole warpgroup's products",
    ),
)

GFX942 = (
    # ---- LDS ----
    Fault(
        name="lds_read_before_its_write_has_landed",
        edits=swap("; wait_lds();", ";", EVERY),
        kinds=("race",),
        words=("ds_write_b128",),
    ),
    Fault(
        name="first_lds_read_before_its_write_has_landed",
        edits=swap("; wait_lds();", ";", EVERY, only=0),
        kinds=("race",),
        words=("ds_write_b128",),
    ),
    Fault(
        name="lds_read_before_its_write_has_landed_in_masked_steps",
        edits=swap("; wait_lds();", ";", EVERY, only=-1),
        kinds=("race",),
        words=("ds_write_b128",),
    ),
    Fault(
        name="no_wait_before_the_first_barrier_but_after_it",
        edits=swap("wait_lds(); block_barrier();", "block_barrier(); wait_lds();", EVERY, only=0),
        kinds=("race",),
        words=("ds_write_b128",),
    ),
    Fault(
        name="no_barrier_at_all",
        edits=swap("; block_barrier();", ";", EVERY),
        kinds=UNORDERED,
        words=("ds_read_b128", "ds_write_b128"),
    ),
    Fault(
        name="no_barrier_before_the_first_step",
        edits=swap("; block_barrier();", ";", EVERY, only=0),
        kinds=UNORDERED,
        words=("ds_read_b128", "ds_write_b128"),
    ),
    Fault(
        name="no_barrier_in_unmasked_steps",
        edits=swap("; block_barrier();", ";", EVERY, only=1),
        kinds=UNORDERED,
        words=("ds_read_b128", "ds_write_b128"),
    ),
    Fault(
        name="no_barrier_in_masked_steps",
        edits=swap("; block_barrier();", ";", EVERY, only=-1),
        kinds=UNORDERED,
        words=("ds_read_b128", "ds_write_b128"),
    ),
    Fault(
        name="barrier_that_one_wave_skips",
        edits=swap("; block_barrier();", "; if (wave != 0) block_barrier();", EVERY, only=0),
        kinds=("race", "uninitialised", "deadlock"),
    ),
    Fault(
        name="one_stage_only",
        edits=drop("stage ^= 1;", EVERY),
        kinds=UNORDERED,
        words=("ds_read_b128", "ds_write_b128"),
    ),
    Fault(
        name="one_stage_only_in_masked_steps",
        edits=drop("stage ^= 1;", EVERY, only=-1),
        kinds=("race", WRONG_RESULT),
    ),
    Fault(
        name="stages_that_overlap",
        edits=swap(
            "stage * V_TILE_BYTES); wait_lds", "stage * V_TILE_BYTES - 16); wait_lds", EVERY
        ),
        kinds=("race", WRONG_RESULT),
    ),
    Fault(
        name="lds_address_not_aligned",
        edits=swap("column * 16, tile.k[i]);", "column * 16 + 8, tile.k[i]);"),
        kinds=("misaligned",),
        words=("ds_write_b128",),
    ),
    # ---- lane maps ----
    Fault(
        name="accumulator_rows_of_the_other_half_wave_in_the_epilogue",
        edits=swap(
            "row_bytes(params.o_stride_m) + lane_eight() * 2",
            "row_bytes(params.o_stride_m) + (8 - lane_eight()) * 2",
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="accumulator_elements_out_of_order_in_the_epilogue",
        edits=swap(
            "const u32 element = i % 2 * 8 + 2 * j; eight",
            "const u32 element = i % 2 * 8 + (2 * j ^ 2); eight",
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="operand_rows_not_permuted",
        edits=swap("return (row & 0x13u) | (row & 4u) << 1 | (row & 8u) >> 1;", "return row;"),
        kinds=(WRONG_RESULT, "race", "uninitialised"),
    ),
    Fault(
        name="wrong_eight_of_a_lane",
        edits=swap("return thread_index() % 64 / 32 * 8;", "return thread_index() % 64 / 32 * 4;"),
        kinds=(WRONG_RESULT, "misaligned", "written_twice"),
    ),
    Fault(
        name="halves_of_v_exchanged",
        edits=swap("odd ? 0x07060302u : 0x05040100u", "odd ? 0x05040100u : 0x07060302u"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="k_written_with_another_swizzle",
        edits=swap(
            "thread % K_EIGHTS ^ k_swizzle(n_row)", "thread % K_EIGHTS ^ k_swizzle(n_row + 1)"
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="v_written_with_another_swizzle",
        edits=swap("^ v_swizzle(dv_row)", "^ v_swizzle(dv_row ^ 2)"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="second_half_of_a_fragment_twice",
        edits=swap(
            "mfma_32x32x8_bf16(four_of(v, 0), four_of(p[i], 0), o[block])",
            "mfma_32x32x8_bf16(four_of(v, 1), four_of(p[i], 1), o[block])",
        ),
        kinds=(WRONG_RESULT,),
    ),
    # ---- bounds ----
    Fault(
        name="o_stored_one_row_too_many",
        edits=swap(
            "row_buffer(heads.o, params.o_stride_m, heads.seqlen_q,",
            "row_buffer(heads.o, params.o_stride_m, heads.seqlen_q + 1,",
        ),
        kinds=("out_of_bounds", "written_twice"),
        words=("buffer_store_dwordx4", "out"),
    ),
    Fault(
        name="o_stored_without_a_limit",
        edits=swap(
            "row_buffer(heads.o, params.o_stride_m, heads.seqlen_q,",
            "row_buffer(heads.o, params.o_stride_m, ~0u,",
        ),
        kinds=("out_of_bounds", "written_twice"),
        words=("buffer_store_dwordx4", "out"),
    ),
    Fault(
        name="lse_stored_one_row_too_many",
        edits=swap("m >= tile.seqlen_q) {", "m > tile.seqlen_q) {"),
        kinds=("out_of_bounds", "written_twice"),
        words=("global_store_dword", "lse"),
    ),
    Fault(
        name="keys_loaded_without_a_limit",
        edits=swap(
            "row_buffer(heads.k, params.k_stride_n, heads.seqlen_k,",
            "row_buffer(heads.k, params.k_stride_n, ~0u,",
        ),
        kinds=("out_of_bounds",),
        words=("buffer_load_dwordx4",),
    ),
    Fault(
        name="values_loaded_one_row_too_many",
        edits=swap(
            "row_buffer(heads.v, params.v_stride_n, heads.seqlen_k,",
            "row_buffer(heads.v, params.v_stride_n, heads.seqlen_k + 1,",
        ),
        kinds=("out_of_bounds",),
        words=("buffer_load_dword",),
    ),
    Fault(
        name="queries_of_the_wave_next_door",
        edits=swap(
            "load_query(q, params, heads, m_wave);",
            "load_query(q, params, heads, m_wave ^ WAVE_ROWS);",
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="key_head_of_the_query_head",
        edits=swap("tile.head / params.heads_per_group", "tile.head"),
        kinds=("out_of_bounds", WRONG_RESULT),
    ),
    # ---- arithmetic ----
    Fault(
        name="one_key_too_many_visible",
        edits=swap("static_cast<i32>(j) < left", "static_cast<i32>(j) <= left"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="one_key_too_few_visible",
        edits=swap("static_cast<i32>(j) < left", "static_cast<i32>(j) < left - 1"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="one_key_tile_too_few",
        edits=swap(
            "(visible_keys(tile, m_end - 1) + TILE_N - 1) / TILE_N",
            "visible_keys(tile, m_end - 1) / TILE_N",
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="one_step_unmasked_that_is_not",
        edits=swap(
            "visible_keys(tile, m_first) / TILE_N", "visible_keys(tile, m_first) / TILE_N + 1"
        ),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="row_maximum_of_half_a_row",
        edits=swap("largest = maximum(largest, shuffle_xor(largest, 32));", ";"),
        kinds=(WRONG_RESULT,),
        magnitude=60.0,
    ),
    Fault(
        name="row_sum_of_half_a_row",
        edits=swap("row.sum + shuffle_xor(row.sum, 32)", "row.sum * 2.0f"),
        kinds=(WRONG_RESULT,),
    ),
    Fault(
        name="o_not_rescaled",
        edits=swap("o[i / 16][i % 16] *= alpha;", "o[i / 16][i % 16] *= 1.0f;"),
        kinds=(WRONG_RESULT,),
        magnitude=60.0,
    ),
    Fault(
        name="o_not_cleared",
        edits=swap("; clear(o);", ";"),
        kinds=("uninitialised",),
        words=("register that nobody wrote",),
    ),
)

GFX942_BENIGN: tuple[Benign, ...] = ()
