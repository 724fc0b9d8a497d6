"""The table of masks and score functions beside their peers: what it checks, on the emulator."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

SOURCE = Path(__file__).parents[1] / "benchmarks" / "language.py"
SMALL = ("--place", "cpu", "--seqlen", "200", "--heads", "2", "--watchdog", "0")


@pytest.fixture(scope="module")
def language() -> ModuleType:
    if not SOURCE.exists():
        pytest.skip("benchmarks/ is not here")
    spec = importlib.util.spec_from_file_location("benchmarks_language", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def options_of(language: ModuleType, *words: str) -> argparse.Namespace:
    options: argparse.Namespace = language.parse([*SMALL, *words])
    return options


def test_cases_are_right_beside_flex_attention(
    language: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings(action="ignore"):  # of PyTorch's own
        status = language.main([*SMALL, "--only", "sinks,packed documents", "--peers", "flex"])
    assert status == 0
    told = capsys.readouterr().out
    assert told.count(", right") == 5
    assert "no flex" not in told


def test_a_wrong_result_is_told(
    language: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = language.cases

    def wrong(*arguments: Any) -> Any:
        found = [c for c in made(*arguments) if c.name == "plain, full"]
        return [replace(found[0], score=lambda s, h, m, n: s + 0.3 * (n % 2))]

    monkeypatch.setattr(language, "cases", wrong)
    assert language.main([*SMALL, "--peers", ""]) == 1
    assert "WRONG" in capsys.readouterr().out


def test_pairs_are_those_that_the_mask_leaves(language: ModuleType) -> None:
    options = options_of(language)
    bench = language.Bench(torch, options)
    for case in language.cases(torch, options):
        total, mask = bench.tokens(case), bench.mask_of(case)
        n = torch.arange(total)
        seen = torch.ones(total, total) if mask is None else mask(n[:, None], n[None])
        assert bench.pairs(case) == int(seen.sum()), case.name


def test_shares_are_of_the_plain_kernel_of_the_same_mask(language: ModuleType) -> None:
    found = [c for c in language.cases(torch, options_of(language)) if "soft cap" not in c.name]
    speeds: dict[str, dict[str, float]] = {c.name: {"fmhagen": 300.0} for c in found}
    speeds["plain, causal"] = {"fmhagen": 400.0, "flex": 200.0}
    speeds["plain, full"] = {"fmhagen": 600.0}
    lines = {line.split(" | ")[0]: line for line in language.report(found, speeds).splitlines()}
    assert lines["| plain, causal"] == "| plain, causal | 400 | 1.000 | 2.00 |  |"
    assert lines["| window"] == "| window | 300 | 0.750 |  |  |"
    assert lines["| documents, full"] == "| documents, full | 300 | 0.500 |  |  |"
