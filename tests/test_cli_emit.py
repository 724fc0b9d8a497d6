"""`emit` and `check`: flags, files, exit codes, and a pure standard output."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from fmhagen.cli import app
from fmhagen.committed import inventory
from fmhagen.committed.inventory import render_all, write_if_different
from fmhagen.committed.manifest import MANIFEST
from fmhagen.instance import Instance
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, find_target

REPOSITORY = Path(__file__).parent.parent
TARGET_NAMES = [target.name for target in TARGETS]


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def shell(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as users do, in a process of its own."""
    command = (sys.executable, "-m", "fmhagen", *arguments)
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_prints_exactly_the_source(target: str) -> None:
    flags = ("--dtype", "bf16", "--head-dim", "128", "--causal", "-o", "-")
    done = shell("emit", "--target", target, *flags)
    assert done.returncode == 0
    spec = AttentionSpec(causal=True)
    assert done.stdout == Instance.of(spec, find_target(target)).source().text
    assert done.stderr == ""


def test_any_spelling_of_a_target() -> None:
    assert run("emit", "-t", "H100").stdout == run("emit", "--target", "sm_90a").stdout
    assert run("emit", "-t", "gfx942:xnack-").stdout == run("emit", "-t", "mi300x").stdout


def test_every_field_of_the_records_is_a_flag() -> None:
    text = re.sub(
        r"[^\w-]+",
        " ",
        run(
            "emit",
            "--help",
        ).stdout,
    )
    for record in (AttentionSpec, Schedule):
        for name in record.__dataclass_fields__:
            # A long name may be cut in the table of a narrow terminal.
            assert f"--{name.replace('_', '-')}"[:14] in text


def test_flags_reach_the_schedule() -> None:
    done = run("emit", "-t", "sm90", "--stages", "1", "--rescale", "always")
    assert done.exit_code == 0
    assert "stages=1" in done.stdout
    assert "rescale='always'" in done.stdout
    assert re.search(r"constexpr u32 (\w+ = \d+, )*STAGES = 1[,;]", done.stdout)


def test_spec_file_and_flags_on_top(tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(
        'target = "gfx942"\n[spec]\ncausal = true\nhead_dim = 64\ndtype = "fp16"\n'
        "[schedule]\nrescale = 'always'\n"
    )
    from_file = run("emit", str(path))
    flags = ("-t", "gfx942", "--causal", "--head-dim", "64", "--dtype", "fp16")
    assert from_file.exit_code == 0, from_file.stderr
    assert from_file.stdout == run("emit", *flags, "--rescale", "always").stdout
    assert run("emit", "-", stdin=path.read_text()).stdout == from_file.stdout
    over = run("emit", str(path), "--no-causal", "--target", "sm90")
    assert (
        over.stdout
        == run("emit", "--head-dim", "64", "--dtype", "fp16", "--rescale", "always").stdout
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[spec]\ncausall = true\n", "did you mean 'causal'"),
        ("[spec]\nhead_dim = 72\n", "pad Q, K and V"),
        ("[schedule]\ntile_k = 3\n", "Schedule has no such field"),
        ("[specs]\n", "did you mean 'spec'"),
        ("spec = 3\n", "must be a table"),
        ("[spec\n", "is not TOML"),
        ('target = "sm80"\n', "no such target"),
    ],
)
def test_a_bad_spec_file_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    done = run("emit", str(path))
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("--head-dim", "72"), "head_dim"),
        (("--head-dim", "0"), "head_dim"),
        (("--dtype", "fp32"), "dtype"),
        (("--dtype", "e4m3"), "dtype"),
        (("--anchor", "middle"), "anchor"),
        (("--window-left", "-2"), "window_left"),
        (("--scale", "-1.0"), "scale"),
        (("--soft-cap", "-30.0"), "soft_cap"),
        (("--direction", "backward"), "direction"),
        (("--target", "sm80"), "target"),
        (("--tile-n", "100"), "tile_n"),
        (("--stages", "9"), "stages"),
    ],
)
def test_a_refusal_is_one_message_or_json(flags: tuple[str, ...], field: str) -> None:
    plain = run("emit", *flags)
    assert plain.exit_code == 2
    assert plain.stdout == ""
    assert plain.stderr.startswith("fmhagen: ")
    assert plain.stderr.count("\n") == 1
    assert f"{field}=" in plain.stderr
    data = run("emit", *flags, "--json")
    assert data.exit_code == 2
    assert json.loads(data.stdout)["field"] == field


