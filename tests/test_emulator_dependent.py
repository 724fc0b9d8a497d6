"""Dependent launches on the emulator: nothing is relied on before a kernel has waited."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from emulator_support import ALL_SEEDS, aligned, buffer, build, pack

from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator import Buffer

TEXT = """
struct alignas(64) Params {
  const u16* in;
  f32* results;
};

// One warp: each lane copies sixteen bytes and stores the first word.
extern "C" __global__ void __launch_bounds__(32, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 lane = thread_index(), row = smem_base() + lane * 16;
  BEFORE
  copy_async_16(row, params.in + lane * 8, 16);
  BETWEEN
  copy_async_commit();
  copy_async_wait<0>();
  warp_sync();
  AFTER
  store_global_f32(params.results + lane, static_cast<f32>(load_shared_u32(row)));
}
"""


def run(
    before: str, between: str = "", *, seed: int = 0, settled: bool = False, **launch: bool
) -> str:
    """Run the kernel; return what the emulator says, "" if nothing."""
    source, results = aligned((32, 8), np.uint16), aligned((32,), np.float32)
    buffers: tuple[Buffer, ...] = (
        dataclasses.replace(buffer("in", source), settled=settled),
        buffer("results", results, output=True),
    )
    text = TEXT.replace("BEFORE", before).replace("BETWEEN", between)
    text = text.replace("AFTER", "")
    try:
        build(text, 32, 1024).run(
            params=pack(("2Q", (source.ctypes.data, results.ctypes.data))),
            grid=1,
            threads=32,
            smem_bytes=1024,
            buffers=buffers,
            seed=seed,
            **launch,
        )
    except EmulatorError as error:
        return str(error) if error.kind == "race" else f"another kind: {error.kind}"
    return ""


@pytest.mark.parametrize("seed", ALL_SEEDS)
def test_a_copy_that_was_issued_before_the_wait_is_found_whenever_it_reads(seed: int) -> None:
    found = run("", "wait_for_primary();", seed=seed, is_dependent=True)
    assert "copy_async_16" in found
    assert "offset" in found
    assert "of in ahead of wait_for_primary" in found


def test_every_lane_waits_for_itself() -> None:
    found = run("if (lane != 7) wait_for_primary();", is_dependent=True)
    assert "lane 7" in found


def test_settled_memory_may_be_read_but_nothing_written() -> None:
    assert run("", "wait_for_primary();", is_dependent=True, settled=True) == ""
    assert "store_global_f32" in run("", is_dependent=True, settled=True)


def test_the_launch_behind_begins_after_the_wait_where_it_relies_on_it() -> None:
    early, late = "launch_dependents(); wait_for_primary();", "wait_for_primary();"
    assert "launch_dependents" in run(early, is_dependent=True, leads=True)
    assert run(early, is_dependent=True) == ""
    assert run(late, "launch_dependents();", is_dependent=True, leads=True) == ""


def test_a_launch_that_is_not_dependent_need_not_wait() -> None:
    assert run("") == ""
    assert run("launch_dependents();", leads=True) == ""


def test_a_kept_buffer_may_stay_unwritten_and_is_written_once_at_most() -> None:
    source, results = aligned((32, 8), np.uint16), aligned((32,), np.float32)
    results[...] = 5.0
    text = TEXT.replace("BEFORE", "").replace("BETWEEN", "")
    text = text.replace("AFTER", "if (lane > 3) return;")
    twice = text.replace("params.results + lane", "params.results + lane % 3")
    kept = dataclasses.replace(buffer("results", results, output=True), is_kept=True)
    arguments = {
        "params": pack(("2Q", (source.ctypes.data, results.ctypes.data))),
        "grid": 1,
        "threads": 32,
        "smem_bytes": 1024,
        "buffers": (buffer("in", source), kept),
    }
    report = build(text, 32, 1024).run(**arguments)
    assert results.tolist() == [0.0] * 4 + [5.0] * 28
    assert report.buffers[1].unwritten_bytes == 0
    with pytest.raises(EmulatorError, match="byte 0 of results was already written"):
        build(twice, 32, 1024).run(**arguments)
