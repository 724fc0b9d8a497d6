"""Caches of a benchmark: they hold the numbers that float64 is computed from, in any pages."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fmhagen import compile_kernel
from fmhagen.bench.caches import caches_of, stored
from fmhagen.bench.workloads import cached
from fmhagen.oracle.attention import reference
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.spec import AttentionSpec

SPECS: tuple[dict[str, Any], ...] = (
    {},
    {"page_size": 16},
    {"kv_dtype": "e4m3", "page_size": 7},
    {"kv_dtype": "e5m2", "kv_scale": "tensor"},
    {"kv_dtype": "int8", "kv_scale": "head"},
    {"kv_dtype": "e4m3", "kv_scale": "token", "page_size": 16},
)


@pytest.mark.parametrize("more", SPECS, ids=str)
def test_a_cache_gives_what_its_inputs_give(more: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    spec = AttentionSpec.from_dict({"kv_cache": True, "head_dim": 64, **more})
    workload = dataclasses.replace(cached(spec, ((2, 45),))[0], heads=4, heads_kv=2)
    generator = torch.Generator().manual_seed(0)

    def normal(length: int, heads: int) -> Any:
        return torch.randn((2, length, heads, 64), generator=generator).to(torch.bfloat16)

    q, k, v = normal(1, 4), normal(45, 2), normal(45, 2)
    k, v = (stored(torch, spec, x).to(torch.bfloat16) for x in (k, v))
    (cache,) = caches_of(torch, workload, [(q, k, v)])
    options = EmulatorOptions(optimisation="O0")
    kernel = compile_kernel(spec, device="emulator", emulator=options)
    o = kernel(cache.q, cache.k, cache.v, **cache.arguments)
    q, k, v, o = (x.double().numpy() for x in (q, k, v, o))
    right, _ = reference(AttentionSpec(head_dim=64), q, k, v)
    assert abs(o - right).max() <= abs(v).max() * 2.0**-8
