"""Doctor: what this machine has, what is missing, and what to install."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from fmhagen.compile import Compiler, available_compilers, smoke
from fmhagen.errors import FmhagenError
from fmhagen.inspection.disassembly import find_programs
from fmhagen.instance import Instance
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

OLDEST_PYTHON = (3, 11)

# The first are needed; the others, with their use, add a compiler, a device or a tool.
_REQUIRED = ("jinja2", "numpy", "ml_dtypes", "typer", "rich", "filelock", "platformdirs")
_OPTIONAL = (
    ("cuda-python", "runs kernels on NVIDIA GPUs", "pip install 'fmhagen[cuda]'"),
    ("nvidia-cuda-nvrtc", "compiles CUDA", "pip install 'fmhagen[cuda]'"),
    ("hip-python", "compiles and runs on AMD GPUs, with ROCm", "pip install 'fmhagen[hip]'"),
    ("ziglang", "compiles HIP and the emulator anywhere", "pip install 'fmhagen[compilers]'"),
    ("nvidia-cuda-nvdisasm", "disassembles CUDA", "pip install 'fmhagen[disassembly]'"),
    ("torch", "tensors on a GPU", "pip install torch"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked for.

    Attributes:
        group: "system", "package", "compiler", "device", "tool" or "verdict".
        name: what it is.
        status: "ok", "missing" (optional and not here) or "failed".
        detail: version, path, or what is wrong.
        install: what to do about it, or "".
    """

    group: str
    name: str
    status: str
    detail: str
    install: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that was found.

    Attributes:
        findings: in the order they were looked for; verdicts come last.
    """

    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether every target can be compiled and the emulator runs."""
        return all(finding.status != "failed" for finding in self.findings)


def examine(*, smoke_compile: bool = True, emulate: bool = True) -> Report:
    """Look at this machine.

    Args:
        smoke_compile: compile a trivial kernel with each compiler that is here.
        emulate: run a small kernel on the emulator.
    """
    compilers = tuple(_compiler(c, smoke_compile=smoke_compile) for c in available_compilers())
    verdicts = [
        *(_can_compile(target.name, compilers) for target in TARGETS),
        _can_compile("emulator", compilers),
    ]
    if emulate and verdicts[-1].status == "ok":
        verdicts[-1] = _emulates()
    return Report(
        findings=(
            *_system(),
            *_packages(),
            *(finding for finding, _ in compilers),
            *_devices(),
            *_tools(),
            *verdicts,
        )
    )


def _system() -> tuple[Finding, ...]:
    version = platform.python_version()
    is_new = sys.version_info[:2] >= OLDEST_PYTHON
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return (
        Finding(
            group="system",
            name="python",
            status="ok" if is_new else "failed",
            detail=f"{version}, {platform.system()} {platform.machine()}",
            install="" if is_new else f"Python {oldest} or newer",
        ),
    )


def _packages() -> tuple[Finding, ...]:
    found = []
    for name in _REQUIRED:
        version = _version(name)
        found.append(
            Finding(
                group="package",
                name=name,
                status="failed" if version is None else "ok",
                detail=version or "not installed",
                install="" if version else f"pip install {name}",
            )
        )
    for name, purpose, install in _OPTIONAL:
        version = _version(name)
        found.append(
            Finding(
                group="package",
                name=name,
                status="missing" if version is None else "ok",
                detail=version or f"not installed; {purpose}",
                install="" if version else install,
            )
        )
    return tuple(found)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _compiler(compiler: Compiler, *, smoke_compile: bool) -> tuple[Finding, Compiler]:
    name = f"{compiler.name} for {compiler.target}"
    where = f"{compiler.version}, {compiler.path}"
    finding = Finding(
        group="compiler",
        name=name,
        status="ok" if compiler.available else "missing",
        detail=where if compiler.available else compiler.missing or "",
        install="" if compiler.available else compiler.install,
    )
    if not (compiler.available and smoke_compile):
        return finding, compiler
    started = time.perf_counter()
    try:
        smoke(compiler.name)
    except FmhagenError as error:
        first = str(error).splitlines()[0]
        broken = replace(finding, status="missing", detail=first, install=compiler.install)
        return broken, compiler
    seconds = time.perf_counter() - started
    return replace(finding, detail=f"{finding.detail}, compiles in {seconds:.2f} s"), compiler


def _can_compile(target: str, compilers: tuple[tuple[Finding, Compiler], ...]) -> Finding:
    mine = [(finding, compiler) for finding, compiler in compilers if compiler.target == target]
    usable = [compiler.label for finding, compiler in mine if finding.status == "ok"]
    return Finding(
        group="verdict",
        name=f"compile for {target}" if target != "emulator" else "emulator",
        status="ok" if usable else "failed",
        detail=", ".join(usable) or "no compiler",
        install="" if usable else " or ".join(compiler.install for _, compiler in mine),
    )


def _devices() -> tuple[Finding, ...]:
    from fmhagen.runtime.devices import list_devices

    return tuple(
        Finding(
            group="device",
            name=f"{report.memory} {report.index}" if report.index >= 0 else str(report.memory),
            status="missing" if report.missing else "ok",
            detail=report.missing
            or f"{report.name}, {report.architecture}, {report.compute_units} compute units",
            install="none needed: kernels run on the emulator" if report.missing else "",
        )
        for report in list_devices()
    )


def _tools() -> tuple[Finding, ...]:
    found = []
    for name, install in (
        ("nvdisasm", "pip install 'fmhagen[disassembly]'"),
        ("llvm-objdump", "LLVM 19 or newer; without it inspect prints the compiler's assembly"),
    ):
        programs = find_programs(name)
        found.append(
            Finding(
                group="tool",
                name=name,
                status="ok" if programs else "missing",
                detail=programs[0] if programs else "not found",
                install="" if programs else install,
            )
        )
    return tuple(found)


def _emulates() -> Finding:
    """Run one small kernel a target on the emulator and compare it with float64."""
    from fmhagen.checking.verification import EMULATOR, Case, verify

    case = Case(batch=1, heads=2, heads_kv=1, seqlen_q=17, seqlen_k=49)
    lines = []
    try:
        for target in TARGETS:
            instance = Instance.of(AttentionSpec(head_dim=64, causal=True), target)
            result = verify(instance, case, device=EMULATOR)
            lines.append(f"{target.name} in {result.seconds * 1000:.0f} ms")
            if not result.passed:
                return _emulator_failed(f"{target.name}: {result.comparison}")
    except FmhagenError as error:
        return _emulator_failed(str(error).splitlines()[0])
    return Finding(
        group="verdict",
        name="emulator",
        status="ok",
        detail="runs and is right: " + ", ".join(lines),
    )


def _emulator_failed(detail: str) -> Finding:
    return Finding(group="verdict", name="emulator", status="failed", detail=detail)
