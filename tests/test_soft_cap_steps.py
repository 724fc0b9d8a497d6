"""Soft caps on sm90: the polynomial, the tangent, the ways from one to the other, one reference."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from emulated import emulate, plan_of
from language_problems import Problem

from fmhagen.api import emit
from fmhagen.lowering.warp_specialised_scores import LIMIT
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.schedule import MainLoop, Rescale, Schedule, Store
from fmhagen.spec import AttentionSpec

THREE = Schedule(
    main_loop=MainLoop.WARP_SPECIALISED,
    tile_m=192,
    tile_n=80,
    consumers=3,
    q_stages=2,
    persistent=True,
    store=Store.STAGED,
    ping_pong=True,
    rescale=Rescale.ON_OVERFLOW,
    producer_registers=32,
    consumer_registers=160,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loud(Problem):
    """Keys of a range are a factor larger, so that their scores alone come near the cap.

    Attributes:
        loud: first key of the range, and the one past its last.
        factor: of these keys.
    """

    loud: tuple[int, int]
    factor: float = 24.0

    def values(self) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
        """Return q, k and v as (b, h, s, d) arrays."""
        q, k, v = super().values()
        k[:, :, self.loud[0] : self.loud[1]] *= k.dtype.type(self.factor)
        return q, k, v


@dataclasses.dataclass(frozen=True, kw_only=True)
class Poles(Problem):
    """All scores of a row are 512, or all -512; values are small."""

    def values(self) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
        """Return q, k and v as (b, h, s, d) arrays."""
        q, k, v = super().values()
        q[:], k[:] = 8.0, 8.0
        q[:, :, ::3] = -8.0
        return q, k, v * v.dtype.type(2.0**-30)


KERNELS: dict[str, tuple[dict[str, Any], Schedule | None]] = {
    "full": ({"head_dim": 64}, None),
    "causal": ({"head_dim": 64, "causal": True}, None),
    "window": ({"head_dim": 64, "causal": True, "window_left": 300}, None),
    "causal 128": ({"head_dim": 128, "causal": True}, None),
    "causal fp16": ({"head_dim": 64, "causal": True, "dtype": "fp16"}, None),
    "three warpgroups": ({"head_dim": 128, "causal": True}, THREE),
}


# Key tiles are visited from the right, so the first keys come last.
@pytest.mark.parametrize("loud", [(0, 30), (150, 151), (300, 420)], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_scores_come_near_the_cap(name: str, loud: tuple[int, int]) -> None:
    """In the last key tiles, in one between, and in those that are partly visible."""
    fields, schedule = KERNELS[name]
    spec = AttentionSpec(soft_cap=30.0, **fields)
    problem = Loud(name=name, spec=spec, heads=1, batch=1, rows=400, keys=420, loud=loud)
    check(problem, schedule)


def test_all_scores_of_a_row_lie_at_one_end() -> None:
    """At the cap or at its negative: one reference serves rows a factor 2^144 apart."""
    spec = AttentionSpec(soft_cap=50.0, causal=True, head_dim=64)
    check(Poles(name="poles", spec=spec, heads=1, batch=1, rows=200, keys=300), None)


@pytest.mark.parametrize("sink", [-200.0, -30.0, 80.0, -np.inf])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_sinks_beside_one_reference(sink: float, head_dim: int) -> None:
    """However far from the reference it lies, also under rows that see no key."""
    spec = AttentionSpec(soft_cap=50.0, causal=True, head_dim=head_dim, sink=True)
    problem = Problem(
        name="low sink", spec=spec, heads=1, batch=1, rows=200, keys=90, sinks=(sink,)
    )
    check(problem, None)


@pytest.mark.parametrize("name", ["causal", "window"])
def test_the_reference_grows_far_below_the_cap(name: str) -> None:
    """Scores of 30 under a cap of 150: no score is near it, and P overflows all the same."""
    spec = AttentionSpec(soft_cap=150.0, **KERNELS[name][0])
    problem = Loud(
        name=name, spec=spec, heads=1, batch=1, rows=400, keys=420, loud=(100, 140), factor=8.0
    )
    q, k, _ = (x.astype(np.float64) for x in problem.values())
    scores = np.abs(np.einsum("bhmd,bhnd->bhmn", q, k)) / 8
    assert 30 < scores.max() < LIMIT * 150
    check(problem, None)


def check(problem: Problem, schedule: Schedule | None) -> None:
    """Run on two emulated multiprocessors and compare O and LSE with float64.

    The polynomial errs by up to 1.31e-4 of a score, and so of LSE.
    """
    plan = plan_of(problem.spec, "sm90", schedule)
    close = problem.spec.dtype == "bf16" and (problem.spec.soft_cap or 0.0) <= 50
    assert (plan.cap.has_one_reference, plan.cap.has_near_loop) == (close, not close)
    result = emulate(
        plan,
        problem.tensors(),
        extras=problem.extras(),
        options=EmulatorOptions(seed=1, compute_units=2),
    )
    layout = str(problem.spec.layout)
    found = compare(result.o, result.lse, *problem.expected(), layout=layout)
    tolerance = tolerance_of(problem.spec.dtype)
    assert found.within(dataclasses.replace(tolerance, lse=1.31e-4)), f"{problem.name}\n{found}"


def test_the_tangent_is_in_three_places() -> None:
    """In first steps, in one loop and where S is computed again: each takes long to compile."""
    text = emit(AttentionSpec(causal=True, soft_cap=30.0), target="sm90").text
    assert text.count("    modify_scores(s, ") == 3
    assert "repair(" not in text
