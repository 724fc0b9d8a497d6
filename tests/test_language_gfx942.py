"""Masks and score functions in the gfx942 kernels, run lane by lane against float64."""

import dataclasses
import re
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from language_cases import MASKS

import fmhagen
from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError, ScheduleError
from fmhagen.lowering import lower
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.schedule import Schedule
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

BF16 = np.dtype(ml_dtypes.bfloat16)
SIZES = ((2, 2, 1, 100, 100), (1, 1, 1, 70, 200), (1, 2, 2, 200, 90), (1, 1, 1, 5, 0))
SLOPES = np.array([0.5, 0.25], np.float32)
PARAMETERS = np.random.default_rng(11)

SCORES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alibi": ({"alibi": True}, {"alibi_slopes": SLOPES}),
    "soft_cap": ({"soft_cap": 2.0}, {}),
    "soft_cap_and_alibi": ({"soft_cap": 2.0, "alibi": True}, {"alibi_slopes": SLOPES}),
    "some_scores_hidden": (
        {"score_mod": lambda s, b, h, q, k: np.where(q == k, -np.inf, 1.5 * s)},
        {},
    ),
    "bias_of_positions": (
        {"score_mod": "bias: f32[3]; score + bias[h, q_idx, kv_idx]"},
        {"params": {"bias": PARAMETERS.standard_normal((2, 300, 300)).astype(np.float32)}},
    ),
    "bias_of_distances": (
        {"score_mod": "bias: bf16[2]; score + bias[h, q_idx - kv_idx + 300]"},
        {"params": {"bias": PARAMETERS.standard_normal((2, 600)).astype(BF16)}},
    ),
    "elements_of_all_types": (
        {
            "score_mod": "kind: i64[1]; flag: bool[1]; half: f16[2]; level: u8[1]; table: f32[1];"
            " own: i32[1]; where(flag[kv_idx], score * half[h, kv_idx],"
            " score + table[kind[kv_idx]]) + f32(level[kv_idx] - own[q_idx] % 3) * 0.1"
        },
        {
            "params": {
                "kind": PARAMETERS.integers(-2, 9, 300),
                "flag": PARAMETERS.integers(0, 2, 300).astype(bool),
                "half": PARAMETERS.standard_normal((2, 300)).astype(np.float16),
                "level": PARAMETERS.integers(0, 20, 300).astype(np.uint8),
                "table": PARAMETERS.standard_normal(7).astype(np.float32),
                "own": PARAMETERS.integers(0, 9, 300).astype(np.int32),
            }
        },
    ),
    "temperature": (
        {"score_mod": "t: f32[1]; score * t[h]"},
        {"params": {"t": np.array([0.3, 1.7], np.float32)}},
    ),
}
WINDOWS: tuple[dict[str, Any], ...] = (
    {},
    {"causal": True},
    {"causal": True, "window_left": 40},
    {"mask_mod": lambda b, h, q, k: (k < 4) | (q - k < 20), "causal": True},
)


def small(**fields: Any) -> Schedule:
    """Return a schedule of two waves: the quickest to emulate."""
    numbers = {"tile_m": 64, "tile_n": 64, "consumers": 2, "prefetch": 7}
    return Schedule(**{"main_loop": "wave_pipelined", **numbers, **fields})


def within_garbage(values: npt.NDArray) -> npt.NDArray:
    """Return a view with these values, in memory that is NaN around each row."""
    memory = np.full((*values.shape[:-1], values.shape[-1] + 8), np.nan, values.dtype)
    view = memory[..., : values.shape[-1]]
    view[...] = values
    return view


def check(
    spec: AttentionSpec,
    sizes: tuple[int, int, int, int, int],
    schedule: Schedule | None,
    *,
    seed: int = 0,
    magnitude: float = 1.0,
    **arguments: Any,
) -> None:
    """Run one call of (batch, heads, key heads, queries, keys) and compare it with float64."""
    batch, heads, heads_kv, rows, keys = sizes
    rng = np.random.default_rng(seed)
    dtype = BF16 if spec.dtype == "bf16" else np.dtype(np.float16)
    shapes = ((rows, heads, spec.d), (keys, heads_kv, spec.d), (keys, heads_kv, spec.dv))
    q, k, v = (
        within_garbage((rng.standard_normal((batch, *shape)) * factor).astype(dtype))
        for shape, factor in zip(shapes, (magnitude, 1.0, 1.0), strict=True)
    )
    kernel = fmhagen.compile_kernel(
        spec,
        device="emulator",
        target="gfx942",
        schedule=schedule,
        emulator=EmulatorOptions(seed=seed),
    )
    o, lse = kernel(q, k, v, return_lse=True, **arguments)
    expected = fmhagen.reference(spec, q, k, v, **arguments)
    found = compare(o, lse, *expected, layout=str(spec.layout))
    assert found.within(tolerance_of(str(spec.dtype))), f"{spec} {sizes} seed {seed}\n{found}"


