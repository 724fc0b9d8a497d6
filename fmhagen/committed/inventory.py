"""The committed instances: the files under generated/, one explicit line each.

They are few and structural: a change to a template or a lowering shows in some of them.
`fmhagen emit --all` writes them, `fmhagen check` compares them with what would be written.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fmhagen.appending.plan import can_append, lower_append
from fmhagen.appending.plan import source_of as source_of_append
from fmhagen.appending.spec import AngleDType, AppendSpec, SmallDType
from fmhagen.committed.manifest import (
    MANIFEST,
    Entry,
    Measure,
    Measurement,
    read_manifest,
    write_manifest,
)
from fmhagen.emission import BODY_LINE, body_digest
from fmhagen.expr.mods import MaskMod
from fmhagen.instance import Instance
from fmhagen.mapping.plan import lower_map
from fmhagen.mapping.plan import source_of as source_of_map
from fmhagen.mapping.spec import MapSpec
from fmhagen.merging.plan import lower_merge, source_of
from fmhagen.merging.spec import MergeDType, MergeSpec
from fmhagen.plan.kernel import KernelPlan
from fmhagen.resources import templates_dir
from fmhagen.source import Source
from fmhagen.spec import Anchor, AttentionSpec, DType
from fmhagen.targets import TARGETS
from fmhagen.validate import is_supported

_DOCUMENTS = MaskMod("document_id: i32[1]; document_id[q_idx] == document_id[kv_idx]")

SPECS: tuple[AttentionSpec, ...] = (
    AttentionSpec(dtype=DType.BF16, head_dim=128),
    AttentionSpec(dtype=DType.BF16, head_dim=128, causal=True),
    AttentionSpec(dtype=DType.BF16, head_dim=128, causal=True, anchor=Anchor.TOP_LEFT),
    AttentionSpec(dtype=DType.BF16, head_dim=64, causal=True),
    AttentionSpec(dtype=DType.FP16, head_dim=128, causal=True),
    AttentionSpec(dtype=DType.FP16, head_dim=64),
    AttentionSpec(dtype=DType.BF16, head_dim=256, causal=True),
    AttentionSpec(dtype=DType.BF16, head_dim=192, head_dim_v=128, causal=True),
    AttentionSpec(dtype=DType.BF16, head_dim=192, causal=True),
    AttentionSpec(dtype=DType.BF16, head_dim=128, causal=True, window_left=1023),
    AttentionSpec(dtype=DType.BF16, head_dim=128, causal=True, alibi=True),
    AttentionSpec(dtype=DType.BF16, head_dim=128, causal=True, sink=True, varlen=True),
    AttentionSpec(dtype=DType.BF16, head_dim=128, causal=True, mask_mod=_DOCUMENTS),
)
"""What is committed, on every target that supports it."""

CACHE_SPECS: tuple[AttentionSpec, ...] = (
    AttentionSpec(dtype=DType.BF16, kv_cache=True),
    AttentionSpec(dtype=DType.BF16, page_size=16, causal=True),
    AttentionSpec(dtype=DType.BF16, page_size=1),
    AttentionSpec(dtype=DType.BF16, page_size=16, causal=True, kv_dtype=DType.E4M3),
    AttentionSpec(dtype=DType.BF16, page_size=16, causal=True, varlen=True),
)
"""What is committed on the targets that have kernels over a key/value cache."""


MERGE_SPECS: tuple[MergeSpec, ...] = (MergeSpec(parts=2), MergeSpec(dtype=MergeDType.FP32, parts=3))
"""What is committed of the kernels that merge parts, on every target."""

APPEND_SPECS: tuple[AppendSpec, ...] = (
    AppendSpec(),
    AppendSpec(rotary_dim=128),
    AppendSpec(rotary_dim=64, interleaved=True, angle_dtype=AngleDType.BF16),
    AppendSpec(rotary_dim=128, cache_dtype=SmallDType.E4M3),
)
"""What is committed of the kernels that append to a cache, where there is such a cache."""

MAP_SPECS: tuple[MapSpec, ...] = (MapSpec(mask=_DOCUMENTS, tile_m=128, tile_n=128),)
"""What is committed of the kernels that write block maps, on every target."""


def instances() -> tuple[Instance, ...]:
    """Return every committed instance with its default schedule, target by target."""
    return tuple(
        Instance.of(spec, target)
        for target in TARGETS
        for spec in (*SPECS, *(CACHE_SPECS if target.cache_template else ()))
        if is_supported(spec, target)
    )


def generated_dir() -> Path:
    """Return generated/ of the checkout that the templates belong to, else that of this folder."""
    beside = templates_dir().parent / "generated"
    return beside if templates_dir().name == "templates" else Path("generated")


def render_all(directory: Path, measure: Measure | None = None) -> dict[str, str]:
    """Return the text of every file that belongs under generated/, by relative path.

    Args:
        directory: where the manifest of today lies. What it says of a kernel's resources is kept
            for as long as the kernel's digest stays.
        measure: compiles a source and returns its resources, or None where there is no compiler.
    """
    known = read_manifest(directory / MANIFEST)
    files: dict[str, str] = {}
    entries = []
    for plan, source in kernels():
        path = f"{source.target}/{source.filename}"
        old = known.get(path)
        kept = old.measurement if old is not None and old.digest == source.digest else None
        measured: Measurement | None = measure(source) if measure is not None else None
        entries.append(Entry.of(plan, source, path, measured or kept))
        files[path] = source.text
    files[MANIFEST] = write_manifest(tuple(entries))
    return files


def kernels() -> Iterator[tuple[KernelPlan, Source]]:
    """Yield every committed kernel as plan and source: attention, merges, appends, block maps."""
    for instance in instances():
        yield instance.plan(), instance.source()
    for target in TARGETS:
        for spec in MERGE_SPECS:
            plan = lower_merge(spec, target)
            yield plan, source_of(plan)
        for rows in APPEND_SPECS:
            if can_append(rows, target):
                appender = lower_append(rows, target)
                yield appender, source_of_append(appender)
        for mapped in MAP_SPECS:
            classifier = lower_map(mapped, target)
            yield classifier, source_of_map(classifier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One file under generated/ that is not what it should be.

    Attributes:
        path: relative to generated/.
        kind: "missing", "extra" or "changed".
        diff: the unified diff from what is there to what should be.
        edited: the file's text does not match the digest in its own header.
    """

    path: str
    kind: str
    diff: str
    edited: bool = False


