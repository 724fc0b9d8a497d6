"""Files of kernels with mask and score functions: what recreates them, and which are equal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from language_cases import MASKS, SCORES
from language_runs import is_supported

import fmhagen
from fmhagen.committed.inventory import digest_holds
from fmhagen.lowering.language import lower_language
from fmhagen.plan.attention import Plan
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

REPOSITORY = Path(__file__).parent.parent
LONG = (
    "a: i32[2]; b_1: f16[1]; (((a[b, q_idx] == a[b, kv_idx]) & (kv_idx <= q_idx)) |"
    " ((kv_idx // 16 + q_idx // 32) % 7 == 3)) & ((h % 2 == 0) | (abs(q_idx - kv_idx) < 1000))"
    " & (b_1[h] < 0.5)"
)


def targets(spec: AttentionSpec) -> list[Any]:
    return [target for target in TARGETS if is_supported(spec, target)]


def recreate(text: str) -> str:
    call = re.search(r"// Recreate with\n((?://     .*\n)+)", text)
    assert call is not None
    expression = "\n".join(line.removeprefix("//") for line in call[1].splitlines())
    names = ("AttentionSpec", "Schedule", "MaskMod", "ScoreMod")
    scope = {"fmhagen": fmhagen} | {name: getattr(fmhagen, name) for name in names}
    source: Any = eval(expression.strip(), scope)
    return str(source.text)


@pytest.mark.parametrize("name", [*MASKS, *SCORES])
def test_the_header_recreates_the_file(name: str) -> None:
    spec = {**MASKS, **SCORES}[name].spec
    for target in targets(spec):
        text = fmhagen.emit(spec, target=target.name).text
        assert recreate(text) == text
        assert digest_holds(text)


def test_long_functions_are_broken_in_the_header_and_still_recreate_the_file() -> None:
    spec = AttentionSpec(mask_mod=LONG)
    for target in targets(spec):
        text = fmhagen.emit(spec, target=target.name).text
        assert max(map(len, text.splitlines())) <= 120
        assert recreate(text) == text


def function_of(limit: int) -> Any:
    return lambda b, h, q, k: (q - k) < limit


def test_equal_functions_give_equal_files_and_another_constant_another_file() -> None:
    table, other = np.zeros(8, np.int32), np.ones(99, np.int32)

    def of_table(values: Any) -> Any:
        return lambda b, h, q, k: values[q] == k

    for target in targets(AttentionSpec(mask_mod="kv_idx < 3")):

        def text(mask: Any, name: str = target.name) -> str:
            return fmhagen.emit(AttentionSpec(mask_mod=mask), target=name).text

        assert text(function_of(64)) == text(lambda batch, head, m, n: (m - n) < 64)
        assert text(function_of(64)) != text(function_of(65))
        assert text(of_table(table)) == text(of_table(other)), "a tensor is no part of a kernel"


def test_symbols_tell_functions_apart() -> None:
    for target in targets(AttentionSpec(mask_mod="kv_idx < 3")):

        def plan(target: Any = target, **fields: Any) -> Plan:
            return fmhagen.lower(AttentionSpec(**fields), target=target.name)

        symbols = {
            plan(mask_mod="kv_idx < 3").symbol,
            plan(mask_mod="kv_idx < 4").symbol,
            plan(window_left=3, causal=True).symbol,
            plan(window_left=3).symbol,
            plan(window_left=3, window_right=4).symbol,
            plan(window_right=4).symbol,
            plan(soft_cap=3.0).symbol,
            plan(soft_cap=3.5).symbol,
            plan(score_mod="score + 1.0").symbol,
            plan(score_mod="score + 2.0").symbol,
        }
        assert len(symbols) == 10


def test_the_parameter_block_has_what_the_functions_read_and_no_more() -> None:
    spec = AttentionSpec(mask_mod=LONG, score_mod="w: f32; t: bf16[3]; score * w + t[b, 2, h + 1]")
    names = [name for _, name, _ in lower_language(spec).fields]
    assert [name for name in names if name.startswith("arg_")] == [
        "arg_a",
        "arg_a_stride_0",
        "arg_a_stride_1",
        "arg_b_1",
        "arg_b_1_stride_0",
        "arg_t",
        "arg_t_stride_0",
        "arg_t_stride_1",
        "arg_t_stride_2",
        "arg_t_size_2",
        "arg_w",
    ]
    axes = {a.parameter.name: a.axes for a in lower_language(spec).arguments}
    assert axes["a"] == (("b",), ("kv_idx", "q_idx"))
    assert axes["t"] == (("b",), ("2",), ("computed",))
    for target in targets(spec):
        plan = fmhagen.lower(spec, target=target.name)
        assert {*names} <= {field.name for field in plan.params}


def test_text_is_the_same_under_any_hash_seed() -> None:
    code = (
        "from language_cases import MASKS, SCORES\n"
        "from fmhagen.lowering.language import lower_language\n"
        "for case in (*MASKS.values(), *SCORES.values()):\n"
        "    print(case.spec, lower_language(case.spec).text)\n"
    )
    outputs = {
        subprocess.run(
            (sys.executable, "-c", code),
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY / "tests")},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
def test_parameters_of_long_names_keep_within_lines(target: str) -> None:
    name = "types_of_the_edges_on_the_shortest_path"
    spec = AttentionSpec(score_mod=f"{name}: f32[4]; score + {name}[b, h, q_idx, kv_idx]")
    lines = fmhagen.emit(spec, target=target).text.splitlines()
    declared = [line for line in lines if line.startswith("  i64 ") and f"{name}_stride" in line]
    assert len(declared) > 1
    assert sum(line.count("_stride_") for line in declared) == 4
    assert all(len(line) <= 120 for line in declared)
