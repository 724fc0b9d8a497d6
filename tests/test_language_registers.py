"""Kernels whose windows, slopes and sinks take the most registers: none spills with NVRTC.

They are those that test_language_gpu.py launches with all of these features; the other ones there
have fewer, or functions of users, which may spill.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_language_gpu import DIMS, MODS

from fmhagen.api import emit
from fmhagen.compile import compile_source
from fmhagen.errors import CompilerNotFoundError
from fmhagen.spec import AttentionSpec


@pytest.mark.parametrize("varlen", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_everything_has_its_registers(dims: dict[str, int], varlen: bool) -> None:
    fields: dict[str, Any] = {**MODS["everything"], **dims}
    spec = AttentionSpec(**fields, causal=True, varlen=varlen)
    try:
        binary = compile_source(emit(spec, target="sm90"))  # a spill is an error
    except CompilerNotFoundError as missing:
        pytest.skip(str(missing))
    assert binary.resources.clean