def test_usage_errors_exit_with_2_and_no_traceback() -> None:
    for arguments in (
        ("emit", "--no-such-flag"),
        ("emit", "--head-dim", "many"),
        ("no-such-command",),
        ("emit", "--target", "all"),
        ("emit", "--all", "--causal"),
    ):
        done = shell(*arguments)
        assert done.returncode == 2, arguments
        assert done.stdout == ""
        assert done.stderr
        assert "Traceback" not in done.stderr
    missing = shell("emit", "no-such-file.toml")
    assert missing.returncode == 1
    assert "no-such-file.toml" in missing.stderr
    assert "Traceback" not in missing.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m fmhagen emit | head -n 1"
    done = subprocess.run(
        command, shell=True, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.stdout == "// clang-format off\n"
    assert done.stderr == ""


def test_writes_a_file_or_one_file_a_target(tmp_path: Path) -> None:
    single = tmp_path / "kernel.cu"
    assert run("emit", "-o", str(single)).exit_code == 0
    assert single.read_text() == run("emit").stdout
    done = run("emit", "--target", "all", "-o", str(tmp_path / "both"), "--json")
    written = json.loads(done.stdout)
    assert [entry["changed"] for entry in written] == [True, True]
    assert sorted(Path(entry["path"]).suffix for entry in written) == [".cu", ".hip"]
    again = json.loads(run("emit", "-t", "all", "-o", str(tmp_path / "both"), "--json").stdout)
    assert [entry["changed"] for entry in again] == [False, False]


def test_json_holds_the_source() -> None:
    (data,) = json.loads(run("emit", "--causal", "--json").stdout)
    assert data["text"] == run("emit", "--causal").stdout
    assert data["symbol"] in data["text"]
    assert data["digest"] in data["text"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path, text in render_all(tmp_path).items():
        write_if_different(tmp_path / path, text)
    return tmp_path


def test_check_accepts_the_committed_tree() -> None:
    done = shell("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == ""


def test_check_shows_one_changed_byte(tree: Path) -> None:
    assert run("check", "--dir", str(tree)).exit_code == 0
    path = next(tree.rglob("*.hip"))
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    done = shell("check", "--dir", str(tree))
    assert done.returncode == 1
    assert f"--- generated/{path.relative_to(tree)}" in done.stdout
    assert re.search(r"^-\S", done.stdout, re.MULTILINE)
    assert re.search(r"^\+\S", done.stdout, re.MULTILINE)
    assert "edited by hand" in done.stderr
    assert "fmhagen emit --all" in done.stderr


def test_check_sees_missing_and_extra_files_and_a_changed_manifest(tree: Path) -> None:
    missing = next(tree.rglob("*.cu"))
    missing.unlink()
    (tree / "sm90" / "old.cu").write_text("int x;\n")
    manifest = tree / "MANIFEST.toml"
    manifest.write_text(re.sub(r"threads = \d+", "threads = 1", manifest.read_text(), count=1))
    done = run("check", "--dir", str(tree), "--json")
    assert done.exit_code == 1
    kinds = {entry["path"]: entry["kind"] for entry in json.loads(done.stdout)["differences"]}
    assert kinds == {
        missing.relative_to(tree).as_posix(): "missing",
        "sm90/old.cu": "extra",
        "MANIFEST.toml": "changed",
    }


def test_emit_all_repairs_the_tree_and_removes_its_own_files_alone(tree: Path) -> None:
    stale = tree / "sm90" / "stale.cu"
    stale.write_text(next(tree.rglob("*.cu")).read_text())
    foreign = tree / "notes.txt"
    foreign.write_text("mine\n")
    next(tree.rglob("*.hip")).unlink()
    done = run("emit", "--all", "--no-resources", "--dir", str(tree), "--json")
    report = json.loads(done.stdout)
    assert report["removed"] == ["sm90/stale.cu"]
    assert len(report["written"]) == 1
    assert foreign.read_text() == "mine\n"
    foreign.unlink()
    assert run("check", "--dir", str(tree)).exit_code == 0


def test_check_resources_tells_what_moved_of_every_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One attention kernel a target, beside those that merge parts, write block maps and append.
    monkeypatch.setattr(inventory, "SPECS", (AttentionSpec(head_dim=64),))
    monkeypatch.setattr(inventory, "CACHE_SPECS", ())
    directory = ("--dir", str(tmp_path))
    assert run("emit", "--all", *directory).exit_code == 0
    files = [path for path in inventory.files_under(tmp_path) if path != MANIFEST]
    kinds = {Path(path).name.split("_")[0] for path in files}
    assert kinds == {"fmha", "merge", "classify", "append"}
    done = run("check", "--resources", *directory)
    assert done.exit_code == 0, done.stderr
    assert f"{len(files)} kernels cost what the manifest says" in done.stderr

    manifest = tmp_path / MANIFEST
    text = manifest.read_text()
    manifest.write_text(re.sub(r"^registers = \d+", "registers = 1", text, flags=re.MULTILINE))
    assert run("check", *directory).exit_code == 0
    done = run("check", "--resources", *directory)
    assert done.exit_code == 1
    for path in files:
        assert re.search(
            rf"^{re.escape(path)}: registers is \d+, .* says 1$", done.stderr, re.MULTILINE
        )

    # Resources of another compiler are no measure of this one's, and that is said.
    manifest.write_text(re.sub(r'"zig [\d.]+"', '"zig 0.0.1"', text))
    report = json.loads(run("check", "--resources", *directory, "--json").stdout)
    assert report["resources"] == []
    assert report["resources_compared"] == sum(path.startswith("sm90/") for path in files)
    assert {line.split(":")[0] for line in report["resources_left_out"]} == {
        path for path in files if path.startswith("gfx942/")
    }
