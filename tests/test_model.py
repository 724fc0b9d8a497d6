"""The static model of a main loop: listings, the path of a loop, the simulation, real kernels."""

import dataclasses

import pytest

from fmhagen.compile.listing import assembly_listing
from fmhagen.emission import emit_source
from fmhagen.lowering import lower
from fmhagen.model import Loop, find_loops, parse_listing, report_loop, simulate
from fmhagen.model.launch import LoopClk, Shape, predict_launch
from fmhagen.schedule import Schedule
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942
from fmhagen.targets.timing import timing_of

TIMING = timing_of("gfx942")
assert TIMING is not None
MATRIX = "\tv_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]\n"
ADD = "\tv_add_f32_e32 v20, v21, v22\n"
RAISE = "\tv_exp_f32_e32 v20, v20\n"


def loop_of(body: str) -> Loop:
    text = f"kernel:\n\ts_mov_b32 s0, 0\n.LBB0_1:\n{body}\ts_cbranch_scc1 .LBB0_1\n\ts_endpgm\n"
    (loop,) = find_loops(parse_listing(text, TIMING))
    return loop


def utilisation(body: str, waves: int) -> float:
    return simulate((loop_of(body),) * waves, TIMING).matrix_utilisation


def test_matrix_instructions_alone_fill_the_core() -> None:
    assert utilisation(MATRIX * 64, 2) > 0.99


def test_work_in_the_shadow_is_free() -> None:
    assert utilisation((MATRIX + ADD * 6) * 64, 1) > 0.98


def test_vector_work_bounds() -> None:
    # 32 clocks of the port for each matrix instruction, and 4 for its issue.
    assert utilisation((MATRIX + RAISE * 2) * 64, 2) == pytest.approx(32 / 36, abs=0.02)


def test_one_wave_does_not_overlap_with_itself_what_two_do() -> None:
    body = MATRIX * 8 + RAISE * 12
    assert utilisation(body, 1) < 0.65
    assert utilisation(body, 2) > 0.9


def test_a_wait_costs_the_latency_of_the_lds() -> None:
    body = "\tds_read_b128 v[0:3], v4\n\ts_waitcnt lgkmcnt(0)\n" + MATRIX
    stalls = dict(simulate((loop_of(body),), TIMING).stalls)
    assert stalls["LDS"] >= TIMING.lds_latency_clk - 8


def test_conflicts_cost_passes() -> None:
    from fmhagen.inspection.main_loop import _charged
    from fmhagen.runtime.emulator_records import BankUse

    loop = loop_of("\tds_read_b128 v[0:3], v4\n" * 16 + "\ts_waitcnt lgkmcnt(0)\n" + MATRIX)
    uses = (BankUse(name="ds_read_b128", accesses=10, wavefronts=160, extra_wavefronts=80),)
    plain = simulate((loop,), TIMING).clk_per_turn
    assert simulate((_charged(loop, uses),), TIMING).clk_per_turn > plain * 1.5


def test_barriers_join_the_waves() -> None:
    slow, fast = loop_of(MATRIX * 8 + "\ts_barrier\n"), loop_of(MATRIX + "\ts_barrier\n")
    simulated = simulate((slow, fast), TIMING)
    assert simulated.clk_per_turn >= 9 * 32
    assert dict(simulated.stalls)["barrier"] > 0


def test_the_usual_path_leaves_out_what_is_rare() -> None:
    rare = f"\ts_cbranch_vccz .LBB0_2\n{ADD * 50}.LBB0_2:\n"
    loop = loop_of(MATRIX * 4 + rare + MATRIX * 4)
    assert loop.matrix_count == 8
    assert sum(operation.mnemonic.startswith("v_add") for operation in loop.operations) == 0
    assert any(operation.is_taken for operation in loop.operations)


def test_the_inner_loop_counts() -> None:
    text = (
        f"kernel:\n.LBB0_1:\n{ADD}.LBB0_2:\n{MATRIX * 8}\ts_cbranch_scc1 .LBB0_2\n{MATRIX}"
        "\ts_cbranch_scc1 .LBB0_1\n\ts_endpgm\n"
    )
    (loop,) = find_loops(parse_listing(text, TIMING))
    assert loop.matrix_count == 8


def test_offsets_of_a_disassembler_are_labels() -> None:
    text = (
        "0000000000001000 <kernel>:\n"
        "\ts_mov_b32 s0, 0                  // 000000001000: BE800080\n"
        "\tv_mfma_f32_32x32x8_bf16 a, b, c  // 000000001004: D3DF8000 0\n"
        "\ts_cbranch_scc1 65533             // 00000000100C: BF85FFFD <kernel+0x4>\n"
        "\ts_endpgm                         // 000000001010: BF810000\n"
    )
    (loop,) = find_loops(parse_listing(text, TIMING))
    assert [operation.mnemonic[:6] for operation in loop.operations] == ["v_mfma", "s_cbra"]


IN_GROUPS = {"main_loop": "wave_ping_pong"}


