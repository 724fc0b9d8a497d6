"""Faults planted in the pipelined gfx942 kernel: each is found by every seed, as what it is."""

import pytest
from gfx942_planted import RACE, Bed, Fault
from gfx942_runs import Sizes

from fmhagen.lowering import lower
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

PLAN = lower(
    AttentionSpec(head_dim=64, causal=True),
    Schedule(main_loop="wave_pipelined", tile_m=128, tile_n=64, consumers=4, prefetch=7),
    GFX942,
)
BED = Bed(
    plan=PLAN,
    sizes=Sizes(heads=2, seqlen_q=200, seqlen_k=270),
    seeds=20,
    blocks=2,  # so that each walks over two tiles
)

IN_STEP = r"    wait_lds\(\);\n    block_barrier\(\);\n"
STAGE = r"stage\(w, params, visible, k_following, v_next\);\n"
STAGE_ONLY = rf"({STAGE}  wait_lds\(\);\n  )block_barrier\(\);\n(\}})"


FAULTS = (
    Fault(
        name="no barrier in a step",
        pattern=IN_STEP,
        new="    wait_lds();\n",
        kinds=RACE,
        words=("ds_", "SMEM_"),
    ),
    Fault(
        name="no wait for LDS writes in a step",
        pattern=IN_STEP,
        new="    block_barrier();\n",
        kinds=RACE,
        words=("is not ordered after the write of ds_write_", "SMEM_"),
    ),
    Fault(
        name="no barrier in a step without work",
        pattern=STAGE_ONLY,
        new=r"\1\2",
        kinds=(*RACE, "deadlock", "divergence"),
    ),
    Fault(
        name="no wait in a step without work",
        pattern=rf"({STAGE})  wait_lds\(\);\n(  block_barrier\(\);\n\}})",
        new=r"\1\2",
        kinds=RACE,
        words=("ds_", "SMEM_"),
    ),
    Fault(
        name="no barrier after the first units are written",
        pattern=r"  wait_lds\(\);\n  block_barrier\(\);\n(\n  const u32 first = 0;)",
        new=r"  wait_lds();\n\1",
        kinds=RACE,
        words=("ds_read_b128", "SMEM_K_EVEN"),
    ),
    Fault(
        name="no wait after the first units are written",
        pattern=r"  wait_lds\(\);\n  block_barrier\(\);\n(\n  const u32 first = 0;)",
        new=r"  block_barrier();\n\1",
        kinds=RACE,
        words=("is not ordered after the write of ds_write_b128", "SMEM_K_EVEN"),
    ),
    Fault(
        name="no barrier after the first scores",
        pattern=r"  wait_lds\(\);\n  block_barrier\(\);\n\n  // The first step",
        new="\n  // The first step",
        kinds=RACE,
        words=("SMEM_K_EVEN", "ds_read_b128"),
    ),
    Fault(
        name="no barrier between two tiles of work",
        pattern=r"(read the last fragments of the tile before\.\n)  block_barrier\(\);\n",
        new=r"\1",
        kinds=RACE,
        words=("SMEM_",),
    ),
    Fault(
        name="K written where it is still read",
        pattern=r"lds_write_b128\(w\.k_write\[0\] \+ k_following",
        new="lds_write_b128(w.k_write[0] + k_next",
        kinds=RACE,
        words=("ds_", "SMEM_K"),
    ),
    Fault(
        name="V written where it is still read",
        pattern=r"\+ v_next, v_row_0\)",
        new="+ v_now, v_row_0)",
        kinds=RACE,
        words=("ds_", "SMEM_V"),
    ),
    Fault(
        name="K of the next step read before the barrier",
        pattern=r"(    wait_lds\(\);\n    block_barrier\(\);\n)((?:.*\n)*?)"
        r"(    w\.fragment\[0\] = lds_read_b128\(w\.k_read\[0\] \+ k_following.*\n)",
        new=r"\3\1\2",
        kinds=RACE,
        words=("ds_read_b128", "SMEM_K"),
    ),
    Fault(
        name="units of one parity in one region",
        pattern=r"SMEM_V_EVEN, SMEM_V_ODD\);",
        new="SMEM_V_EVEN, SMEM_V_EVEN);",
        kinds=RACE,
        words=("SMEM_V_EVEN",),
    ),
    Fault(
        name="a fragment of the wrong step",
        pattern=r"lds_read_b128\(w\.v_read\[1\] \+ v_now",
        new="lds_read_b128(w.v_read[0] + v_now",
    ),
    Fault(
        name="two slots of P in the wrong order",
        pattern=r"take_pair\(p\[0\], 1, ",
        new="take_pair(p[0], 0, ",
        kinds=("numbers", "uninitialised"),
    ),
    Fault(
        name="the row sum of half a row",
        pattern=r"row_sum\(w\.row\[i\]\.sum\[0\] \+ w\.row\[i\]\.sum\[1\]\)",
        new="w.row[i].sum[0] + w.row[i].sum[1]",
    ),
    Fault(
        name="one key too many in the mask",
        pattern=r"static_cast<i32>\(j\) < left \?",
        new="static_cast<i32>(j) <= left ?",
    ),
    Fault(
        name="the mask of the unit before",
        pattern=r"hide_unit\(s_next, params, visible, next \* UNIT\)",
        new="hide_unit(s_next, params, visible, (next - 1) * UNIT)",
    ),
    Fault(
        name="masked one unit late",
        pattern=r"return \(unit \+ 1\) \* UNIT <= visible\.wave_keys;",
        new="return unit * UNIT <= visible.wave_keys;",
    ),
    Fault(
        name="a wave stops one tile early",
        pattern=r"n_tile < wave_tiles;",
        new="n_tile + 1 < wave_tiles;",
    ),
    Fault(
        name="another swizzle for the write of V",
        pattern=r"n_eight \^ v_unit_swizzle\(dv_row\)",
        new="n_eight ^ (k_swizzle(dv_row) & 3u)",
        kinds=("numbers", *RACE),
    ),
    Fault(
        name="a row of K too many",
        pattern=r"rows\.left > 0 \? rows\.last_bytes : 0",
        new="rows.left > 0 ? rows.unit_bytes : 0",
        kinds=("out_of_bounds",),
        words=("buffer_load_dword",),
    ),
    Fault(
        name="a row of O too many",
        pattern=r"params\.o_stride_m, heads\.seqlen_q, HEAD_DIM_V",
        new="params.o_stride_m, heads.seqlen_q + 1, HEAD_DIM_V",
        kinds=("out_of_bounds", "written_twice"),
        words=("buffer_store_dwordx4",),
    ),
    Fault(
        name="an LDS address off by 8",
        pattern=r"lds_read_b128\(w\.v_read\[0\] \+ v_now",
        new="lds_read_b128(w.v_read[0] + 8 + v_now",
        kinds=("misaligned",),
        words=("ds_read_b128", "SMEM_V"),
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_found_by_every_seed(fault: Fault) -> None:
    BED.expect(BED.plant(fault), fault.kinds, fault.words)


def test_the_kernel_itself_has_none() -> None:
    BED.expect(BED.source.text, ("none",))
