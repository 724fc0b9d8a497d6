"""Each device compiler that is here really compiles, and what it reports is read back."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fmhagen.compile import (
    Cache,
    Compiler,
    available_compilers,
    code_object,
    compile_source,
    find_compiler,
    nvrtc,
    smoke,
)
from fmhagen.compile import clang as clang_module
from fmhagen.compile.files import main as compile_files
from fmhagen.compile.smoke import smoke_source
from fmhagen.errors import CompileError, CompilerNotFoundError, SpillError
from fmhagen.source import Source

REPOSITORY = Path(__file__).parent.parent

WGMMA = r"""
extern "C" __global__ void __launch_bounds__(128, 1)
    fmhagen_smoke(float* out, unsigned long long a, unsigned long long b) {
  __shared__ float s_row[128];
  float d[4] = {0, 0, 0, 0};
  asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
  FENCE
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  s_row[threadIdx.x] = d[0] + d[1];
  __syncthreads();
  out[threadIdx.x] = s_row[127 - threadIdx.x] + d[2] + d[3];
}
"""
FENCE = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'

# More live values than a thread of so large a block has registers for.
SPILL_SM90 = r"""
extern "C" __global__ void __launch_bounds__(1024, 1) fmhagen_smoke(float* out) {
  float value[150];
  for (int i = 0; i < 150; i++) value[i] = out[i * 1024 + threadIdx.x];
  __syncthreads();
  for (int i = 0; i < 150; i++) asm volatile("" : "+f"(value[i]));
  for (int i = 0; i < 150; i++) out[(149 - i) * 1024 + threadIdx.x] = value[i];
}
"""
SPILL_GFX942 = r"""
#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __launch_bounds__
#define __launch_bounds__(threads, blocks) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#endif
extern "C" __global__ void __launch_bounds__(1024, 1) fmhagen_smoke(float* out) {
  float value[180];
  int lane = __builtin_amdgcn_workitem_id_x();
#pragma unroll
  for (int i = 0; i < 180; i++) value[i] = out[i * 1024 + lane];
#pragma unroll
  for (int i = 0; i < 180; i++) asm volatile("" : "+v"(value[i]));
#pragma unroll
  for (int i = 0; i < 180; i++) out[(179 - i) * 1024 + lane] = value[i];
}
"""
GFX942_COMPILERS = ("hiprtc", "clang", "hipcc", "zig")
DEVICE_COMPILERS = ("nvrtc", *GFX942_COMPILERS)


def with_text(target: str, text: str) -> Source:
    """Return a source of a target with other text."""
    return dataclasses.replace(smoke_source(target), text=text)


def require(name: str) -> Compiler:
    """Return a compiler, or skip the test with the reason why it is missing."""
    found = {compiler.name: compiler for compiler in available_compilers()}[name]
    if not found.available:
        pytest.skip(f"{name}: {found.missing}")
    return found


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """Return an empty cache."""
    return Cache(tmp_path / "cache")


@pytest.mark.parametrize("name", DEVICE_COMPILERS)
def test_smoke_kernel_compiles_clean(name: str) -> None:
    """A kernel of the target's own instructions compiles, and its resources are read."""
    require(name)
    binary = smoke(name)
    assert binary.compiler.startswith(name)
    assert binary.image.startswith(b"\x7fELF")
    assert binary.resources.clean
    assert binary.resources.registers > 0
    assert binary.resources.max_threads == (128 if name == "nvrtc" else 64)
    assert binary.path is None


def test_every_missing_compiler_says_why_and_what_to_install() -> None:
    """What doctor prints is complete, whatever is here."""
    for compiler in available_compilers():
        assert compiler.install
        assert compiler.available == (compiler.missing is None)
        if compiler.available:
            assert compiler.version
            assert compiler.identity
            assert compiler.path


def test_wgmma_kernel_reports_its_resources(cache: Cache) -> None:
    """Registers, static shared memory and launch bounds come back from a cubin."""
    require("nvrtc")
    source = dataclasses.replace(
        with_text("sm90", WGMMA.replace("FENCE", FENCE)), dynamic_shared_bytes=4096
    )
    binary = compile_source(source, cache=cache)
    used = binary.resources
    assert binary.kind == "cubin"
    assert used.static_shared_bytes == 512
    assert used.dynamic_shared_bytes == 4096
    assert used.max_threads == 128
    assert used.accumulator_registers is None
    assert used.clean
    assert binary.path is not None
    assert binary.path.read_bytes() == binary.image
    assert "--gpu-architecture=sm_90a" in binary.flags


