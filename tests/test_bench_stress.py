"""The stress script: what it draws, and what it says of results that are wrong, change or hang."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fmhagen.bench.workloads import Workload

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "stress.py"


@pytest.fixture(scope="module")
def stress() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stress", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cases_are_drawn_anew_and_stay_small(stress: ModuleType) -> None:
    options = stress.parse(["--launches", "20000", "--repeats", "50", "--head-dims", "64,256"])
    assert options.cases == 400
    drawn = [stress.draw(number, options) for number in range(options.cases)]
    assert drawn == [stress.draw(number, options) for number in range(options.cases)]
    assert len({workload.name for workload in drawn}) > 300
    assert {workload.spec.d for workload in drawn} == {64, 256}
    assert {workload.spec.causal for workload in drawn} == {True, False}
    assert any(workload.heads != workload.heads_kv for workload in drawn)
    assert any(workload.seqlen_q != workload.seqlen_k for workload in drawn)


class Tensor:
    def __init__(self, norm: float = 1.0) -> None:
        self.value = norm

    def norm(self) -> float:
        return self.value

    def double(self) -> Tensor:
        return self

    def fill_(self, value: float) -> None:
        pass

    def __sub__(self, other: Tensor) -> Tensor:
        return Tensor(abs(self.value - other.value))


@pytest.mark.parametrize(
    ("value", "same", "problem"),
    [(1.001, True, None), (1.2, True, "RMS error"), (1.0, False, "O changed")],
)
def test_what_is_wrong_is_said(
    stress: ModuleType, monkeypatch: pytest.MonkeyPatch, value: float, same: bool, problem: str
) -> None:
    class Device:
        def inputs(self, workload: Workload, *, sets: int, seed: int) -> list[Any]:
            return [_Inputs()]

        def new_output(self, workload: Workload, like: Any) -> Tensor:
            return Tensor(value)

        def same_bits(self, one: Any, other: Any) -> bool:
            return same

        def reference(self, workload: Workload, inputs: Any) -> Tensor:
            return Tensor(1.0)

    launches = []
    monkeypatch.setattr(
        "fmhagen.api.compile_kernel",
        lambda spec, device, schedule: lambda *inputs, out: launches.append(out),
    )
    options = stress.parse(["--repeats", "7", "--variant", "ping_pong=false"])
    found = stress.run_case(Device(), stress.draw(0, options), options)
    assert len(launches) == 7
    assert (found is None) == (problem is None)
    assert problem is None or problem in found


class _Inputs(tuple[Any, ...]):
    q = None


@pytest.mark.parametrize(
    ("end", "status", "words"),
    [
        ("sys.exit(9)", 1, "CRASHED with status 9: case 3: a case"),
        ("time.sleep(60)", 1, "HUNG for 1 s: case 3: a case"),
        ("say(end=3, problem='it is wrong')", 1, "WRONG: case 3: a case: it is wrong"),
        ("say(end=3, problem=None)", 0, "50 launches, 0 cases wrong, 0 s all done"),
    ],
)
def test_the_watchdog_names_the_case(
    stress: ModuleType, capsys: pytest.CaptureFixture[str], end: str, status: int, words: str
) -> None:
    child = (
        "import json, sys, time\n"
        "say = lambda **data: print(json.dumps(data), flush=True)\n"
        f"say(start=3, name='a case')\n{end}"
    )
    options = stress.parse(["--watchdog", "1"])
    assert stress.watch(options, (sys.executable, "-I", "-c", child)) == status
    assert words in capsys.readouterr().out