def compare(directory: Path, expected: dict[str, str]) -> tuple[Difference, ...]:
    """Compare a directory with what it should hold, both ways."""
    present = {path: (directory / path).read_bytes() for path in files_under(directory)}
    differences = []
    for path in sorted({*present, *expected}):
        if path not in present:
            diff = unified(path, "", expected[path])
            differences.append(Difference(path=path, kind="missing", diff=diff))
            continue
        text = present[path].decode("utf-8", errors="backslashreplace")
        if path not in expected:
            diff = unified(path, text, "")
            differences.append(Difference(path=path, kind="extra", diff=diff))
        elif present[path] != expected[path].encode():
            differences.append(
                Difference(
                    path=path,
                    kind="changed",
                    diff=unified(path, text, expected[path]),
                    edited=path != MANIFEST and not digest_holds(text),
                )
            )
    return tuple(differences)


def files_under(directory: Path) -> tuple[str, ...]:
    """Return the relative path of every file below a directory, sorted."""
    return tuple(
        sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file())
    )


def is_ours(path: Path) -> bool:
    """Return whether a file says of itself that fmhagen generated it."""
    with path.open("rb") as file:
        return b"// Generated by fmhagen" in file.read(1024)


def digest_holds(text: str) -> bool:
    """Return whether the digest in a generated file's header is that of its body."""
    head, line, body = text.partition(BODY_LINE)
    stated = re.search(r'^// Digest of the text below the line "body": (\w+)$', head, re.MULTILINE)
    return bool(line and stated and body.isascii() and stated[1] == body_digest(body))


def unified(path: str, old: str, new: str) -> str:
    """Return the unified diff of one file, "" if equal."""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"generated/{path}" if old else "/dev/null",
        f"emitted/{path}" if new else "/dev/null",
    )
    return "".join(lines)


def write_if_different(path: Path, content: str | bytes) -> bool:
    """Write a file by atomic rename unless it holds that already; return whether it did."""
    data = content.encode() if isinstance(content, str) else content
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as temporary:
        temporary.write_bytes(data)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    return True


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
