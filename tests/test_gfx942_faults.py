"""Faults planted in a gfx942 kernel: each is found by every seed, and called what it is."""

import dataclasses

import pytest
from gfx942_planted import Bed
from gfx942_runs import Sizes, plan_of

from fmhagen.spec import AttentionSpec

PLAN = plan_of(AttentionSpec(head_dim=64, causal=True), tile_m=128, tile_n=64, consumers=4)
BED = Bed(plan=PLAN, sizes=Sizes(heads=2, seqlen_q=100, seqlen_k=150), seeds=20)

LOOP_END = "    wait_lds();\n    block_barrier();\n    ++n_tile;\n"
PROLOGUE_END = "  wait_lds();\n  block_barrier();\n\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault.

    Attributes:
        name: what was done.
        old, new: text of the emitted file, and what stands in its place.
        kinds: what the emulator may call it; "numbers" if only they tell.
        words: what its message must say.
    """

    name: str
    old: str
    new: str
    kinds: tuple[str, ...] = ("numbers",)
    words: tuple[str, ...] = ()


FAULTS = (
    Fault(
        name="no barrier in the loop",
        old=LOOP_END,
        new=LOOP_END.replace("    block_barrier();\n", ""),
        kinds=("race", "uninitialised"),
        words=("ds_read_b128", "SMEM_"),
    ),
    Fault(
        name="no barrier before the loop",
        old=PROLOGUE_END,
        new="  wait_lds();\n\n",
        kinds=("race", "uninitialised"),
        words=("ds_read_b128", "SMEM_"),
    ),
    Fault(
        name="no wait for LDS writes in the loop",
        old=LOOP_END,
        new=LOOP_END.replace("    wait_lds();\n", ""),
        kinds=("race",),
        words=("is not ordered after the write of ds_write_b128", "SMEM_"),
    ),
    Fault(
        name="no wait for LDS writes before the loop",
        old=PROLOGUE_END,
        new="  block_barrier();\n\n",
        kinds=("race",),
        words=("is not ordered after the write of ds_write_b128", "SMEM_"),
    ),
    Fault(
        name="one stage for two tiles",
        old="    stage ^= 1;\n",
        new="",
        kinds=("race",),
        words=("ds_write_b128", "ds_read_b128", "SMEM_K"),
    ),
    Fault(
        name="wrong lane map in the epilogue",
        old="const u32 element = i % 2 * 8 + 2 * j;",
        new="const u32 element = i % 2 * 4 + 2 * j;",
    ),
    Fault(
        name="wrong lane map of K",
        old="const u32 row = operand_row(thread_index() % 32);\n  clear(s);",
        new="const u32 row = thread_index() % 32;\n  clear(s);",
    ),
    Fault(
        name="one key too many in the mask",
        old="static_cast<i32>(j) < left ?",
        new="static_cast<i32>(j) <= left ?",
    ),
    Fault(
        name="one key too few in the mask",
        old="static_cast<i32>(j) < left ?",
        new="static_cast<i32>(j) + 1 < left ?",
    ),
    Fault(
        name="a wave stops one key tile early",
        old="if (n_tile < wave_end)",
        new="if (n_tile + 1 < wave_end)",
    ),
    Fault(
        name="another swizzle for the write of V",
        old="^ v_swizzle(dv_row)",
        new="^ k_swizzle(dv_row)",
    ),
    Fault(
        name="the reference of half a row",
        old="largest = maximum(largest, shuffle_xor(largest, 32));",
        new="",
    ),
    Fault(
        name="a row of O too many",
        old="params.o_stride_m, heads.seqlen_q, HEAD_DIM_V",
        new="params.o_stride_m, heads.seqlen_q + 1, HEAD_DIM_V",
        kinds=("out_of_bounds", "written_twice"),
        words=("buffer_store_dwordx4",),
    ),
    Fault(
        name="a number of LSE too many",
        old="m >= tile.seqlen_q) {",
        new="m > tile.seqlen_q) {",
        kinds=("out_of_bounds", "written_twice"),
        words=("global_store_dword",),
    ),
    Fault(
        name="LSE by both lanes of a row",
        old="thread_index() % 64 >= 32 || ",
        new="",
        kinds=("written_twice",),
        words=("global_store_dword", "lse"),
    ),
    Fault(
        name="K beyond its last row",
        old="params.k_stride_n, heads.seqlen_k,",
        new="params.k_stride_n, heads.seqlen_k + 1,",
        kinds=("out_of_bounds",),
        words=("buffer_load_dwordx4",),
    ),
    Fault(
        name="V beyond its last row",
        old="params.v_stride_n, heads.seqlen_k,",
        new="params.v_stride_n, heads.seqlen_k + 1,",
        kinds=("out_of_bounds",),
        words=("buffer_load_dword",),
    ),
    Fault(
        name="an LDS address off by 8",
        old="lds_read_b128(s_v + ",
        new="lds_read_b128(s_v + 8 + ",
        kinds=("misaligned",),
        words=("ds_read_b128", "SMEM_V"),
    ),
    Fault(
        name="a lane leaves early",
        old="  const u32 wave = wave_uniform",
        new="  if (thread_index() == 77) {\n    return;\n  }\n  const u32 wave = wave_uniform",
        kinds=("divergence",),
        words=("warp 1",),
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_found_by_every_seed(fault: Fault) -> None:
    assert fault.old in BED.source.text
    BED.expect(BED.source.text.replace(fault.old, fault.new), fault.kinds, fault.words)


def test_the_kernel_itself_has_none() -> None:
    BED.expect(BED.source.text, ("none",))