def kernel_loops(spec: AttentionSpec, schedule: Schedule | None = None) -> tuple[Loop, ...]:
    plan = lower(spec, schedule or default_schedule(spec, GFX942), GFX942)
    text = assembly_listing(emit_source(plan))
    if text is None:
        pytest.skip("the package ziglang is not installed")
    assert "scratch_" not in text
    # A loop over the lanes' resources, where one is not known to be uniform.
    assert "s_cbranch_execnz" not in text or plan.slot_table is None
    return find_loops(parse_listing(text, TIMING))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("head_dim", "dv", "dtype", "changes", "least"),
    [
        (128, None, "bf16", {}, 0.95),
        (128, None, "fp16", {}, 0.95),
        (96, None, "bf16", {}, 0.92),
        (64, None, "bf16", {}, 0.86),
        (192, 128, "bf16", {}, 0.95),
        (192, None, "bf16", {}, 0.95),
        (256, None, "bf16", {}, 0.92),
        (128, None, "bf16", IN_GROUPS, 0.97),
        (128, None, "fp16", IN_GROUPS, 0.95),
        (192, 128, "bf16", IN_GROUPS, 0.97),
        (128, None, "bf16", {"matrix": "16x16x16"}, 0.88),
        (128, None, "bf16", {**IN_GROUPS, "matrix": "16x16x16"}, 0.88),
    ],
)
def test_predicted_utilisation(
    head_dim: int, dv: int | None, dtype: str, changes: dict[str, str], least: float, causal: bool
) -> None:
    spec = AttentionSpec(head_dim=head_dim, head_dim_v=dv, dtype=dtype, causal=causal)
    schedule = dataclasses.replace(default_schedule(spec, GFX942), **changes)
    plan = lower(spec, schedule, GFX942)
    assert plan.slot_table is not None
    (loop,) = kernel_loops(spec, schedule)
    assert loop.matrix_count == 2 * len(plan.slot_table.slots)
    waves = 1 if plan.uses_accumulation_registers else 2
    report = report_loop((loop,), TIMING, waves=waves, groups=plan.wave_groups)
    assert report.simulated.matrix_utilisation > least
    counts = dict(report.counts)
    assert counts["barrier"] == 2 * plan.wave_groups
    assert "register move" not in counts
    # One wait a use of the ring at most, two for what is staged, and that before the barrier.
    assert counts["wait"] <= len(plan.slot_table.slots) + 2 * 8


def test_groups_of_waves_run_the_loop_a_barrier_apart() -> None:
    # Products and vector work of the same length: in step they take turns, half a turn apart not.
    lines = [*["v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]"] * 8, "s_barrier"]
    lines += [*["v_add_f32 v20, v21, v22"] * 40, "s_barrier", "s_cbranch_scc1 .LOOP"]
    text = ".LOOP:\n" + "".join(f"\t{line}\n" for line in lines)
    loops = find_loops(parse_listing(text, TIMING))
    together, apart = (report_loop(loops, TIMING, waves=2, groups=groups) for groups in (1, 2))
    assert together.simulated.matrix_utilisation < 0.8
    assert apart.simulated.matrix_utilisation > 0.9
    (loop,) = loops
    behind = loop.behind(1)
    assert sorted(map(str, behind.operations)) == sorted(map(str, loop.operations))
    assert behind.operations[0].mnemonic == "v_add_f32"
    assert loop.behind(2).operations[0].mnemonic == "s_cbranch_scc1"


def test_the_order_is_worth_it() -> None:
    straight = Schedule(main_loop="wave_interleaved", tile_m=256, tile_n=64, consumers=8)
    spec = AttentionSpec()
    reports = [
        report_loop(kernel_loops(spec, schedule), TIMING, waves=2) for schedule in (straight, None)
    ]
    assert reports[0].tflops * 1.15 < reports[1].tflops


LOOP = LoopClk(matrix=2048.0, together=4200.0, alone=2300.0)
BLOCK = Shape(
    waves=8,
    waves_per_simd=2,
    wave_rows=32,
    tile_n=64,
    before_clk=3200.0,
    after_clk=2000.0,
    mask_clk=512.0,
    compute_units=304,
    xcds=8,
)


def test_a_full_launch_loses_what_its_last_round_leaves_idle() -> None:
    # 64 heads of 16 tiles: 128 tiles an XCD, 38 CUs: four rounds where 3.4 would do.
    launch = predict_launch(LOOP, BLOCK, heads=64, seqlen_q=4096, seqlen_k=4096, causal=False)
    rounds = 4
    assert launch.clk == pytest.approx(rounds * (64 * 4200 + 5200))
    assert launch.utilisation == pytest.approx(launch.useful)
    assert launch.utilisation == pytest.approx(
        128 * 8 * 64 * 2048 / (launch.clk * 38 * 4), rel=1e-6
    )


def test_a_causal_launch_is_balanced() -> None:
    launch = predict_launch(LOOP, BLOCK, heads=128, seqlen_q=4096, seqlen_k=4096, causal=True)
    assert launch.utilisation > 0.9
    assert launch.useful < launch.utilisation
    long = predict_launch(LOOP, BLOCK, heads=32, seqlen_q=16384, seqlen_k=16384, causal=True)
    assert long.utilisation > 0.92


def test_rows_that_see_nothing_cost_a_block_alone() -> None:
    launch = predict_launch(LOOP, BLOCK, heads=8, seqlen_q=256, seqlen_k=0, causal=True)
    assert launch.useful == 0.0
    assert launch.clk == pytest.approx(3200 + 2000 + 1024)
