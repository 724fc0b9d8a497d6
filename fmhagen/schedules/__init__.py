"""Schedules: the shipped table of schedules that were chosen by measuring.

`h200.toml` beside this file is data, a row a choice, written by `fmhagen tune --write-table` and
read by `select.choose`. A row says what it is for, the schedule, and how it was measured.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmhagen.errors import InvalidSpecError
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec

ANY_LENGTH = 0
TABLE = "h200.toml"
_KEY = ("target", "dtype", "head_dim", "head_dim_v", "causal", "max_seqlen")
_HEADER = """\
# Schedules that were chosen by measuring; `select.choose` prefers them to its rules.
# Written by `fmhagen tune --write-table`; see docs/performance.md. A row is used for specs with its
# target, dtype, head dims and mask, and nothing else that changes the kernel. max_seqlen = 0 is the
# row for any length; a row with max_seqlen = N is used where the caller says that no sequence has
# more than N keys (`compile_kernel(..., seqlen_hint=N)`), the least such N that suffices.
# ratio: how many times quicker than what the rules choose. digest: of the kernel that was timed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One choice of the table.

    Attributes:
        target: the chip.
        dtype: of the spec.
        head_dim: of the spec.
        head_dim_v: of the spec.
        causal: of the spec.
        max_seqlen: most keys of a sequence that the row is for; 0 for any.
        schedule: the choice.
        tflops: what it reached.
        ratio: to what the rules of `select` chose then.
        workloads: on what it was measured.
        device: where.
        date: when.
        digest: of the kernel's body then.
    """

    target: str
    dtype: str
    head_dim: int
    head_dim_v: int
    causal: bool
    max_seqlen: int
    schedule: Schedule
    tflops: float
    ratio: float
    workloads: str
    device: str
    date: str
    digest: str

    @property
    def key(self) -> tuple[Any, ...]:
        """What the row is for; a table has one row a key."""
        return tuple(getattr(self, name) for name in _KEY)

    def fits(self, spec: AttentionSpec, target: str) -> bool:
        """Return whether the row is for a spec, whatever the lengths."""
        plain = AttentionSpec(
            dtype=spec.dtype,
            head_dim=spec.head_dim,
            head_dim_v=spec.head_dim_v,
            causal=spec.causal,
            anchor=spec.anchor,
            scale=spec.scale,
            layout=spec.layout,
        )
        return spec == plain and self.key[:-1] == (
            target,
            str(spec.dtype),
            spec.d,
            spec.dv,
            spec.causal,
        )

    def __str__(self) -> str:
        """Return where the schedule comes from, as a sentence."""
        length = f"at most {self.max_seqlen} keys" if self.max_seqlen else "any length"
        return (
            f"row of schedules/{TABLE} for {length}: measured {self.tflops:.0f} TFLOP/s,"
            f" {self.ratio:.3f} times what the rules choose, on {self.device}, {self.date}, over"
            f" {self.workloads} (kernel {self.digest})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the row as TOML-ready data, the schedule last."""
        data = {name: getattr(self, name) for name in _KEY}
        for name in ("tflops", "ratio", "workloads", "device", "date", "digest"):
            data[name] = getattr(self, name)
        return {**data, "schedule": self.schedule.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """Build a row from `to_dict`'s data.

        Raises:
            InvalidSpecError: a field is missing, unknown, or has no meaning.
        """
        try:
            return cls(**{**data, "schedule": Schedule.from_dict(data["schedule"])})
        except (KeyError, TypeError) as error:
            raise InvalidSpecError("row", dict(data), f"is no row: {error}") from error


def shipped_path() -> Path:
    """Return where the shipped table lies."""
    return Path(__file__).with_name(TABLE)


@functools.cache
def shipped_rows() -> tuple[Row, ...]:
    """Return the rows of the shipped table."""
    return read_rows(shipped_path())


def read_rows(path: Path) -> tuple[Row, ...]:
    """Return the rows of a table.

    Raises:
        InvalidSpecError: the file is no table.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="ascii"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpecError("table", str(path), f"is not TOML: {error}") from error
    return tuple(Row.from_dict(row) for row in tables.get("row", ()))


def table_text(rows: Iterable[Row]) -> str:
    """Return a table as text, sorted by key, so that the same rows give the same bytes."""
    import tomli_w

    ordered = sorted(rows, key=lambda row: row.key)
    text = tomli_w.dumps({"row": [row.to_dict() for row in ordered]}) if ordered else ""
    return f"{_HEADER}\n{text}" if text else _HEADER


def merged(old: Iterable[Row], new: Iterable[Row]) -> tuple[Row, ...]:
    """Return the old rows with the new ones in place of those for the same specs."""
    added = tuple(new)
    replaced = {row.key[:-1] for row in added}
    return (*(row for row in old if row.key[:-1] not in replaced), *added)


def find_row(
    rows: Iterable[Row], spec: AttentionSpec, target: str, seqlen: int | None = None
) -> Row | None:
    """Return the row to use for a spec: of the least length that suffices, else that for any."""
    fitting = [row for row in rows if row.fits(spec, target)]
    long_enough = [row for row in fitting if seqlen is not None and row.max_seqlen >= seqlen]
    buckets = sorted((row for row in long_enough if row.max_seqlen), key=lambda row: row.max_seqlen)
    if buckets:
        return buckets[0]
    return next((row for row in fitting if row.max_seqlen == ANY_LENGTH), None)
