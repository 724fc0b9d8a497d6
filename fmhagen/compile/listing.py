"""The assembly that the ziglang wheel's clang makes of a source: a disassembler for everyone."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from fmhagen.compile.clang import ZIG, detect_zig
from fmhagen.compile.flags import AMDGPU, ARCHITECTURES, HIP_OFFLINE
from fmhagen.compile.toolchain import COMPILE_LIMIT_SECONDS
from fmhagen.source import Source


def assembly_listing(source: Source) -> str | None:
    """Return the instructions of a HIP source as text, or None where the wheel is missing."""
    if not detect_zig().available:
        return None
    with tempfile.TemporaryDirectory(prefix="fmhagen-") as directory:
        path = Path(directory) / source.filename
        path.write_text(source.text, encoding="ascii")
        output = path.with_suffix(".s")
        arch = f"--offload-arch={ARCHITECTURES[source.target]}"
        flags = (*HIP_OFFLINE, *AMDGPU, arch, "-S", str(path), "-o", str(output))
        done = subprocess.run(
            (*ZIG, "clang", *flags),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=COMPILE_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode != 0 or not output.is_file():
            return None
        text = output.read_text(encoding="utf-8")
    # The metadata after the code is in Binary.resources already.
    return text.partition("\t.section\t.rodata")[0]