@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    case = MASKS[name]
    spec = dataclasses.replace(case.spec, head_dim=64)
    arguments = {"params": case.params} if case.params else {}
    for seed, sizes in enumerate(SIZES):
        check(spec, sizes, small(), seed=seed, **arguments)


@pytest.mark.parametrize("window", range(len(WINDOWS)))
@pytest.mark.parametrize("name", SCORES)
def test_score_functions(name: str, window: int) -> None:
    fields, arguments = SCORES[name]
    spec = AttentionSpec(head_dim=64, **fields, **WINDOWS[window])
    for seed, sizes in enumerate(((1, 2, 1, 100, 100), (1, 2, 2, 200, 90), (1, 2, 1, 5, 0))):
        check(spec, sizes, small(), seed=seed, magnitude=3.0, **arguments)


@pytest.mark.parametrize("matrix", ["32x32x8", "16x16x16"])
@pytest.mark.parametrize("window", range(2))
@pytest.mark.parametrize("name", SCORES)
def test_score_functions_of_two_groups(name: str, window: int, matrix: str) -> None:
    fields, arguments = SCORES[name]
    spec = AttentionSpec(head_dim=64, **fields, **WINDOWS[window])
    schedule = small(main_loop="wave_ping_pong", consumers=8, tile_m=256, matrix=matrix)
    for seed, sizes in enumerate(((1, 2, 1, 100, 100), (1, 2, 2, 270, 90), (1, 2, 1, 5, 0))):
        check(spec, sizes, schedule, seed=seed, magnitude=3.0, **arguments)


@pytest.mark.parametrize("window", [2, 3])
def test_two_groups_refuse_masks_that_leave_keys_out(window: int) -> None:
    spec = AttentionSpec(head_dim=64, **WINDOWS[window])
    with pytest.raises(ScheduleError, match="use main_loop='wave_pipelined'"):
        lower(spec, small(main_loop="wave_ping_pong", consumers=8, tile_m=256), GFX942)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("d", "dv"), [(64, 64), (96, 96), (128, 128), (192, 128), (192, 192), (256, 256)]
)
def test_head_dims_and_default_schedules(d: int, dv: int, dtype: str) -> None:
    both = AttentionSpec(dtype=dtype, head_dim=d, head_dim_v=dv, causal=True, window_left=70)
    check(both, (1, 1, 1, 300, 420), None)
    score = dataclasses.replace(both, alibi=True, window_left=None)
    check(score, (1, 2, 1, 130, 200), None, alibi_slopes=SLOPES)


@pytest.mark.parametrize("waves", [1, 2, 4, 8])
def test_waves_that_begin_later_than_their_block(waves: int) -> None:
    spec = AttentionSpec(head_dim=64, causal=True, window_left=10)
    schedule = small(consumers=waves, tile_m=32 * waves)
    for seed in range(6):
        check(spec, (1, 1, 1, 270 + 40 * seed, 380 + 77 * seed), schedule, seed=seed)


@pytest.mark.parametrize("window", range(len(WINDOWS)))
def test_narrow_matrix_instructions(window: int) -> None:
    spec = AttentionSpec(head_dim=64, alibi=True, **WINDOWS[window])
    for seed in range(3):
        schedule = small(matrix="16x16x16")
        check(spec, (1, 2, 1, 130, 170), schedule, seed=seed, alibi_slopes=SLOPES)


@pytest.mark.parametrize("window", range(len(WINDOWS)))
def test_everything_together(window: int) -> None:
    spec = AttentionSpec(
        head_dim=64,
        soft_cap=5.0,
        alibi=True,
        score_mod="t: f32[1]; score * t[h]",
        sink=True,
        varlen=True,
        **WINDOWS[window],
    )
    rng = np.random.default_rng(window)
    starts = np.array([0, 70, 70, 71, 200], np.int32)
    keys = np.array([0, 50, 90, 90, 300], np.int32)
    arguments = {
        "alibi_slopes": np.broadcast_to(SLOPES, (4, 2)).copy(),
        "params": {"t": np.array([0.3, 1.7], np.float32)},
        "sinks": np.array([-1.0, 2.0], np.float32),
        "cu_seqlens_q": starts,
        "cu_seqlens_k": keys,
    }
    q = within_garbage(rng.standard_normal((200, 2, 64)).astype(BF16))
    k, v = (within_garbage(rng.standard_normal((300, 1, 64)).astype(BF16)) for _ in range(2))
    expected = fmhagen.reference(spec, q, k, v, **arguments)
    for seed in range(3):
        kernel = fmhagen.compile_kernel(
            spec,
            device="emulator",
            target="gfx942",
            schedule=small(),
            emulator=EmulatorOptions(seed=seed),
        )
        o, lse = kernel(q, k, v, return_lse=True, **arguments)
        assert np.allclose(o.astype(np.float64), expected[0], rtol=0, atol=0.03)
        assert np.allclose(lse, expected[1], rtol=0, atol=1e-4)


