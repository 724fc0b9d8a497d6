"""The demonstration: one description on both targets, compiled, run and compared with float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fmhagen.checking.verification import Case, Verification, verify
from fmhagen.committed.inventory import write_if_different
from fmhagen.compile import compile_source
from fmhagen.compile.binary import Binary
from fmhagen.instance import Instance
from fmhagen.spec import AttentionSpec, DType
from fmhagen.targets import TARGETS

SPEC = AttentionSpec(head_dim=128, causal=True)
CASE = Case(batch=2, heads=6, heads_kv=2, seqlen_q=197, seqlen_k=333)
DTYPES = (DType.BF16, DType.FP16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What became of the description on one target.

    Attributes:
        dtype: element type of the tensors.
        source: where the emitted file lies.
        binary: what the target's compiler made of it.
        result: the run, on a GPU or on the emulator, against float64.
    """

    dtype: str
    source: Path
    binary: Binary
    result: Verification

    @property
    def passed(self) -> bool:
        """Whether it is right and does not spill."""
        return self.result.passed and self.binary.resources.clean

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready data."""
        return {
            **self.result.to_dict(),
            "passed": self.passed,
            "dtype": self.dtype,
            "source": str(self.source),
            "compiler": self.binary.compiler,
            "resources": self.binary.resources.to_dict(),
        }


def demonstrate(
    directory: Path, *, device: str = "auto", tell: Callable[[str], None] = lambda _: None
) -> Iterator[Row]:
    """Take one description through the whole pipeline, on every target and in both dtypes.

    Args:
        directory: where the emitted files go.
        device: "auto" runs on a target's GPU if there is one, else on the emulator.
        tell: is given a word on each step before it is taken.

    Raises:
        CompileError: a compiler is missing or refused a source.
        EmulatorError: the emulator found a fault.
    """
    for dtype in DTYPES:
        for target in TARGETS:
            instance = Instance.of(replace(SPEC, dtype=dtype), target)
            source = instance.source()
            path = directory / source.filename
            write_if_different(path, source.text)
            tell(f"compiling {source.filename}")
            binary = compile_source(source)
            tell(f"running {source.symbol}")
            result = verify(instance, CASE, device=device)
            yield Row(dtype=str(dtype), source=path, binary=binary, result=result)
