"""Faults planted in the kernel with two groups of waves: each is found by every seed."""

import pytest
from gfx942_planted import RACE, Bed, Fault
from gfx942_runs import Sizes

from fmhagen.lowering import lower
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

PLAN = lower(
    AttentionSpec(head_dim=64, causal=True),
    Schedule(main_loop="wave_ping_pong", tile_m=256, tile_n=128, consumers=8, prefetch=3),
    GFX942,
)
BED = Bed(
    plan=PLAN,
    sizes=Sizes(heads=2, seqlen_q=300, seqlen_k=370),
    seeds=8,
    blocks=2,  # so that each walks over two tiles
)

PRODUCTS_END = r"    wait_lds\(\);\n    block_barrier\(\);\n  multiply"
SOFTMAX_END = r"(take_pair\(p\[3\], 3, .*\n)  wait_lds\(\);\n  block_barrier\(\);\n"
SECOND = (
    r"    stage\(w, params, visible, SMEM_K_EVEN, SMEM_V_ODD\);\n"
    r"    wait_lds\(\);\n    block_barrier\(\);\n"
)
HARMLESS = ("none",)
OUT_OF_STEP = (*RACE, "deadlock", "divergence", "numbers")


FAULTS = (
    Fault(
        name="no barrier after the products",
        pattern=PRODUCTS_END,
        new="    wait_lds();\n  multiply",
        kinds=OUT_OF_STEP,
    ),
    Fault(
        name="no barrier after the softmax",
        pattern=SOFTMAX_END,
        new=r"\1  wait_lds();\n",
        kinds=OUT_OF_STEP,
    ),
    Fault(
        name="no wait for LDS writes after the softmax",
        pattern=SOFTMAX_END,
        new=r"\1  block_barrier();\n",
        kinds=RACE,
        words=("is not ordered after the write of ds_write_", "SMEM_"),
    ),
    Fault(
        name="no second group",
        pattern=r"wave >= THREADS / WAVE_LANES / 2",
        new="wave >= THREADS",
        kinds=HARMLESS,  # the waves go in step: slow, and right
    ),
    Fault(
        name="groups of six waves and two",
        pattern=r"wave >= THREADS / WAVE_LANES / 2",
        new="wave >= 6",
        kinds=HARMLESS,  # slow, and right
    ),
    Fault(
        name="the second group stages as the first",
        pattern=r"is_second \? SMEM_K_ODD : SMEM_K_EVEN",
        new="is_second ? SMEM_K_EVEN : SMEM_K_EVEN",
        kinds=RACE,
        words=("ds_", "SMEM_K"),
    ),
    Fault(
        name="the second group stages no unit ahead",
        pattern=SECOND,
        new="    block_barrier();\n",
        kinds=(*RACE, "numbers"),
    ),
    Fault(
        name="the second group does not wait for what it staged ahead",
        pattern=SECOND,
        new="    stage(w, params, visible, SMEM_K_EVEN, SMEM_V_ODD);\n    block_barrier();\n",
        kinds=HARMLESS,  # its next wait comes before the barrier after which others read
    ),
    Fault(
        name="the first group does not wait at the end",
        pattern=r"  if \(!is_second\) \{\n    block_barrier\(\);\n  \}\n",
        new="",
        kinds=OUT_OF_STEP,
    ),
    Fault(
        name="one barrier in a step without work",
        pattern=r"(void stage_only.*\n)  wait_lds\(\);\n  block_barrier\(\);\n",
        new=r"\1",
        kinds=OUT_OF_STEP,
    ),
    Fault(
        name="no wait in a step without work",
        pattern=r"(  stage\(w, params, visible, k_staged, v_staged\);\n)  wait_lds\(\);\n"
        r"(  block_barrier\(\);\n\}\n\nstatic)",
        new=r"\1\2",
        kinds=RACE,
        words=("ds_", "SMEM_"),
    ),
    Fault(
        name="an operand read after the barrier",
        pattern=r"((?:    w\.fragment\[\d\] = lds_read.*\n))((?:.*\n){1,9}?)"
        r"(    wait_lds\(\);\n    block_barrier\(\);\n)",
        new=r"\2\3\1",
        kinds=(*RACE, "numbers"),
    ),
    Fault(
        name="K of this unit in place of the next",
        pattern=r"SMEM_K_ODD, SMEM_V_EVEN, k_staged, v_staged\)",
        new="SMEM_K_EVEN, SMEM_V_EVEN, k_staged, v_staged)",
        kinds=RACE,
        words=("SMEM_K_EVEN",),
    ),
    Fault(
        name="P of the first unit is not made",
        pattern=r"  raise_unit\(p, w, s_even, scale\);\n",
        new="  for (u32 i = 0; i < 2; ++i) p[i] = w.q[0];\n",
    ),
    Fault(
        name="two numbers of P in the wrong order",
        pattern=r"take_pair\(p\[0\], 1, ",
        new="take_pair(p[0], 0, ",
        kinds=("numbers", "uninitialised"),
    ),
    Fault(
        name="one key too many in the mask",
        pattern=r"static_cast<i32>\(j\) < left \?",
        new="static_cast<i32>(j) <= left ?",
    ),
    Fault(
        name="masked one unit late",
        pattern=r"\(unit \+ 1\) \* UNIT <= visible\.wave_keys",
        new="unit * UNIT <= visible.wave_keys",
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_found_by_every_seed(fault: Fault) -> None:
    BED.expect(BED.plant(fault), fault.kinds, fault.words)


def test_the_kernel_itself_has_none() -> None:
    BED.expect(BED.source.text, ("none",))
