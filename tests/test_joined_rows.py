"""Lines whose two rows of a thread share one reference (docs/sm90.md), on the emulator."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from cases import NUMPY_DTYPES
from emulated import Run, emulate, plan_of, with_text
from faults import WRONG_RESULT, Fault, drop, swap
from language_problems import Problem
from softmax_inputs import UNIT_SCALE, Setting

from fmhagen.emission import emit_source
from fmhagen.oracle.attention import reference
from fmhagen.oracle.comparison import Comparison, compare, tolerance_of
from fmhagen.schedule import Rescale
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

ROWS, KEYS = 150, 533  # five key tiles, the first one visited in part
MMA_OF_A_REPAIR = 128  # matrix instructions of a warp that compute its rows of S again
CAUSAL, FULL = (AttentionSpec(causal=causal, alibi=True) for causal in (True, False))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Scores, in units of log2, of rows that are a thread's upper and lower ones in turn.

    Attributes:
        log2: of a key, by the turn of its tile.
        upper, lower: what a row's scores are multiplied by.
        first: the same of a warp's first row, which makes the warp compute S again; None is upper.
        slope: of ALiBi.
        is_smooth: the scores of an upper row's keys of one tile are equal, so that none is rounded.
        scale: softmax scale of the call, as a multiple of that which makes scores exponents.
    """

    log2: Callable[[npt.NDArray], npt.NDArray]
    upper: float = 1.0
    lower: float = 0.0
    first: float | None = None
    slope: float = 2.0**-6
    is_smooth: bool = False
    scale: float = 1.0

    def tensors(self) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
        """Return q, k and v as (1, s, 1, d) arrays."""
        setting = Setting(spec=FULL, tile_n=128, from_right=True, rows=ROWS, keys=KEYS)
        is_upper = np.arange(ROWS) // 8 % 2 == 0
        rows = np.where(is_upper, self.upper, self.lower)
        rows[::16] = self.upper if self.first is None else self.first
        q, k = setting.planted(self.log2(setting.visited.astype(np.float64)), rows)
        q[is_upper, 2:] *= not self.is_smooth
        v = np.random.default_rng(7).standard_normal((KEYS, 128))
        q, k, v = (x[None, :, None].astype(NUMPY_DTYPES["bf16"]) for x in (q, k, v))
        return q, k, v


RIVALS = {
    "equal": Rivals(log2=lambda t: 5.0 + 0 * t, lower=1.0),
    "apart_at_once": Rivals(log2=lambda t: 150.0 + 0 * t),
    "the_lower_one_larger": Rivals(log2=lambda t: 150.0 + 0 * t, upper=0.0, lower=1.0),
    "apart_by_and_by": Rivals(log2=lambda t: 40.0 * t),
    "apart_with_every_repair": Rivals(log2=lambda t: 40.0 * t, first=5.0),
    "catching_up": Rivals(
        log2=lambda t: np.select([t == 1, t == 2], [-150.0, 150.0]), upper=-1.0, lower=0.6
    ),
    "apart_in_a_step": Rivals(log2=lambda t: 200.0 * t),
    "by_turns": Rivals(log2=lambda t: np.where(t % 2 == 1, 300.0, -300.0) * t, lower=-1.0),
    "joined_again": Rivals(log2=lambda t: np.where(t >= 3, -200.0, 90.0), lower=-1.0),
    "too_far_to_shift": Rivals(
        log2=lambda t: 2.0**20 * (t == 1), slope=0.0, is_smooth=True, scale=0.37
    ),
    "steep": Rivals(log2=lambda t: 9.0 * t, lower=1.0, slope=20.0),
    "steep_the_other_way": Rivals(log2=lambda t: 9.0 * t, lower=1.0, slope=-20.0),
    "of_no_scale": Rivals(log2=lambda t: 9.0 * t, slope=9.0, scale=0.0),
}


@functools.cache
def clean_text(spec: AttentionSpec) -> str:
    return emit_source(plan_of(spec, "sm90")).text


def run(spec: AttentionSpec, rivals: Rivals, text: str | None = None) -> tuple[Run, Comparison]:
    """Run rivals, by a text that is the kernel's own if none is given, and compare with float64."""
    plan = plan_of(spec, "sm90")
    source = with_text(emit_source(plan), text or clean_text(spec))
    tensors, scale = rivals.tensors(), UNIT_SCALE * rivals.scale
    extras = {"alibi_slopes": np.array([rivals.slope], np.float32)}
    result = emulate(plan, tensors, source=source, scale=scale, extras=extras)
    expected = reference(spec, *tensors, scale=scale, **extras)
    return result, compare(result.o, result.lse, *expected)


