"""Inputs made to defeat the softmax, on every rescale mode; docs/softmax.md proves why it holds."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import pytest
from cases import NUMPY_DTYPES
from emulated import Run, Tensors, alternatives, emulate, plan_of
from softmax_inputs import UNIT_SCALE, Input, Setting, inputs
from softmax_model import count

from fmhagen.oracle.attention import reference
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.plan.attention import Plan
from fmhagen.runtime.launch_values import scale_log2_of
from fmhagen.schedule import MainLoop, Rescale, Schedule, Store
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

GROUP_THREADS = 128
GROUP_WARPS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel: a spec, a target and a schedule by name."""

    spec: AttentionSpec
    target: str
    schedule: str

    @property
    def name(self) -> str:
        """The kernel as a part of a test's name."""
        mask = "causal" if self.spec.causal else "full"
        return f"{self.target}-{self.spec.dtype}-d{self.spec.d}-{mask}-{self.schedule}"

    @property
    def plan(self) -> Plan:
        """The kernel, lowered."""
        return plan_of(self.spec, self.target, schedule_of(self))

    @property
    def setting(self) -> Setting:
        """Where the inputs are placed."""
        return Setting(
            spec=self.spec,
            tile_n=self.plan.schedule.tile_n,
            from_right=self.target == "sm90",
        )


@functools.cache
def schedule_of(kernel: Kernel) -> Schedule:
    """Return a schedule by its name."""
    default = default_schedule(kernel.spec, find_target(kernel.target))
    narrow = Schedule(
        main_loop=MainLoop.WARP_SPECIALISED,
        tile_m=64,
        tile_n=32,
        consumers=1,
        store=Store.DIRECT,
        rescale=Rescale.ON_OVERFLOW,
        producer_registers=40,
        consumer_registers=232,
    )
    if kernel.schedule.startswith("candidate"):
        number = int(kernel.schedule.removeprefix("candidate_"))
        return alternatives(kernel.spec, kernel.target)[number - 1]
    return {
        "default": default,
        "always": dataclasses.replace(default, rescale=Rescale.ALWAYS),
        "on_growth": dataclasses.replace(default, rescale=Rescale.ON_GROWTH),
        "on_overflow": dataclasses.replace(default, rescale=Rescale.ON_OVERFLOW),
        "narrow": narrow,
        "two_p": dataclasses.replace(
            narrow,
            tile_m=128,
            tile_n=64,
            consumers=2,
            persistent=True,
            ping_pong=True,
            p_buffers=2,
        ),
    }[kernel.schedule]


def kernels() -> tuple[Kernel, ...]:
    """Return what the inputs run on."""
    rows = (
        ("bf16", 64, False, ("default", "always", "on_growth", "narrow", "two_p")),
        ("bf16", 64, True, ("default", "always", "on_growth", "narrow", "two_p")),
        ("fp16", 64, False, ("default", "on_growth", "two_p")),
        ("fp16", 64, True, ("default",)),
        ("bf16", 128, True, ("default",)),
        ("fp16", 128, False, ("candidate_3",)),
    )
    found = [
        Kernel(
            spec=AttentionSpec(dtype=dtype, head_dim=d, causal=causal),
            target="sm90",
            schedule=schedule,
        )
        for dtype, d, causal, schedules in rows
        for schedule in schedules
    ]
    found += [
        Kernel(
            spec=AttentionSpec(dtype=dtype, head_dim=64, causal=causal),
            target="gfx942",
            schedule="default",
        )
        for dtype in ("bf16", "fp16")
        for causal in (False, True)
    ]
    return tuple(found)


def gpu_kernels() -> tuple[Kernel, ...]:
    """Return those of the emulator for the GPU, and others of deeper heads."""
    dims = ({"head_dim": 128}, {"head_dim": 256}, {"head_dim": 192, "head_dim_v": 128})
    wide = tuple(
        Kernel(spec=AttentionSpec(causal=causal, **depths), target="sm90", schedule=mode)
        for causal in (False, True)
        for depths in dims
        for mode in ("default", "always", "on_overflow")
    )
    mine = (kernel for kernel in kernels() if kernel.target == "sm90")
    return tuple(dict.fromkeys((*mine, *wide)))


def check(spec: AttentionSpec, result: Run, tensors: Tensors, scale: float | None) -> None:
    with np.errstate(invalid="ignore"):
        expected = reference(spec, *tensors, scale=scale)
    found = compare(result.o, result.lse, *expected)
    assert found.within(tolerance_of(spec.dtype)), str(found)


