"""Masks, score functions, sinks and packed sequences on a GPU, against float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from language_cases import MASKS
from language_problems import Problem

from fmhagen.spec import AttentionSpec

LENGTHS = ((1, 1), (65, 200), (0, 5), (130, 130), (900, 1333), (7, 0), (64, 64), (300, 20))
MODS: dict[str, dict[str, Any]] = {
    "alibi": {"alibi": True},
    "window": {"window_left": 90},
    "sink": {"sink": True},
    "sink_tokens": {"mask_mod": "(kv_idx < 4) | (q_idx - kv_idx < 90)"},
    "relative": {"score_mod": "score - 0.01 * abs(q_idx - kv_idx)"},
    "hides": {"score_mod": "where((q_idx + kv_idx) % 3 == 0, -inf, score)"},
    "everything": {"window_left": 150, "sink": True, "alibi": True},
}
DIMS = (
    {"head_dim": 64},
    {"head_dim": 128},
    {"head_dim": 192, "head_dim_v": 128},
    {"head_dim": 64, "head_dim_v": 128},
    {"head_dim": 256},
)


def on_device(array: npt.NDArray[Any]) -> Any:
    """Return a NumPy array as a tensor of the device; bf16 by its bits."""
    import torch

    if array.dtype.name == "bfloat16":
        bits = torch.from_numpy(np.ascontiguousarray(array).view(np.int16))
        return bits.view(torch.bfloat16).to("cuda")
    return torch.from_numpy(np.ascontiguousarray(array)).to("cuda")


def run(problem: Problem) -> None:
    """Run a problem twice: right, and the same bits."""
    import torch

    from fmhagen.api import compile_kernel

    kernel = compile_kernel(problem.spec, device="cuda")
    q, k, v = (on_device(x) for x in problem.tensors())
    arguments = problem.arguments()
    extras: dict[str, Any] = {
        name: on_device(value) for name, value in arguments.items() if name != "params"
    }
    if problem.params:
        extras["params"] = {name: on_device(value) for name, value in problem.params.items()}
    results = [kernel(q, k, v, return_lse=True, **extras) for _ in range(2)]
    torch.cuda.synchronize()
    (o, lse), (o_again, lse_again) = results
    if problem.used is None:
        assert torch.equal(o, o_again)
        assert torch.equal(lse, lse_again)
    problem.check(o.float().cpu().numpy(), lse.cpu().numpy())


@pytest.mark.gpu
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    case = MASKS[name]
    keys = 256 if case.params else 1000
    spec = dataclasses.replace(case.spec, head_dim=128)
    run(Problem(name=name, spec=spec, rows=256, keys=keys, params=case.params))


@pytest.mark.gpu
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("name", MODS)
def test_features(name: str, dims: dict[str, int]) -> None:
    for causal in (False, True):
        for magnitude in (1.0, 60.0):
            fields = {**MODS[name], **dims, "causal": causal}
            if not causal and "window_left" in fields:
                fields["window_right"] = 40
            spec = AttentionSpec(**fields)
            problem = Problem(name=name, spec=spec, rows=1000, keys=1500, magnitude=magnitude)
            run(problem)


@pytest.mark.gpu
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("name", ["full", *MODS])
def test_packed_sequences(name: str, dims: dict[str, int]) -> None:
    for causal in (False, True):
        fields = {**MODS.get(name, {}), **dims, "causal": causal, "varlen": True}
        if not causal and "window_left" in fields:
            fields["window_right"] = 40
        spec = AttentionSpec(**fields)
        for used in (None, tuple((rows * 2 // 3, keys // 2) for rows, keys in LENGTHS)):
            run(Problem(name=name, spec=spec, heads=4, heads_kv=2, lengths=LENGTHS, used=used))


@pytest.mark.gpu
def test_more_sequences_than_places() -> None:
    rng = np.random.default_rng(0)
    for causal in (False, True):
        spec = AttentionSpec(head_dim=64, causal=causal, varlen=True)
        lengths = tuple((int(n), int(n)) for n in rng.integers(0, 40, 5000))
        run(Problem(name="many", spec=spec, heads=2, heads_kv=1, lengths=lengths))
