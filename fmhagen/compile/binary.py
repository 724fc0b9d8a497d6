"""What a compiler made: the image, and what it costs on the chip."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

BinaryKind = Literal["cubin", "code_object", "shared_library", "object"]
"""A CUDA cubin, an AMDGPU code object, or a host library for the emulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one kernel needs of the chip, read back from the compiler's output.

    Attributes:
        registers: vector registers of one thread (on gfx942 the unified file: vector and
            accumulator registers together, after rounding by the compiler).
        accumulator_registers: accumulator registers (AGPRs) within `registers`, or None where the
            chip has none.
        scalar_registers: scalar registers (SGPRs) of one wave, or None where the chip has none.
        spill_bytes: bytes of spill traffic in the text of one thread. On sm90 the stores and loads
            that ptxas reports; on gfx942 four for each spilled vector or scalar register, of all
            kernels of the file.
        stack_bytes: local memory (CUDA) or scratch (HIP) of one thread; on gfx942 the most of any
            kernel of the file.
        static_shared_bytes: shared memory that the binary itself declares.
        dynamic_shared_bytes: shared memory to ask for at launch.
        max_threads: the most threads of a block that the binary was compiled for, or None.
    """

    registers: int
    accumulator_registers: int | None = None
    scalar_registers: int | None = None
    spill_bytes: int
    stack_bytes: int
    static_shared_bytes: int
    dynamic_shared_bytes: int
    max_threads: int | None = None

    @property
    def clean(self) -> bool:
        """True if nothing spills and nothing lives in local memory."""
        return self.spill_bytes == 0 and self.stack_bytes == 0

    def to_dict(self) -> dict[str, int | None]:
        """Return the fields as JSON-ready data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """A loadable image of one kernel.

    Attributes:
        symbol: the kernel's `extern "C"` name.
        target: the canonical target name, "sm90" or "gfx942".
        kind: what a loader must do with it.
        image: the bytes to load.
        path: where the image lies in the cache, or None if it is in memory only.
        compiler: name and version, such as "nvrtc 13.0.88".
        flags: the flags that it was compiled with.
        resources: registers, spills, shared memory.
        log: what the compiler printed.
    """

    symbol: str
    target: str
    kind: BinaryKind
    image: bytes
    path: Path | None
    compiler: str
    flags: tuple[str, ...]
    resources: Resources
    log: str

    def __repr__(self) -> str:
        """Return a short form without the image and the log."""
        return (
            f"Binary(symbol={self.symbol!r}, kind={self.kind!r}, bytes={len(self.image)}, "
            f"compiler={self.compiler!r}, resources={self.resources!r})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the image as JSON-ready data."""
        return {
            "symbol": self.symbol,
            "target": self.target,
            "kind": self.kind,
            "path": None if self.path is None else str(self.path),
            "compiler": self.compiler,
            "flags": list(self.flags),
            "resources": self.resources.to_dict(),
            "log": self.log,
        }
