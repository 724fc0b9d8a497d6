"""The host's compiler: an emitted file becomes a library, with a small stand-in emulator."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fmhagen.compile import Cache, HostOptimisation, compile_source, host
from fmhagen.compile.clang import detect_zig
from fmhagen.compile.smoke import smoke_source
from fmhagen.errors import CompileError, CompilerNotFoundError
from fmhagen.source import Source

TEXT = """
extern "C" __global__ void fmhagen_smoke(const int& params) { ANSWER = params + HEADER_NUMBER; }
"""
HEADER = """
#ifndef FMHAGEN_EMULATOR
#error the emulator's header is for the emulator alone
#endif
#define __global__ __attribute__((visibility("default")))
#define HEADER_NUMBER 1
#ifdef FMHAGEN_EMULATOR_ELSEWHERE
extern "C" int answer;
#else
extern "C" { __attribute__((visibility("default"))) int answer; }
#endif
#define ANSWER answer
"""


@pytest.fixture
def prelude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a prelude directory with a stand-in for the emulator's headers."""
    directory = tmp_path / "prelude"
    (directory / "emulator").mkdir(parents=True)
    for target in ("sm90", "gfx942"):
        (directory / "emulator" / f"{target}.h").write_text(HEADER)
    monkeypatch.setattr(host, "prelude_dir", lambda: directory)
    return directory


def source_for(target: str) -> Source:
    """Return a kernel that only the host can compile."""
    return dataclasses.replace(smoke_source(target), text=TEXT)


def run(path: Path | None, number: int) -> int:
    """Call the kernel in a library, as the emulator's runtime would."""
    assert path is not None
    library = ctypes.CDLL(str(path))
    library.fmhagen_smoke(ctypes.byref(ctypes.c_int(number)))
    return ctypes.c_int.in_dll(library, "answer").value


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
@pytest.mark.parametrize("level", ["O0", "O1", "O2"])
def test_library_runs(tmp_path: Path, prelude: Path, target: str, level: HostOptimisation) -> None:
    """The library exports the kernel, at each level, for each target."""
    if not host.detect().available:
        pytest.skip(str(host.detect().missing))
    binary = compile_source(
        source_for(target),
        cache=Cache(tmp_path / "cache"),
        for_emulator=True,
        host_optimisation=level,
    )
    assert binary.kind == "shared_library"
    assert f"-{level}" in binary.flags
    assert "-ffp-contract=off" in binary.flags
    assert run(binary.path, 41) == 42


@pytest.mark.parametrize("level", ["O0", "O1"])
def test_zig_is_the_last_resort(
    tmp_path: Path, prelude: Path, monkeypatch: pytest.MonkeyPatch, level: HostOptimisation
) -> None:
    """With no compiler on PATH, the ziglang wheel's is used."""
    if not detect_zig().available:
        pytest.skip(str(detect_zig().missing))
    monkeypatch.setenv("PATH", "")
    assert host.detect().version == f"zig {detect_zig().version}"
    binary = compile_source(
        source_for("sm90"),
        cache=Cache(tmp_path / "cache"),
        for_emulator=True,
        host_optimisation=level,
    )
    assert binary.compiler.startswith("host zig")
    assert run(binary.path, 1) == 2


def test_zig_without_a_home(tmp_path: Path, prelude: Path) -> None:
    """zig's own cache gets a place where there is no HOME."""
    if not detect_zig().available:
        pytest.skip(str(detect_zig().missing))
    code = (
        "from fmhagen.compile import *; from fmhagen.compile.smoke import smoke_source;"
        "print(compile_source(smoke_source('gfx942'), compiler='zig').kind)"
    )
    environment = {
        **{name: os.environ[name] for name in ("PATH", "VIRTUAL_ENV") if name in os.environ},
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "FMHAGEN_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "code_object", done.stderr


def test_change_of_any_header_is_another_entry(tmp_path: Path, prelude: Path) -> None:
    """Case B88: the text of an emulator header counts, its time stamp does not."""
    if not host.detect().available:
        pytest.skip(str(host.detect().missing))
    cache = Cache(tmp_path / "cache")
    header = prelude / "emulator" / "sm90.h"
    first = compile_source(source_for("sm90"), cache=cache, for_emulator=True)
    header.write_text(HEADER.replace("HEADER_NUMBER 1", "HEADER_NUMBER 2"))
    os.utime(header, (1, 1))  # older than everything
    second = compile_source(source_for("sm90"), cache=cache, for_emulator=True)
    assert first.path != second.path
    assert (run(first.path, 40), run(second.path, 40)) == (41, 42)
    header.write_text(HEADER)
    assert compile_source(source_for("sm90"), cache=cache, for_emulator=True) == first
    (prelude / "emulator" / "core.h").write_text("// another header\n")
    third = compile_source(source_for("sm90"), cache=cache, for_emulator=True)
    assert third.path not in (first.path, second.path)


def test_host_error_carries_log_and_path(tmp_path: Path, prelude: Path) -> None:
    """What the host's compiler refuses is quoted, and the file is there to be opened."""
    if not host.detect().available:
        pytest.skip(str(host.detect().missing))
    source = dataclasses.replace(source_for("sm90"), text="no_such_type x;\n")
    with pytest.raises(CompileError, match="no_such_type") as caught:
        compile_source(source, cache=Cache(tmp_path / "cache"), for_emulator=True)
    assert caught.value.path is not None
    assert Path(caught.value.path).read_text() == "no_such_type x;\n"


def test_old_gcc_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GCC without pattern initialisation is not used, and the reason is kept."""
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho 'g++ (Debian 10.2.1-6) 10.2.1 20210110'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(
        host, "detect_zig", lambda: dataclasses.replace(detect_zig(), missing="no wheel")
    )
    found = host.detect()
    assert "is GCC 10.2.1; 12 or newer" in str(found.missing)
    with pytest.raises(CompilerNotFoundError, match="pip install ziglang"):
        compile_source(source_for("sm90"), for_emulator=True, cache=None)