def test_sm_90_without_the_a_is_refused(cache: Cache) -> None:
    """Case B94: wgmma does not exist in plain sm_90, and that is an error, not a fallback."""
    require("nvrtc")
    source = with_text("sm90", WGMMA.replace("FENCE", FENCE))
    with pytest.raises(CompileError, match=r"'wgmma.fence' not supported on .target 'sm_90'"):
        compile_source(source, cache=cache, architecture="sm_90")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(WGMMA.replace("FENCE", ""), "C7519", id="missing_wgmma_fence"),
        pytest.param(
            WGMMA.replace("FENCE", FENCE).replace("__launch_bounds__(128, 1)", ""),
            "C7508",
            id="setmaxnreg_without_launch_bounds",
        ),
    ],
)
def test_planted_ptxas_warning_is_an_error(cache: Cache, text: str, code: str) -> None:
    """What ptxas only remarks on is refused, and is not in the cache afterwards."""
    require("nvrtc")
    with pytest.raises(CompileError, match=code) as caught:
        compile_source(with_text("sm90", text), cache=cache)
    assert code in caught.value.log
    assert cache.list() == ()


@pytest.mark.parametrize(
    "line",
    [
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are",
        "ptxas warning : Registers are spilled to local memory in function 'k'",
        "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async",
    ],
)
def test_ptxas_warning_lines_are_recognised(line: str) -> None:
    """Each wording of ptxas counts as a warning."""
    with pytest.raises(CompileError, match=re.escape(line[:20])):
        nvrtc.refuse_warnings(f"ptxas info    : 0 bytes gmem\n{line}\n", "k.cu")


def test_ptxas_report_is_no_warning() -> None:
    """The ordinary report passes, in the wording of older and newer ptxas."""
    log = (
        "ptxas info    : Compiling entry function 'k_warning' for 'sm_90a'\n"
        "ptxas info    : Function properties for k_warning\n"
        "    48 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 1 barriers, 96 bytes cumulative stack size, "
        "512 bytes smem\n"
    )
    nvrtc.refuse_warnings(log, "k.cu")
    used = nvrtc.read_resources(
        log, symbol="k_warning", dynamic_shared_bytes=0, max_threads=None, source_path="k.cu"
    )
    assert (used.registers, used.spill_bytes, used.stack_bytes) == (168, 12, 96)
    assert used.static_shared_bytes == 512
    assert not used.clean


def test_missing_ptxas_report_is_an_error() -> None:
    """Spills that nobody reported are unknown, not zero."""
    with pytest.raises(CompileError, match="spills are unknown"):
        nvrtc.read_resources(
            "", symbol="k", dynamic_shared_bytes=0, max_threads=None, source_path="k.cu"
        )


def test_spills_of_a_second_kernel_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that adds up what the first one has cut stands in the same file."""
    clean = {
        ".vgpr_count": 8,
        ".sgpr_count": 9,
        ".private_segment_fixed_size": 0,
        ".group_segment_fixed_size": 0,
    }
    second = {".vgpr_spill_count": 2, ".sgpr_spill_count": 1, ".private_segment_fixed_size": 12}
    kernels = [{".name": "first", **clean}, {".name": "second", **clean, **second}]
    monkeypatch.setattr(code_object, "read_metadata", lambda image: {"amdhsa.kernels": kernels})
    used = code_object.read_resources(b"", symbol="first", dynamic_shared_bytes=0)
    assert (used.registers, used.spill_bytes, used.stack_bytes) == (8, 12, 12)


@pytest.mark.parametrize("name", DEVICE_COMPILERS)
def test_spilling_kernel_is_refused(cache: Cache, name: str) -> None:
    """Case B98: spills and local memory fail the build, from the cache too, unless allowed."""
    found = require(name)
    source = with_text(found.target, SPILL_SM90 if name == "nvrtc" else SPILL_GFX942)
    for _ in range(2):
        with pytest.raises(SpillError, match="bytes of spills"):
            compile_source(source, compiler=name, cache=cache)
    allowed = compile_source(source, compiler=name, cache=cache, allow_spills=True)
    assert allowed.resources.spill_bytes > 0
    assert allowed.resources.stack_bytes > 0


@pytest.mark.parametrize("name", DEVICE_COMPILERS)
def test_compile_error_carries_log_and_path(cache: Cache, name: str) -> None:
    """The error quotes the compiler and names a file that can be opened."""
    found = require(name)
    good = smoke_source(found.target)
    source = dataclasses.replace(good, text=good.text.replace("out[", "no_such_name["))
    with pytest.raises(CompileError, match="no_such_name") as caught:
        compile_source(source, compiler=name, cache=cache)
    assert "no_such_name" in caught.value.log
    assert caught.value.path is not None
    assert Path(caught.value.path).read_text() == source.text
    assert caught.value.path in caught.value.log
    assert cache.list() == ()


@pytest.mark.parametrize("name", GFX942_COMPILERS)
def test_wrong_symbol_is_refused(cache: Cache, name: str) -> None:
    """A code object without the kernel is an error that names what it holds."""
    require(name)
    source = dataclasses.replace(smoke_source("gfx942"), symbol="elsewhere")
    with pytest.raises(CompileError, match=r"no kernel elsewhere.*fmhagen_smoke"):
        compile_source(source, compiler=name, cache=cache)


@pytest.mark.parametrize("name", GFX942_COMPILERS)
def test_architecture_with_features_is_kept_whole(cache: Cache, name: str) -> None:
    """The device's full name reaches the code object and separates cache entries."""
    require(name)
    source = smoke_source("gfx942")
    full = compile_source(source, compiler=name, cache=cache, architecture="gfx942:sramecc+:xnack-")
    plain = compile_source(source, compiler=name, cache=cache)
    assert full.path != plain.path
    metadata = code_object.read_metadata(full.image)
    assert metadata["amdhsa.target"].endswith("gfx942:sramecc+:xnack-")


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"no code object at all" * 10])
def test_garbage_is_no_code_object(image: bytes) -> None:
    """Bytes that are no code object are refused as such."""
    with pytest.raises(CompileError, match="code object"):
        code_object.read_metadata(image)


