"""Halves of key tiles that no row of a warpgroup sees: right without P V of them, and left out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from emulated import emulate, plan_of
from language_problems import Problem

from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.spec import AttentionSpec

TILE, GROUP_ROWS, HALF = 128, 64, 64
PRODUCTS = (
    8  # matrix instructions of S of a key tile or half of one, and of O += P V of a whole one
)


def seen_by(left: int, right: int, rows: int, keys: int) -> npt.NDArray[np.bool_]:
    """Return which keys each row of a window sees; it is anchored at the bottom right."""
    m = np.arange(rows)[:, None] + keys - rows
    n = np.arange(keys)[None]
    return (m - left <= n) & (n <= m + right)


def halves_of(seen: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Count the steps of all warpgroups, and those of them over half a key tile."""
    steps = halves = 0
    rows, keys = seen.shape
    for m in range(0, rows, TILE):
        for n in range(0, keys, TILE):
            tile = seen[m : m + TILE, n : n + TILE]
            if not tile.any():
                continue
            for at in range(m, m + TILE, GROUP_ROWS):
                own = seen[min(at, rows - 1) : at + GROUP_ROWS, n : n + TILE]
                steps += 1
                halves += not (own[:, :HALF].any() and own[:, HALF:].any())
    return steps, halves


@pytest.mark.parametrize(
    ("left", "right", "rows", "keys"),
    [(255, 0, 640, 640), (100, 0, 420, 420), (90, 30, 300, 330), (60, 0, 333, 500)],
)
def test_halves_are_left_out(left: int, right: int, rows: int, keys: int) -> None:
    """The matrix instructions of a launch are those of the keys that each warpgroup sees."""
    spec = AttentionSpec(window_left=left, window_right=right)
    plan = plan_of(spec, "sm90")
    assert plan.half_tiles
    problem = Problem(name="half", spec=spec, batch=1, heads=1, rows=rows, keys=keys)
    tensors = problem.tensors()
    run = emulate(plan, tensors, options=EmulatorOptions(compute_units=1))
    problem.check(run.o, run.lse)
    steps, halves = halves_of(seen_by(left, right, rows, keys))
    assert halves > 0
    warps = 4
    products = warps * (2 * PRODUCTS * steps - PRODUCTS // 2 * halves)
    assert run.report.instructions["wgmma"] == products


LENGTHS = ((1, 1), (65, 200), (0, 5), (330, 330), (200, 333), (7, 0), (64, 64), (300, 128))
PROBLEMS = (
    Problem(
        name="head dim 112",
        spec=AttentionSpec(window_left=90, window_right=30, head_dim=112, dtype="fp16"),
        rows=300,
        keys=250,
    ),
    Problem(
        name="packed",
        spec=AttentionSpec(causal=True, window_left=70, varlen=True, sink=True),
        lengths=LENGTHS,
    ),
    Problem(
        name="largest scores",
        spec=AttentionSpec(causal=True, window_left=100, anchor="top_left"),
        rows=500,
        keys=333,
        magnitude=30.0,
    ),
)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_half_tiles(problem: Problem) -> None:
    plan = plan_of(problem.spec, "sm90")
    assert plan.half_tiles
    for seed, units in enumerate((1, 3)):
        options = EmulatorOptions(seed=seed, compute_units=units)
        run = emulate(plan, problem.tensors(), extras=problem.extras(), options=options)
        problem.check(run.o, run.lse)
