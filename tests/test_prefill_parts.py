"""Many query rows over a cache whose keys are cut, on the emulator, against float64."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from cache_cases import Cache, assert_right, cache_arguments, call_kernel, make_cache
from emulated import library, with_text
from test_prefill_kernels import CAUSAL

from fmhagen import AttentionSpec, compile_kernel
from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError, ScheduleError, TensorError
from fmhagen.kernel import Kernel
from fmhagen.lowering import lower
from fmhagen.runtime.cache_calls import CacheCalls
from fmhagen.runtime.emulator_backend import EmulatorBackend, EmulatorOptions
from fmhagen.runtime.launcher import Launcher
from fmhagen.schedule import Schedule
from fmhagen.select import default_schedule
from fmhagen.targets import SM90

LENGTHS = (0, 130, 1, 500)


def schedule_of(spec: AttentionSpec, *, packs: bool = True) -> Schedule:
    schedule = default_schedule(spec, SM90, query_hint=200)
    return dataclasses.replace(schedule, split_keys=True, pack_heads=packs)


@functools.cache
def kernel(spec: AttentionSpec, *, packs: bool = True) -> Kernel:
    return compile_kernel(
        spec,
        device="emulator",
        emulator=EmulatorOptions(compute_units=3),
        schedule=schedule_of(spec, packs=packs),
        query_hint=200,
    )


def run(spec: AttentionSpec, cache: Cache, *, packs: bool = True, **more: Any) -> Any:
    own = {name: item for name, item in more.items() if name != "num_splits"}
    more.pop("roundings", None)
    o, lse = call_kernel(kernel(spec, packs=packs), cache, **more)
    assert_right(spec, cache, o, lse, **own)
    return o, lse


@pytest.mark.parametrize(
    ("splits", "changes"),
    [
        (7, {"page_size": 16}),
        (2, {"page_size": 1, "head_dim": 64, "head_dim_v": 96}),
        (3, {"page_size": 24, "window_left": 200, "causal": False, "window_right": 3}),
        (2, {"mask_mod": "kv_idx % 3 != 1", "head_dim": 64}),
    ],
)
def test_parts_are_added_up(splits: int, changes: dict[str, Any]) -> None:
    spec = dataclasses.replace(CAUSAL, **changes)
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=70, heads=2, heads_kv=1, room=60)
    run(spec, cache, num_splits=splits)


@pytest.mark.parametrize("packs", [False, True])
def test_sinks_are_in_one_part(packs: bool) -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, sink=True, dtype="fp16", soft_cap=3.0)
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=70, heads=4, heads_kv=2)
    sinks = np.array((0.5, -3.0, 9.0, -np.inf), np.float32)
    run(spec, cache, packs=packs, num_splits=3, sinks=sinks)


def test_one_part_is_the_kernel_that_does_not_cut() -> None:
    spec = dataclasses.replace(CAUSAL, page_size=16, head_dim=64)
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=70, heads=2, heads_kv=1)
    o, lse = run(spec, cache, num_splits=1)
    plain = compile_kernel(
        spec,
        device="emulator",
        emulator=EmulatorOptions(compute_units=3),
        schedule=dataclasses.replace(schedule_of(spec), split_keys=False),
    )
    others = plain(cache.q, cache.k, cache.v, return_lse=True, **cache_arguments(cache))
    assert np.array_equal(o.view(np.uint16), others[0].view(np.uint16))
    assert np.array_equal(lse, others[1])


def test_parts_are_not_read_before_the_first_launch_has_ended() -> None:
    spec = dataclasses.replace(CAUSAL, page_size=16, head_dim=64)
    cache = make_cache(spec, lengths=(300,), seqlen_q=70, heads=1, heads_kv=1)
    source = emit_source(lower(spec, schedule_of(spec), SM90))
    wait = "  wait_for_primary_knowing(b | h);\n"
    assert source.text.count(wait) == 1
    assert run_text(spec, cache, source.text) == ""
    assert "wait_for_primary" in run_text(spec, cache, source.text.replace(wait, ""))


def run_text(spec: AttentionSpec, cache: Cache, text: str) -> str:
    """Return what the emulator says of both launches of a text."""
    plan = lower(spec, schedule_of(spec), SM90)
    binary = library(with_text(emit_source(plan), text), "O0")
    launcher = Launcher(plan, EmulatorBackend(EmulatorOptions(compute_units=3)), lambda: binary)
    given = {**cache_arguments(cache), "num_splits": 3}
    try:
        CacheCalls(spec, lambda q: launcher)(cache.q, cache.k, cache.v, extras=given)
    except EmulatorError as error:
        return str(error)
    return ""


def test_what_is_refused() -> None:
    cache = make_cache(CAUSAL, lengths=(40, 20), seqlen_q=70, heads=2, heads_kv=1)
    with pytest.raises(TensorError, match="at most 32 parts"):
        kernel(CAUSAL)(cache.q, cache.k, cache.v, num_splits=33, **cache_arguments(cache))
    for changes in ({"varlen": True}, {"batch_invariant": True}):
        spec = dataclasses.replace(CAUSAL, **changes)
        with pytest.raises(ScheduleError, match="split_keys"):
            lower(spec, schedule_of(spec), SM90)
