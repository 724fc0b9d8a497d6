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
_CACHE = ("cache", "page_size", "kv_dtype", "kv_scale")
_KEY = ("target", "dtype", "head_dim", "head_dim_v", "causal", *_CACHE, "max_seqlen")
_HEADER = """\
# Schedules that were chosen by measuring; `select.choose` prefers them to its rules.
# Written by `fmhagen tune --write-table`; see docs/performance.md. A row is used for specs with its
# target, dtype, head dims and mask, and nothing else that changes the kernel. One with cache = true
# is for specs over a key/value cache with its page size (0: contiguous), 8-bit elements ("": none)
# and scales; one that says nothing of a cache is for specs without. max_seqlen = 0 is the
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
        cache: whether it is for specs over a key/value cache.
        page_size: of the spec; 0 where it has none.
        kv_dtype: of the spec; "" where it has none.
        kv_scale: of the spec.
        max_seqlen: most keys of a sequence that the row is for; 0 for any.
        schedule: the choice.
        tflops: what it reached.
        terabytes: TB/s of keys and values that it read from a cache; 0 without one.
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
    cache: bool = False
    page_size: int = 0
    kv_dtype: str = ""
    kv_scale: str = "none"
    terabytes: float = 0.0

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
            kv_cache=spec.kv_cache,
            page_size=spec.page_size,
            kv_dtype=spec.kv_dtype,
            kv_scale=spec.kv_scale,
            cache_layout=spec.cache_layout,
        )
        return spec == plain and self.key[:-1] == (
            target,
            str(spec.dtype),
            spec.d,
            spec.dv,
            spec.causal,
            *cache_of(spec).values(),
        )

    def __str__(self) -> str:
        """Return where the schedule comes from, as a sentence."""
        what = f"at most {self.max_seqlen} keys" if self.max_seqlen else "any length"
        speed = f"{self.tflops:.0f} TFLOP/s"
        if self.cache:
            pages = f" in pages of {self.page_size}" if self.page_size else ""
            scales = "" if self.kv_scale == "none" else f" with a scale a {self.kv_scale}"
            what = f"caches of {self.kv_dtype or self.dtype}{scales}{pages}, {what}"
            speed = f"{self.terabytes:.2f} TB/s"
        return (
            f"row of schedules/{TABLE} for {what}: measured {speed},"
            f" {self.ratio:.3f} times what the rules choose, on {self.device}, {self.date}, over"
            f" {self.workloads} (kernel {self.digest})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the row as TOML-ready data, the schedule last."""
        # NOTE: rows of specs without a cache say nothing of one.
        names = _KEY if self.cache else tuple(name for name in _KEY if name not in _CACHE)
        data = {name: getattr(self, name) for name in names}
        for name in ("tflops", "ratio", "workloads", "device", "date", "digest"):
            data[name] = getattr(self, name)
        if self.cache:
            data["terabytes"] = self.terabytes
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


def cache_of(spec: AttentionSpec) -> dict[str, Any]:
    """Return what a row says of a spec's key/value cache, by field."""
    return {
        "cache": spec.kv_cache,
        "page_size": spec.page_size or 0,
        "kv_dtype": "" if spec.kv_dtype is None else str(spec.kv_dtype),
        "kv_scale": str(spec.kv_scale),
    }


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