@pytest.mark.parametrize("name", RIVALS)
@pytest.mark.parametrize("spec", [CAUSAL, FULL], ids=["causal", "full"])
def test_rows_that_share_a_reference_are_right(spec: AttentionSpec, name: str) -> None:
    assert plan_of(spec, "sm90").language.joined
    found = run(spec, RIVALS[name])[1]
    assert found.within(tolerance_of("bf16")), str(found)


@pytest.mark.parametrize(
    ("name", "most"), [("equal", 0), ("apart_at_once", 0), ("joined_again", 1)]
)
def test_a_warp_repairs_only_where_something_grows(name: str, most: int) -> None:
    """Rows apart go through the loop like others: not every step is repaired."""
    seen = run(FULL, RIVALS[name])[0].report.instructions
    warps = -(-ROWS // 16)
    assert seen.get("mma.m16n8k16", 0) <= most * warps * MMA_OF_A_REPAIR


FAULTS = {
    "joined_however_far": ("apart_at_once", swap("is_near ? larger : reference[1]", "larger")),
    "shift_left_out": ("apart_at_once", drop("s[i] += shift; s[i + 1] += shift")),
    "shifted_however_far": ("too_far_to_shift", swap("apart < 1024.0f", "apart < 1e30f")),
    "former_keys_count_in_full": (
        "apart_with_every_repair",
        swap("reference[i] + log2_approx(magnitude[i])", "reference[i]"),
    ),
    "what_was_left_out_is_lost": (
        "equal",
        drop("leave_joined(params, tile, m_thread, reference)"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    rivals, edits = FAULTS[name]
    text = Fault(name=name, edits=edits, kinds=(WRONG_RESULT,)).apply(clean_text(FULL))
    assert not run(FULL, RIVALS[rivals], text)[1].within(tolerance_of("bf16"))


LINES: dict[str, dict[str, object]] = {
    "a_number_of_rows": {"score_mod": "score * 0.5 - 0.03 * kv_idx + 7.0 * (q_idx % 5)"},
    "falling_with_the_score": {"score_mod": "0.1 * kv_idx - score", "causal": True},
    "packed_with_sinks": {"alibi": True, "causal": True, "varlen": True, "sink": True},
    "a_window": {"alibi": True, "causal": True, "window_left": 100},
}


@pytest.mark.parametrize("name", LINES)
def test_lines(name: str) -> None:
    """Other lines that are level, rows that see no key among them."""
    spec = AttentionSpec(**LINES[name])
    assert plan_of(spec, "sm90").language.joined
    lengths = ((1, 1), (65, 200), (0, 5), (330, 300), (7, 0)) if spec.varlen else ()
    problem = Problem(
        name=name, spec=spec, batch=1, lengths=lengths, magnitude=30.0, layout="sliced"
    )
    result = emulate(plan_of(spec, "sm90"), problem.tensors(), extras=problem.extras())
    problem.check(result.o, result.lse)


@pytest.mark.parametrize(
    "fields",
    [
        {"alibi": True, "dtype": "fp16"},
        {"alibi": True, "head_dim": 64},
        {"alibi": True, "max_logit": True},
        {"score_mod": "score * (q_idx % 3) + kv_idx"},
        {"score_mod": "score + kv_idx * (q_idx % 3)"},
        {"score_mod": "score * 2.0 + q_idx"},
    ],
    ids=str,
)
def test_other_lines_are_not_joined(fields: dict[str, object]) -> None:
    assert not plan_of(AttentionSpec(**fields), "sm90").language.joined


def test_a_schedule_that_takes_maxima_does_not_join() -> None:
    schedule = dataclasses.replace(
        default_schedule(CAUSAL, find_target("sm90")), rescale=Rescale.ON_GROWTH
    )
    assert not plan_of(CAUSAL, "sm90", schedule).language.joined


@pytest.mark.gpu
@pytest.mark.parametrize("spec", [CAUSAL, FULL], ids=["causal", "full"])
def test_rows_that_share_a_reference_are_right_on_a_gpu(spec: AttentionSpec) -> None:
    import torch

    from fmhagen.api import compile_kernel

    kernel = compile_kernel(spec, device="cuda")
    for name, rivals in RIVALS.items():
        tensors, scale = rivals.tensors(), UNIT_SCALE * rivals.scale
        slopes = np.array([rivals.slope], np.float32)
        q, k, v = (
            torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to("cuda") for x in tensors
        )
        given = torch.from_numpy(slopes).to("cuda")
        o, lse = kernel(q, k, v, scale=scale, alibi_slopes=given, return_lse=True)
        torch.cuda.synchronize()
        found = compare(o, lse, *reference(spec, *tensors, scale=scale, alibi_slopes=slopes))
        assert found.within(tolerance_of("bf16")), f"{name}\n{found}"