@functools.cache
def quiet(kernel: Kernel) -> Mapping[str, int]:
    """Count the instructions of a call whose scores are all 0."""
    q, k, v = inputs()[0].tensors(kernel.setting)
    return emulate(kernel.plan, (np.zeros_like(q), k, v)).report.instructions


def check_branches(kernel: Kernel, case: Input, tensors: Tensors, run: Run) -> None:
    """Hold the counts of a run to what the input is made for, and to the model."""
    seen = run.report.instructions
    mode = kernel.plan.schedule.rescale
    full = not kernel.spec.causal
    if mode == Rescale.ON_GROWTH and full and case.grows is not None:
        assert (seen["shfl"] > quiet(kernel)["shfl"]) == case.grows
    if mode != Rescale.ON_OVERFLOW:
        return
    scale = kernel.spec.scale_value if case.scale is None else case.scale
    counts = count(kernel.plan, tensors[0], tensors[1], scale_log2_of(scale))
    repairs = counts.shrinks + counts.recomputations
    qk, pv = kernel.spec.d // 16, kernel.plan.schedule.tile_n // 16
    extra = seen["wgmma"] - GROUP_WARPS * counts.steps * (qk + pv)
    again = seen.get("mma.m16n8k16", 0)
    if kernel.plan.spare_registers:
        assert (seen.get("bar.red", 0), extra) == (0, 0)
        assert again == counts.recomputations * qk * (kernel.plan.schedule.tile_n // 8)
    else:
        assert seen["bar.red"] == GROUP_THREADS * (counts.votes + repairs)
        assert (extra, again) == (GROUP_WARPS * counts.recomputations * qk, 0)
    if full and case.repairs is not None:
        assert (repairs > 0) == case.repairs
    if full and case.exact is not None:
        assert (extra + again > 0) == case.exact


@pytest.mark.parametrize("case", inputs(), ids=lambda case: case.name)
@pytest.mark.parametrize("kernel", kernels(), ids=lambda kernel: kernel.name)
def test_o_and_lse_are_right(kernel: Kernel, case: Input) -> None:
    tensors = case.tensors(kernel.setting)
    run = emulate(kernel.plan, tensors, scale=case.scale)
    check(kernel.spec, run, tensors, case.scale)
    if kernel.target == "sm90":
        check_branches(kernel, case, tensors, run)


MODES = ("default", "on_growth", "always")
TARGETS = (*(("sm90", mode) for mode in MODES), ("gfx942", "default"))


def small_kernel(target: str, schedule: str, **fields: object) -> Kernel:
    return Kernel(spec=AttentionSpec(head_dim=64, **fields), target=target, schedule=schedule)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("schedule", ["default", "narrow", "two_p"])
def test_a_row_without_a_reference_is_repaired(schedule: str, dtype: str) -> None:
    """The first row of a tile sees none of the partly visible key tiles; Q of 0 does no harm."""
    kernel = small_kernel("sm90", schedule, dtype=dtype, causal=True)
    q, k, v = inputs()[0].tensors(kernel.setting)
    q = np.zeros_like(q)
    run = emulate(kernel.plan, (q, k, v))
    check(kernel.spec, run, (q, k, v), None)
    counts = count(kernel.plan, q, k, scale_log2_of(kernel.spec.scale_value))
    assert counts.shrinks == 0
    # a row of each warpgroup, or of each tile where warpgroups do not leave hidden key tiles out
    assert counts.recomputations == {"default": 3, "narrow": 3, "two_p": 2}[schedule]
    repairs = run.report.instructions["bar.red"] // GROUP_THREADS - counts.votes
    assert repairs == counts.recomputations


@pytest.mark.parametrize(("target", "schedule"), TARGETS)
@pytest.mark.parametrize("keys", [1, 30, 64])
def test_a_key_tile_of_minus_infinity(target: str, schedule: str, keys: int) -> None:
    """Scores of -inf in the first key tile, which is all of it or a part."""
    kernel = small_kernel(target, schedule)
    rng = np.random.default_rng(keys)
    q = np.abs(rng.standard_normal((1, 70, 1, 64))) + 0.1
    k, v = rng.standard_normal((2, 1, 256, 1, 64))
    where = slice(256 - keys, 256) if target == "sm90" else slice(keys)
    k[0, where, 0, 5] = -np.inf
    tensors = tuple(x.astype(NUMPY_DTYPES["bf16"]) for x in (q, k, v))
    run = emulate(kernel.plan, tensors)
    check(kernel.spec, run, tensors, None)
    if schedule == "default" and target == "sm90":
        assert (run.report.instructions["bar.red"] > quiet_votes(kernel, 70, 256)) == (keys == 64)


def quiet_votes(kernel: Kernel, rows: int, keys: int) -> int:
    zeros = np.zeros((1, rows, 1, kernel.spec.d)), np.zeros((1, keys, 1, kernel.spec.d))
    return GROUP_THREADS * count(kernel.plan, *zeros, 1.0).votes


@pytest.mark.parametrize(("target", "schedule"), TARGETS)
@pytest.mark.parametrize("what", ["q", "k", "k_infinite", "hidden_k"])
def test_a_nan_stays_where_it_belongs(target: str, schedule: str, what: str) -> None:
    """A NaN in Q is its row's, one in K that of the rows that see the key."""
    kernel = small_kernel(target, schedule, causal=what == "hidden_k")
    rng = np.random.default_rng(1)
    q, k, v = np.abs(rng.standard_normal((3, 1, 200, 1, 64)))
    tensor = q if what == "q" else k
    tensor[0, 100, 0, 5] = np.inf if what == "k_infinite" else np.nan
    tensors = tuple(x.astype(NUMPY_DTYPES["bf16"]) for x in (q, k, v))
    run = emulate(kernel.plan, tensors)
    check(kernel.spec, run, tensors, None)
    rows = {"q": 1, "k": 200, "k_infinite": 200, "hidden_k": 100}[what]
    assert np.isnan(run.lse).sum() == rows


@pytest.mark.parametrize(("target", "schedule"), TARGETS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_scores_up_to_the_limit(target: str, schedule: str, dtype: str) -> None:
    """Scores of nearly 2^27 in units of log2, where the reference is a multiple of 8."""
    kernel = small_kernel(target, schedule, dtype=dtype)
    rng = np.random.default_rng(2)
    q, k = 700 * (np.abs(rng.standard_normal((2, 1, 150, 1, 64))) + 1)
    v = rng.standard_normal((1, 150, 1, 64))
    tensors = tuple(x.astype(NUMPY_DTYPES[dtype]) for x in (q, k, v))
    q64, k64 = (x[0, :, 0].astype(np.float64) for x in tensors[:2])
    scale = 0.99 * 2.0**27 / (q64 @ k64.T).max() * UNIT_SCALE
    check(kernel.spec, emulate(kernel.plan, tensors, scale=scale), tensors, scale)


@pytest.mark.parametrize("level", [2.0**10, 2.0**14, 2.0**17, 2.0**20])
@pytest.mark.parametrize("schedule", MODES)
def test_a_repair_keeps_weights(schedule: str, level: float) -> None:
    """Two key tiles of equal weight, one repaired: O is 0, however large the reference is.

    The repair adds to the reference, which rounds: what brings O down must be taken from the
    rounded reference.
    """
    kernel = small_kernel("sm90", schedule, dtype="fp16")
    n = np.arange(512)
    turn = 7 - n // 64
    q, k = np.zeros((64, 64)), np.zeros((512, 64))
    q[:, 0], k[:, 0] = 128, level / 128
    q[:, 1], k[:, 1] = 1, np.where(turn == 0, 0, np.where((turn <= 2) & (n % 64 < 43), 14, -100))
    v = np.where(turn == 1, 1.0, np.where(turn == 2, -1.0, 0.0))[:, None] * np.ones(64)
    tensors = tuple(x[None, :, None].astype(np.float16) for x in (q, k, v))
    run = emulate(kernel.plan, tensors, scale=UNIT_SCALE)
    expected, lse = reference(kernel.spec, *tensors, scale=UNIT_SCALE)
    np.testing.assert_allclose(run.lse, lse, rtol=3e-7)
    assert np.abs(run.o.astype(np.float64) - expected).max() < 2e-5


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", gpu_kernels(), ids=lambda kernel: kernel.name)
def test_o_and_lse_are_right_on_a_gpu(kernel: Kernel) -> None:
    """Every input, on the device."""
    import torch

    from fmhagen.api import compile_kernel

    compiled = compile_kernel(kernel.spec, device="cuda", schedule=schedule_of(kernel))
    for case in inputs():
        tensors = case.tensors(kernel.setting)
        dtype = torch.float16 if kernel.spec.dtype == "fp16" else torch.bfloat16
        q, k, v = (torch.from_numpy(x.view(np.int16)).view(dtype).to("cuda") for x in tensors)
        o, lse = compiled(q, k, v, scale=case.scale, return_lse=True)
        torch.cuda.synchronize()
        found = compare(o, lse, *reference(kernel.spec, *tensors, scale=case.scale))
        assert found.within(tolerance_of(kernel.spec.dtype)), f"{case.name}\n{found}"