def test_auto_picks_the_first_that_is_here() -> None:
    """The order for gfx942 is hipRTC, clang, hipcc, zig."""
    here = [c.name for c in available_compilers() if c.available and c.target == "gfx942"]
    if not here:
        pytest.skip("no compiler for gfx942")
    assert find_compiler("gfx942").name == here[0]


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any compiler the error lists every way to get one."""
    monkeypatch.setenv("PATH", "")
    hipcc = find_or_none("hipcc")
    assert hipcc is None
    with pytest.raises(CompilerNotFoundError, match="not on PATH") as caught:
        find_compiler("gfx942", "hipcc")
    assert "install: ROCm" in str(caught.value)


def find_or_none(name: str) -> Compiler | None:
    """Return a gfx942 compiler if it is here."""
    try:
        return find_compiler("gfx942", name)
    except CompilerNotFoundError:
        return None


def test_unsuitable_clang_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clang that is too old is not used, and the reason is kept."""
    fake = tmp_path / "clang"
    fake.write_text("#!/bin/sh\necho 'Debian clang version 14.0.6'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = clang_module.detect_clang()
    assert not found.available
    assert "clang 14.0.6; 19 or newer" in str(found.missing)


@pytest.mark.parametrize(
    ("target", "compiler"), [("sm90", "clang"), ("gfx942", "nvrtc"), ("sm90", "tcc")]
)
def test_impossible_choice_is_refused(target: str, compiler: str) -> None:
    """A compiler of the other target, or of no target, is refused by name."""
    with pytest.raises(ValueError, match=f"compiler='{compiler}'"):
        find_compiler(target, compiler)


def test_files_are_compiled_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The helper for CI prints one line a file and fails if one spills."""
    require("nvrtc")
    good, bad = tmp_path / "good.cu", tmp_path / "bad.cu"
    good.write_text(smoke_source("sm90").text)
    bad.write_text(SPILL_SM90)
    assert compile_files([str(good)]) == 0
    assert compile_files([str(good), str(bad)]) == 1
    printed = capsys.readouterr().out
    assert "168 registers" in printed
    assert "SPILL" in printed
    assert "1 of 2 files are clean" in printed


def test_hiprtc_root(tmp_path: Path) -> None:
    """Real hipRTC, in the root directory that .ci/hiprtc-root makes, compiles and refuses."""
    root = os.environ.get("FMHAGEN_HIPRTC_ROOT")
    if not root:
        pytest.skip("FMHAGEN_HIPRTC_ROOT names no directory made by .ci/hiprtc-root")
    bash = shutil.which("bash")
    assert bash is not None
    texts = {
        "good": smoke_source("gfx942").text,
        "spills": SPILL_GFX942,
        "wrong": smoke_source("gfx942").text.replace("out[", "no_such_name["),
    }
    statuses, printed = {}, ""
    for name, text in texts.items():
        path = tmp_path / f"{name}.hip"
        path.write_text(text)
        command = [bash, str(REPOSITORY / ".ci" / "hiprtc-compile"), root, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        statuses[name] = done.returncode
        printed += done.stdout
    assert statuses == {"good": 0, "spills": 1, "wrong": 1}
    assert "SPILL files/spills.hip" in printed
    assert "use of undeclared identifier 'no_such_name'" in printed
