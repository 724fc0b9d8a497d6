"""Every shipped schedule compiles cleanly: no spills, no local memory, nothing serialised."""

from __future__ import annotations

import pytest

from fmhagen.api import emit
from fmhagen.committed.measure import pinned_compiler
from fmhagen.compile import compile_source
from fmhagen.schedules import Row, shipped_rows
from fmhagen.select import choose
from fmhagen.spec import AttentionSpec, DType
from fmhagen.targets import find_target
from fmhagen.tune.prebuild import SERIALISED


def name(row: Row) -> str:
    mask = "causal" if row.causal else "full"
    return f"{row.target}-{row.dtype}-{row.head_dim}-{row.head_dim_v}-{mask}-{row.max_seqlen}"


@pytest.mark.parametrize("row", shipped_rows(), ids=name)
def test_a_shipped_schedule_is_used_and_compiles_cleanly(row: Row) -> None:
    spec = AttentionSpec(
        dtype=DType(row.dtype),
        head_dim=row.head_dim,
        head_dim_v=row.head_dim_v,
        causal=row.causal,
    )
    hint = row.max_seqlen or None
    assert choose(spec, find_target(row.target), seqlen_hint=hint).schedule == row.schedule
    compiler = pinned_compiler(row.target)
    if compiler is None:
        pytest.skip(f"no pinned compiler for {row.target} is here")
    source = emit(spec, row.schedule, target=row.target)
    binary = compile_source(source, compiler=compiler.name, allow_spills=True)
    assert binary.resources.clean, binary.resources
    assert not SERIALISED.search(binary.log), binary.log
