"""The other commands: what they print, their JSON, their exit codes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fmhagen.cli import app
from fmhagen.committed.inventory import instances
from fmhagen.committed.support import support_matrix
from fmhagen.doctor import examine
from fmhagen.inspection import count_classes, occupancy
from fmhagen.inspection.disassembly import find_programs
from fmhagen.instance import Instance
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, find_target
from fmhagen.targets.occupancy import compute_unit

COMMANDS = (
    "demo",
    "emit",
    "check",
    "list",
    "support",
    "explain",
    "compile",
    "inspect",
    "verify",
    "doctor",
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("name", [*COMMANDS, "cache path", "cache list", "cache clear"])
def test_help_teaches_with_examples(name: str) -> None:
    done = run(*name.split(), "--help")
    assert done.exit_code == 0
    assert "Example" in done.stdout
    assert f"fmhagen {name}" in done.stdout
    assert "--json" in done.stdout
    assert "\\[" not in done.stdout


def test_root_help_lists_every_command() -> None:
    done = run("--help")
    for name in (*COMMANDS, "cache"):
        assert f" {name} " in done.stdout
    assert run("--version").stdout.startswith("fmhagen ")


def test_list_filters() -> None:
    rows = json.loads(run("list", "--json").stdout)
    assert [row["symbol"] for row in rows] == [i.plan().symbol for i in instances()]
    some = json.loads(run("list", "*causal*", "--target", "mi300x", "--json").stdout)
    assert some
    assert {row["target"] for row in some} == {"gfx942"}
    assert all("causal" in row["symbol"] for row in some)
    assert some[0]["symbol"] in run("list").stdout
    assert run("list", "nothing*").exit_code == 1


def test_support_is_the_matrix() -> None:
    assert run("support").stdout == support_matrix()
    rows = json.loads(run("support", "--json").stdout)
    assert rows[0]["refusals"] == {target.name: None for target in TARGETS}


def test_explain_prints_every_target_by_default() -> None:
    text = run("explain", "--causal").stdout
    data = json.loads(run("explain", "--causal", "--json").stdout)
    assert [entry["target"] for entry in data] == [target.name for target in TARGETS]
    for entry in data:
        assert entry["symbol"] in text
    assert run("explain", "--head-dim", "512").exit_code == 2


@pytest.mark.parametrize("target", [target.name for target in TARGETS])
def test_compile_writes_a_binary_and_its_abi(target: str, tmp_path: Path) -> None:
    done = run("compile", "-t", target, "--causal", "-o", str(tmp_path), "--json")
    assert done.exit_code == 0, done.stderr
    (data,) = json.loads(done.stdout)
    plan = Instance.of(AttentionSpec(causal=True), find_target(target)).plan()
    image = (tmp_path / data["image"]["file"]).read_bytes()
    assert image[:4] == b"\x7fELF"
    assert hashlib.sha256(image).hexdigest() == data["image"]["sha256"]
    assert json.loads((tmp_path / f"{data['image']['file']}.json").read_text()) == data
    source = (tmp_path / data["source"]["file"]).read_bytes()
    assert hashlib.sha256(source).hexdigest() == data["source"]["sha256"]
    assert data["symbol"] == plan.symbol
    assert data["launch"]["threads"] == plan.threads
    assert data["params"]["bytes"] == plan.params_bytes
    fields = [(f["name"], f["offset_bytes"], f["size_bytes"]) for f in data["params"]["fields"]]
    assert fields == [(f.name, f.offset_bytes, f.size_bytes) for f in plan.params]
    assert data["resources"]["clean"]


def test_compile_for_the_emulator_and_bad_compilers(tmp_path: Path) -> None:
    done = run("compile", "--compiler", "host", "-o", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    assert len(list(tmp_path.glob("*.so"))) == 1
    for name in ("zig", "msvc"):  # not for this target; not known
        done = run("compile", "-t", "sm90", "--compiler", name, "-o", str(tmp_path))
        assert done.exit_code == 2
        assert not isinstance(done.exception, ValueError)


def test_inspect_reports_and_prints(tmp_path: Path) -> None:
    reports = json.loads(run("inspect", "-t", "all", "--json").stdout)
    for report in reports:
        assert report["resources"]["clean"]
        assert report["occupancy"]["blocks"] >= 1
        assert report["occupancy"]["limited_by"]
        assert report["bank_conflicts"]
        assert report["instructions"]["matrix"] > 0
    assert run("inspect", "--source").stdout == run("emit").stdout
    text = run("inspect", "--no-conflicts").stdout
    assert reports[0]["occupancy"]["text"] in text
    assert "transcendental" in text


def test_inspect_prints_machine_code_without_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fmhagen.inspection.disassembly.find_programs", lambda name: ())
    done = run("inspect", "-t", "gfx942", "--isa")
    assert done.exit_code == 0, done.stderr
    assert "v_mfma" in done.stdout
    assert "s_endpgm" in done.stdout
    counts = count_classes(done.stdout, find_target("gfx942"))
    assert counts["matrix"] > 0
    missing = run("inspect", "-t", "sm90", "--sass")
    assert missing.exit_code == 1
    assert "pip install nvidia-cuda-nvdisasm" in missing.stderr


@pytest.mark.skipif(not find_programs("nvdisasm"), reason="nvdisasm is not installed")
def test_inspect_prints_sass() -> None:
    done = run("inspect", "-t", "sm90", "--sass")
    assert done.exit_code == 0
    assert "HGMMA" in done.stdout


@pytest.mark.parametrize(
    ("target", "registers", "shared", "threads", "blocks", "by"),
    [
        # From the vendors' occupancy calculators.
        ("sm90", 168, 196720, 384, 1, ("registers", "shared memory")),
        ("sm90", 128, 0, 512, 1, ("registers",)),
        ("sm90", 32, 0, 128, 16, ("registers", "warps")),
        ("sm90", 40, 100_000, 256, 2, ("shared memory",)),
        ("sm90", 16, 0, 32, 32, ("blocks",)),
        ("gfx942", 256, 65536, 512, 1, ("registers", "shared memory")),
        ("gfx942", 128, 16384, 256, 4, ("registers", "shared memory")),
        ("gfx942", 64, 0, 256, 8, ("registers", "warps")),
        ("gfx942", 512, 0, 256, 1, ("registers",)),
    ],
)
def test_occupancy(
    target: str, registers: int, shared: int, threads: int, blocks: int, by: tuple[str, ...]
) -> None:
    from fmhagen.compile import Resources

    resources = Resources(
        registers=registers,
        spill_bytes=0,
        stack_bytes=0,
        static_shared_bytes=0,
        dynamic_shared_bytes=shared,
    )
    found = occupancy(find_target(target), resources, threads=threads)
    assert found.blocks == blocks
    assert sorted(found.limited_by) == sorted(by)


def test_every_target_has_a_compute_unit() -> None:
    for target in TARGETS:
        unit = compute_unit(target.name)
        assert unit.shared_bytes >= target.shared_memory_per_block_bytes
        assert unit.partitions * unit.registers_per_partition >= target.registers_per_block


def test_verify_passes_on_the_emulator() -> None:
    sizes = ("--batch", "1", "--heads", "2", "--heads-kv", "1", "--seqlen-q", "33")
    done = run("verify", "--causal", "--device", "emulator", *sizes, "--seqlen-k", "70", "--json")
    assert done.exit_code == 0, done.stderr
    results = json.loads(done.stdout)
    assert [result["target"] for result in results] == [target.name for target in TARGETS]
    assert all(result["passed"] for result in results)
    seeded = run("verify", "-t", "sm90", "--device", "emulator", *sizes, "--seeds", "2")
    assert seeded.stdout.count("ok") == 2


def test_verify_fails_with_1_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    from fmhagen.oracle.comparison import Tolerance

    strict = Tolerance(worst=1e-9, rms=1e-9, lse=1e-12)
    monkeypatch.setattr("fmhagen.checking.verification.tolerance_of", lambda dtype: strict)
    sizes = ("--heads", "1", "--heads-kv", "1", "--seqlen-q", "20", "--seqlen-k", "20")
    done = run("verify", "-t", "sm90", "--device", "emulator", *sizes)
    assert done.exit_code == 1
    assert "WRONG" in done.stdout
    assert "(b, h, m, d) = (" in done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ("--heads", "3", "--heads-kv", "2"),
        ("--seqlen-q", "-1"),
        ("--device", "tpu"),
        ("--dtype", "e5m2"),
    ],
)
def test_verify_refuses_what_has_no_meaning(flags: tuple[str, ...]) -> None:
    done = run("verify", "-t", "sm90", *flags)
    assert done.exit_code == 2
    assert done.stderr.startswith("fmhagen: ")


def test_a_missing_device_is_an_error_without_a_traceback() -> None:
    done = run("verify", "-t", "gfx942", "--device", "cuda")
    assert done.exit_code == 1
    assert "use hip or emulator" in done.stderr


def test_demo_shows_both_targets(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "fmhagen", "demo", "--device", "emulator", "-o", str(tmp_path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for target in TARGETS:
        assert target.name in done.stdout
    assert "all agree with float64" in done.stdout
    names = {path.name for path in tmp_path.iterdir()}
    assert len(names) == 4
    assert all(name in done.stdout for name in names)
    # The bounds that the project promises.
    data = json.loads(run("demo", "--device", "emulator", "-o", str(tmp_path), "--json").stdout)
    assert data["passed"]
    for row in data["rows"]:
        assert row["comparison"]["o_worst"] <= {"bf16": 2e-2, "fp16": 3e-3}[row["dtype"]]
        assert row["comparison"]["lse_worst"] <= 1e-3
        assert row["resources"]["spill_bytes"] == 0
        assert row["resources"]["registers"] > 0


def test_doctor_finds_this_machine_healthy() -> None:
    done = run("doctor", "--json")
    data = json.loads(done.stdout)
    assert done.exit_code == 0, data
    assert data["healthy"]
    verdicts = {f["name"]: f["status"] for f in data["findings"] if f["group"] == "verdict"}
    assert verdicts == {
        "compile for sm90": "ok",
        "compile for gfx942": "ok",
        "emulator": "ok",
    }
    assert "ziglang" in run("doctor", "--quick").stdout


def test_doctor_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from fmhagen.compile import Compiler

    nothing = (
        Compiler(name="nvrtc", target="sm90", missing="not here", install="pip install it"),
        Compiler(name="zig", target="gfx942", missing="not here", install="pip install zig"),
    )
    monkeypatch.setattr("fmhagen.doctor.available_compilers", lambda: nothing)
    report = examine()
    assert not report.healthy
    failed = {f.name: f.install for f in report.findings if f.status == "failed"}
    assert failed["compile for sm90"] == "pip install it"
    assert failed["compile for gfx942"] == "pip install zig"
    assert run("doctor").exit_code == 1


def test_cache_path_list_and_clear(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FMHAGEN_CACHE_DIR", str(tmp_path / "cache"))
    assert run("cache", "path").stdout == f"{tmp_path / 'cache'}\n"
    assert json.loads(run("cache", "list", "--json").stdout) == []
    assert run("compile", "-t", "sm90", "-o", str(tmp_path)).exit_code == 0
    (entry,) = json.loads(run("cache", "list", "--json").stdout)
    assert entry["target"] == "sm90"
    assert entry["symbol"] in run("cache", "list").stdout
    assert json.loads(run("cache", "clear", "--json").stdout)["removed"] == 1
    assert run("cache", "clear", "--yes").exit_code == 0
    assert json.loads(run("cache", "list", "--json").stdout) == []