def test_the_straight_loop_refuses_what_it_is_not_written_for() -> None:
    schedule = Schedule(main_loop="wave_interleaved", tile_m=128, tile_n=64, consumers=4)
    for fields in ({"window_left": 9}, {"soft_cap": 9.0}, {"alibi": True}):
        with pytest.raises(ScheduleError, match="wave_pipelined"):
            lower(AttentionSpec(head_dim=64, **fields), schedule, GFX942)


def test_plain_kernels_have_no_part_of_it() -> None:
    plan = lower(AttentionSpec(causal=True), default_schedule(AttentionSpec(), GFX942), GFX942)
    text = emit_source(plan).text
    assert not re.search(r"Walk|Turns|mask_mod|score_mod|q_idx\[", text)


WINDOW = AttentionSpec(head_dim=64, causal=True, window_left=70)
FAULTS = {
    "no barrier before the first unit of a late wave": (
        r"(if \(w\.turns\.next < mine\.first\) \{\n)    block_barrier\(\);\n",
        r"\1",
    ),
    "a late wave waits for one pair too many": (
        r"while \(w\.turns\.key < mine\.first\)",
        "while (w.turns.key <= mine.first)",
    ),
    "a late wave begins a pair early": (
        r"(    stage_only\(w, params, visible, SMEM_K_EVEN, SMEM_V_ODD\);\n)"
        r"    stage\(w, params, visible, SMEM_K_ODD, SMEM_V_EVEN\);\n",
        "",
    ),
    "V of the unit that K is loaded for": (r"w\.turns\.value\)", "w.turns.key)"),
    "a turn is left out": (r"turns\.next = turns\.value;", "turns.next = turns.key;"),
    "a band ends a unit early": (
        r"\.band_0\.end = units_up\(",
        ".band_0.end = units_down(",
    ),
    "a unit is taken for whole": (r"whole_0\.first = units_up\(", "whole_0.first = units_down("),
    "one key too many": (r"n \+ j < visible\.lane_keys", "n + j <= visible.lane_keys"),
    "the mask of the unit before": (
        r"hide_unit\(s_next, params, visible, next \* UNIT\)",
        "hide_unit(s_next, params, visible, (next - 1) * UNIT)",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_by_every_seed(name: str) -> None:
    from gfx942_runs import Sizes, emulate

    plan = lower(WINDOW, small(consumers=4, tile_m=128), GFX942)
    source = emit_source(plan)
    pattern, new = FAULTS[name]
    text, count = re.subn(pattern, new, source.text, count=1)
    assert count == 1
    planted = dataclasses.replace(source, text=text)
    sizes = Sizes(heads=2, seqlen_q=200, seqlen_k=270)
    for seed in range(10):
        try:
            found = not emulate(plan, sizes, source=planted, seed=seed, blocks=2).is_right
        except EmulatorError as error:
            found = error.kind in ("race", "uninitialised", "deadlock", "divergence")
        assert found, f"seed {seed}"


def test_a_wave_alone_on_its_simd_asks_a_mask_bit_by_bit_beside_what_it_fetches() -> None:
    document = np.repeat(np.arange(9, dtype=np.int32), 17)
    bias = PARAMETERS.standard_normal((1, 150)).astype(np.float32)
    spec = AttentionSpec(
        head_dim=256,
        mask_mod="d: i32[1]; d[q_idx] == d[kv_idx]",
        score_mod="bias: f32[2]; score + bias[h, kv_idx]",
    )
    alone = default_schedule(spec, GFX942)
    assert lower(spec, alone, GFX942).hides_by_bits
    shallow = dataclasses.replace(spec, head_dim=64)
    assert not lower(shallow, default_schedule(shallow, GFX942), GFX942).hides_by_bits
    check(spec, (1, 1, 1, 70, 101), alone, params={"d": document, "bias": bias})
