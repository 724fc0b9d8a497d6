"""Machine code as text, by whatever disassembler is here."""

from __future__ import annotations

import re
import shutil
import sysconfig
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fmhagen.compile.binary import Binary
from fmhagen.compile.listing import assembly_listing
from fmhagen.compile.toolchain import output_of
from fmhagen.errors import RuntimeUnavailableError
from fmhagen.source import Source
from fmhagen.targets import Target
from fmhagen.targets.instructions import OTHER_CLASS, instruction_classes

_LIMIT_SECONDS = 120.0
_INSTALL = {
    "cubin": "pip install nvidia-cuda-nvdisasm",
    "code_object": "an llvm-objdump >= 19, ROCm, or pip install ziglang",
}
# A mnemonic after an optional address comment and an optional predicate.
_MNEMONIC = re.compile(r"^\s+(?:/\*[0-9a-f]+\*/\s+)?(?:@!?U?P\w+\s+)?([A-Za-z][\w.]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Disassembly:
    """The machine code of one kernel.

    Attributes:
        tool: what printed it.
        text: the listing.
    """

    tool: str
    text: str


def disassemble(binary: Binary, source: Source, target: Target) -> Disassembly:
    """Return a binary's machine code.

    A cubin needs nvdisasm or cuobjdump. A code object needs llvm-objdump; where there is none,
    the wheel's compiler prints the assembly of the source instead.

    Raises:
        RuntimeUnavailableError: no disassembler is here; the message says what to install.
    """
    arch = target.compiler_arch
    commands = {
        "cubin": (("nvdisasm", ("-c",)), ("cuobjdump", ("-sass",))),
        "code_object": (
            ("llvm-objdump", ("-d", f"--mcpu={arch}", "--no-show-raw-insn", "--no-leading-addr")),
        ),
    }.get(binary.kind, ())
    with tempfile.TemporaryDirectory(prefix="fmhagen-") as directory:
        image = Path(directory) / "image"
        image.write_bytes(binary.image)
        for name, flags in commands:
            for program in find_programs(name):
                text = _run((program, *flags, str(image)))
                if text:
                    return Disassembly(tool=Path(program).name, text=text)
    if binary.kind == "code_object":
        listing = assembly_listing(source)
        if listing is not None:
            return Disassembly(tool="ziglang, assembly of the source", text=listing)
    names = " or ".join(name for name, _ in commands) or "a disassembler"
    install = _INSTALL.get(binary.kind, "none is known")
    raise RuntimeUnavailableError(f"{names} is not here; install: {install}")


def find_programs(name: str) -> tuple[str, ...]:
    """Return the programs of a name: on PATH (newest first), in NVIDIA's wheels, in ROCm."""
    wheels = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    found = [
        *(shutil.which(f"{name}-{version}") for version in range(30, 18, -1)),
        shutil.which(name),
        *sorted(map(str, wheels.glob(f"*/bin/{name}")), reverse=True),
        f"/opt/rocm/llvm/bin/{name}",
    ]
    return tuple(p for p in dict.fromkeys(found) if p is not None and Path(p).is_file())


def _run(command: tuple[str, ...]) -> str:
    """Return what a disassembler prints, or "" if it cannot read the image."""
    text = output_of(command, _LIMIT_SECONDS)
    return "" if "<unknown>" in text else text


def count_classes(text: str, target: Target) -> dict[str, int]:
    """Return how many instructions of each class a listing has, the most frequent first."""
    classes = [(re.compile(pattern), name) for pattern, name in instruction_classes(target.name)]
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        match = _MNEMONIC.match(line)
        if match is None or line.rstrip().endswith(":"):
            continue
        mnemonic = match[1]
        counts[next((n for pattern, n in classes if pattern.match(mnemonic)), OTHER_CLASS)] += 1
    return dict(counts.most_common())
