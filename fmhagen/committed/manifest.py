"""The manifest of generated/: what each file is, and what it costs on its chip.

One line a field, so that a reviewer sees in a diff which kernel's registers or spills changed.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmhagen.compile.binary import Resources
from fmhagen.plan.kernel import KernelPlan
from fmhagen.source import Source

MANIFEST = "MANIFEST.toml"
_HEAD = """\
# Written by `fmhagen emit --all`, compared by `fmhagen check`; do not edit.
# Registers, spills and shared memory were read from binaries of the compiler that is named.

schema = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The resources of one kernel and the compiler whose binary they were read from.

    Attributes:
        compiler: name and version.
        resources: registers, spills and the like.
        main_loop: instructions of one wave and turn of the main loop by class, and the matrix
            utilisation that the static model predicts; "" where a target has no model.
    """

    compiler: str
    resources: Resources
    main_loop: str = ""


Measure = Callable[[Source], Measurement | None]
"""Compiles a source and reads its resources back; None where there is no compiler for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of generated/.

    Attributes:
        file: path relative to generated/.
        constructor: the Python expression that recreates it.
        symbol: the kernel's name.
        digest: digest of the file's body.
        threads: threads of one block.
        shared_bytes: shared memory of one block, declared or asked for at launch.
        measurement: resources, or None where no compiler has been asked yet.
    """

    file: str
    constructor: str
    symbol: str
    digest: str
    threads: int
    shared_bytes: int
    measurement: Measurement | None

    @classmethod
    def of(
        cls, plan: KernelPlan, source: Source, file: str, measurement: Measurement | None
    ) -> Entry:
        """Return the entry of an emitted plan."""
        return cls(
            file=file,
            constructor=plan.constructor,
            symbol=plan.symbol,
            digest=source.digest,
            threads=plan.threads,
            shared_bytes=plan.shared_bytes,
            measurement=measurement,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as plain data, as it stands in the manifest."""
        data: dict[str, Any] = {
            "file": self.file,
            "constructor": self.constructor,
            "symbol": self.symbol,
            "digest": self.digest,
            "threads": self.threads,
            "shared_bytes": self.shared_bytes,
        }
        if self.measurement is not None:
            data["compiler"] = self.measurement.compiler
            data.update(
                (name, value)
                for name, value in self.measurement.resources.to_dict().items()
                if value is not None
            )
            if self.measurement.main_loop:
                data["main_loop"] = self.measurement.main_loop
        return data


def write_manifest(entries: tuple[Entry, ...]) -> str:
    """Return the manifest's text, sorted by file."""
    parts = [_HEAD]
    for entry in sorted(entries, key=lambda entry: entry.file):
        # JSON's strings and integers are TOML's.
        lines = [f"{name} = {json.dumps(value)}" for name, value in entry.to_dict().items()]
        parts.append("\n".join(["", "[[kernel]]", *lines, ""]))
    return "".join(parts)


def read_manifest(path: Path) -> dict[str, Entry]:
    """Return a manifest's entries by file; empty if there is none or it cannot be read.

    NOTE: an unreadable manifest is no error, because the comparison shows what is wrong with it.
    """
    try:
        kernels = tomllib.loads(path.read_text(encoding="utf-8"))["kernel"]
        return {kernel["file"]: _entry(kernel) for kernel in kernels}
    except (OSError, KeyError, TypeError, ValueError):
        return {}


def _entry(data: dict[str, Any]) -> Entry:
    own = {name: data[name] for name in Entry.__slots__ if name != "measurement"}
    rest = {name: value for name, value in data.items() if name not in own}
    measurement = None
    if "compiler" in rest:
        compiler, main_loop = rest.pop("compiler"), rest.pop("main_loop", "")
        resources = Resources(**rest)
        measurement = Measurement(compiler=compiler, resources=resources, main_loop=main_loop)
    return Entry(**own, measurement=measurement)
