"""Many query rows over a cache by waves on the emulator, against float64 with poison everywhere."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from cache_cases import HUGE_PAGE, cache_arguments, make_cache
from emulated import library, with_text
from faults import Edit
from test_prefill_kernels import (
    CAUSAL,
    LENGTHS,
    MANY,
    ROWS,
    alarm_of,
    check_unseen,
    kernel,
    run,
    run_packed,
)

from fmhagen import AttentionSpec
from fmhagen.emission import emit_source
from fmhagen.errors import ScheduleError, TensorError, UnsupportedSpecError
from fmhagen.lowering import lower
from fmhagen.runtime.launch_values import Operand, unfit_rows
from fmhagen.schedule import MainLoop
from fmhagen.select import PREFILL_ROWS, default_schedule
from fmhagen.targets import GFX942

TARGET = "gfx942"


@pytest.mark.parametrize("page_size", [None, 1])
def test_rows_of_one_number(page_size: int | None) -> None:
    spec = dataclasses.replace(CAUSAL, page_size=page_size, max_logit=page_size == 1)
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=140, heads=2, heads_kv=1, room=60)
    run(spec, cache, target=TARGET)


@pytest.mark.parametrize(("page_size", "changes"), [(None, {}), (24, {}), (16, {"sink": True})])
def test_packed_rows(page_size: int | None, changes: dict[str, Any]) -> None:
    spec = dataclasses.replace(CAUSAL, page_size=page_size, varlen=True)
    cache = make_cache(spec, lengths=LENGTHS, heads=2, heads_kv=1, room=40)
    gap = 3 if page_size == 24 else 0
    run_packed(spec, cache, ROWS, gap=gap, target=TARGET)


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_layout": "hnd", "layout": "bhsd", "head_dim": 64, "page_size": 16},
        {"head_dim": 256, "page_size": 8, "dtype": "fp16"},
        {"head_dim": 192, "page_size": 7, "cache_layout": "hnd"},
        {"head_dim": 64, "causal": False, "window_left": 40, "window_right": 9, "page_size": 16},
        {"head_dim": 80, "causal": False, "soft_cap": 3.0, "page_size": 128},
        {"mask_mod": "kv_idx % 3 != 1", "page_size": 5},
    ],
)
def test_kinds_of_spec(changes: dict[str, Any]) -> None:
    spec = dataclasses.replace(CAUSAL, **changes)
    lengths = (0, 200, 70)
    cache = make_cache(spec, lengths=lengths, seqlen_q=100, heads=2, heads_kv=1, room=40)
    run(spec, cache, target=TARGET)


def test_sinks_and_slopes() -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=16, sink=True, alibi=True)
    cache = make_cache(spec, lengths=(0, 200, 1), seqlen_q=100, heads=4, heads_kv=2)
    sinks = np.array((0.5, -3.0, 9.0, -np.inf), np.float32)
    slopes = np.array((0.5, 0.25, 0.0, 0.1), np.float32)
    run(spec, cache, target=TARGET, sinks=sinks, alibi_slopes=slopes)


@pytest.mark.parametrize(("page_size", "mask"), [(16, "window"), (1, "bands"), (None, "window")])
def test_what_no_row_sees_may_hold_anything(page_size: int | None, mask: str) -> None:
    check_unseen(page_size, mask, TARGET)


def test_wrong_lengths_and_tables_give_no_fault() -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=16)
    cache = make_cache(spec, lengths=(40, 200), seqlen_q=70, heads=2, heads_kv=1)
    call = kernel(spec, 0, False, TARGET)
    for lengths, entry in (((-7, 2**31 - 1), HUGE_PAGE), ((40, 9999), -1)):
        table = np.full_like(cache.table, entry)  # type: ignore[arg-type]
        wrong = np.array(lengths, np.int32)
        # NOTE: some page is read in place of one that is none; out of bounds nothing is.
        call(cache.q, cache.k, cache.v, cache_seqlens=wrong, block_table=table)
    for k, v, table in (
        (cache.k, cache.v, np.zeros((2, 0), np.int32)),
        (cache.k[:0], cache.v[:0], np.zeros((2, 3), np.int32)),
    ):
        o, lse = call(
            *(cache.q, k, v), cache_seqlens=cache.lengths, block_table=table, return_lse=True
        )
        assert not o.astype(np.float64).any()
        assert np.isneginf(lse).all()


def test_which_main_loop_reads_a_cache() -> None:
    def loop(spec: AttentionSpec, rows: int | None) -> str:
        return default_schedule(spec, GFX942, query_hint=rows).main_loop

    assert loop(CAUSAL, None) == loop(CAUSAL, PREFILL_ROWS - 1) == MainLoop.SPLIT_KV
    assert loop(CAUSAL, PREFILL_ROWS) == MainLoop.WAVE_PIPELINED
    assert loop(dataclasses.replace(CAUSAL, varlen=True), None) == MainLoop.WAVE_PIPELINED
    small = dataclasses.replace(CAUSAL, kv_dtype="e4m3")
    assert loop(small, 4096) == MainLoop.WAVE_PIPELINED
    assert loop(dataclasses.replace(small, kv_scale="token"), 4096) == MainLoop.WAVE_PIPELINED
    deep = dataclasses.replace(small, kv_scale="token", head_dim=256, page_size=16)
    assert loop(deep, 4096) == MainLoop.SPLIT_KV  # no registers for its factors
    with pytest.raises(UnsupportedSpecError, match="kv_scale='head'"):
        loop(dataclasses.replace(deep, varlen=True), None)
    wide = dataclasses.replace(CAUSAL, head_dim=256, page_size=6)
    assert loop(wide, 4096) == MainLoop.SPLIT_KV  # no registers for its divisions
    assert loop(dataclasses.replace(wide, page_size=12), 4096) == MainLoop.WAVE_PIPELINED
    with pytest.raises(UnsupportedSpecError, match="pages of 6 keys"):
        loop(dataclasses.replace(wide, varlen=True), None)


def test_what_is_refused() -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=16)
    cache = make_cache(spec, lengths=(40, 20), seqlen_q=70, heads=2, heads_kv=1)
    with pytest.raises(TensorError, match="num_splits"):
        kernel(spec, 0, False, TARGET)(
            cache.q, cache.k, cache.v, num_splits=4, **cache_arguments(cache)
        )
    best = default_schedule(spec, GFX942, query_hint=MANY)
    for other in (MainLoop.WAVE_PING_PONG, MainLoop.WAVE_INTERLEAVED):
        with pytest.raises(ScheduleError, match="main_loop"):
            lower(spec, dataclasses.replace(best, main_loop=other), GFX942)
    plan = lower(spec, best, GFX942)
    far = Operand(
        name="k",
        depth=64,
        batch=3,
        heads=1,
        rows=16,
        stride_b=2**31,
        stride_h=64,
        stride_m=64,
        element_bytes=2,
        dtype="bf16",
    )
    assert "4 GiB" in str(unfit_rows(plan, far))
    assert unfit_rows(plan, dataclasses.replace(far, stride_b=2**31 - 8)) is None


# Edits of the emitted file, and what the emulator says of them; "" is a wrong result.
FAULTS = {
    "values of nobody stay": ("clear_unseen(w, next);", "", ("",)),
    "values of nobody go to others": ("clear_unseen(w, w.turns.next);", "", ("",)),
    "pages of the step before": ("w.turns.ahead * UNIT", "w.turns.key * UNIT", ("",)),
    "pages that are none": (
        "page < rows.last_page ? page : rows.last_page",
        "page",
        ("out_of_bounds",),
    ),
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda name: name.replace(" ", "_"))
def test_planted_faults_are_found(fault: str) -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=32)
    cache = make_cache(spec, lengths=(90, 450), seqlen_q=70, heads=2, heads_kv=1)
    plan = lower(spec, default_schedule(spec, GFX942, query_hint=MANY), GFX942)
    source = emit_source(plan)
    old, new, kinds = FAULTS[fault]
    text = Edit(old=old, new=new).apply(source.text)
    binary = functools.partial(library, with_text(source, text), "O0")
    assert alarm_of(plan, binary, cache) in kinds
