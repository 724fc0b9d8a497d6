"""The hipRTC driver against a stand-in binding; test_compile_device.py uses the real one."""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from fmhagen.compile import Cache, compile_source, hiprtc
from fmhagen.compile.clang import detect_clang, detect_zig
from fmhagen.compile.smoke import smoke_source
from fmhagen.errors import CompileError


class Result(enum.IntEnum):
    """hipRTC's status codes, as far as they are used."""

    HIPRTC_SUCCESS = 0
    HIPRTC_ERROR_COMPILATION = 6


class Program:
    """A program handle, which remembers what was asked of it."""

    def __init__(self, text: bytes, name: bytes) -> None:
        self.text = text
        self.name = name
        self.options: list[bytes] = []
        self.log = b"\0"

    def createRef(self) -> Program:
        return self


class FakeBinding(types.ModuleType):
    """A module with hip-python's functions that hands out a real code object."""

    def __init__(self, name: str, image: bytes) -> None:
        super().__init__(name)
        self.image = image
        self.programs: list[Program] = []
        self.destroyed = 0

    def hiprtcVersion(self) -> tuple[Result, int, int]:
        return Result.HIPRTC_SUCCESS, 9, 1

    def hiprtcCreateProgram(
        self, text: bytes, name: bytes, count: int, headers: None, names: None
    ) -> tuple[Result, Program]:
        self.programs.append(Program(text, name))
        return Result.HIPRTC_SUCCESS, self.programs[-1]

    def hiprtcCompileProgram(
        self, program: Program, count: int, options: list[bytes]
    ) -> tuple[Result]:
        assert count == len(options)
        program.options = options
        if b"mistake" in program.text:
            program.log = b"/tmp/comgr-0a1b2c/input" + program.name + b":1:1: error: mistake\0"
            return (Result.HIPRTC_ERROR_COMPILATION,)
        return (Result.HIPRTC_SUCCESS,)

    def hiprtcGetProgramLogSize(self, program: Program) -> tuple[Result, int]:
        return Result.HIPRTC_SUCCESS, len(program.log)

    def hiprtcGetProgramLog(self, program: Program, buffer: bytearray) -> tuple[Result]:
        buffer[:] = program.log
        return (Result.HIPRTC_SUCCESS,)

    def hiprtcGetCodeSize(self, program: Program) -> tuple[Result, int]:
        return Result.HIPRTC_SUCCESS, len(self.image)

    def hiprtcGetCode(self, program: Program, buffer: bytearray) -> tuple[Result]:
        buffer[:] = self.image
        return (Result.HIPRTC_SUCCESS,)

    def hiprtcDestroyProgram(self, program: Program) -> tuple[Result]:
        self.destroyed += 1
        return (Result.HIPRTC_SUCCESS,)


@pytest.fixture(params=["rocm.bindings.hiprtc", "hip.hiprtc"])
def binding(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeBinding]:
    """Put a stand-in under the newer or the older name of the binding."""
    builders = [c.name for c in (detect_clang(), detect_zig()) if c.available]
    if not builders:
        pytest.skip("no compiler makes a code object to hand out")
    image = compile_source(smoke_source("gfx942"), compiler=builders[0], cache=None).image
    module = FakeBinding(request.param, image)
    if request.param.startswith("hip."):
        monkeypatch.setitem(sys.modules, "rocm.bindings.hiprtc", None)
        monkeypatch.setitem(sys.modules, "hip", types.ModuleType("hip"))
    monkeypatch.setitem(sys.modules, request.param, module)
    hiprtc.detect.cache_clear()
    yield module
    hiprtc.detect.cache_clear()


def test_hiprtc_comes_first(binding: FakeBinding, tmp_path: Path) -> None:
    """Where hipRTC works, "auto" takes it, with the flags of the table."""
    binary = compile_source(smoke_source("gfx942"), cache=Cache(tmp_path))
    assert binary.compiler == "hiprtc 9.1"
    assert binary.kind == "code_object"
    assert binary.resources.registers > 0
    (program,) = binding.programs
    assert b"--offload-arch=gfx942" in program.options
    assert program.text.decode() == smoke_source("gfx942").text
    assert binding.destroyed == 1


def test_diagnostics_name_the_file_on_disk(binding: FakeBinding, tmp_path: Path) -> None:
    """hipRTC's log names its own copy of the source; the error names the one that is there."""
    source = dataclasses.replace(smoke_source("gfx942"), text="mistake\n")
    with pytest.raises(CompileError, match="HIPRTC_ERROR_COMPILATION") as caught:
        compile_source(source, cache=Cache(tmp_path))
    assert caught.value.path is not None
    assert caught.value.log == f"{caught.value.path}:1:1: error: mistake"
    assert Path(caught.value.path).read_text() == "mistake\n"
    assert binding.destroyed == 1
