"""Store: what a search has measured, on disk, so that the next one goes on from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fmhagen.committed.inventory import write_if_different
from fmhagen.errors import InvalidSpecError
from fmhagen.schedule import Schedule

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One schedule on one workload, relative to the reference in the same contest.

    Attributes:
        device: its name.
        workload: its name.
        digest: of the kernel's body.
        reference: digest of the kernel that it was timed beside.
        schedule: the schedule.
        status: as in `bench.contest`.
        reason: why there is no time.
        ratio: how many times quicker than the reference; 0 if there is no time.
        tflops: what it reached; 0 likewise.
        rounds: samples behind it.
    """

    device: str
    workload: str
    digest: str
    reference: str
    schedule: Schedule
    status: str
    reason: str = ""
    ratio: float = 0.0
    tflops: float = 0.0
    rounds: int = 0

    @property
    def key(self) -> str:
        """What names it: device, workload, kernel and reference."""
        return f"{self.device}|{self.workload}|{self.digest}|{self.reference}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON-ready data."""
        return {**asdict(self), "schedule": self.schedule.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Measured:
        """Build it from `to_dict`'s data."""
        return cls(**{**data, "schedule": Schedule.from_dict(data["schedule"])})


@dataclass(slots=True)
class Store:
    """Measurements by key; the one with more rounds stays."""

    path: Path | None = None
    found: dict[str, Measured] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path | None) -> Store:
        """Read a store, or start an empty one where there is no file.

        Raises:
            InvalidSpecError: the file is no store of this schema.
        """
        made = cls(path)
        if path is not None and path.exists():
            try:
                data = json.loads(path.read_text(encoding="utf-8"))
                rows = [Measured.from_dict(row) for row in data["measured"]]
            except (ValueError, KeyError, TypeError) as error:
                limit = f"is no file of results: {error}"
                raise InvalidSpecError("json", str(path), limit, "name another file") from error
            if data.get("schema") != SCHEMA:
                limit = f"has schema {data.get('schema')}, this fmhagen writes {SCHEMA}"
                raise InvalidSpecError("json", str(path), limit, "name another file")
            made.found = {row.key: row for row in rows}
        return made

    def get(
        self, *, device: str, workload: str, digest: str, reference: str, rounds: int
    ) -> Measured | None:
        """Return a measurement with at least so many rounds, or one without a time, or None."""
        found = self.found.get(f"{device}|{workload}|{digest}|{reference}")
        if found is not None and (found.rounds >= rounds or not found.ratio):
            return found
        return None

    def put(self, measured: Measured) -> Measured:
        """Keep a measurement unless one with more rounds is there; return what is kept."""
        old = self.found.get(measured.key)
        if old is None or old.rounds <= measured.rounds or not measured.ratio:
            self.found[measured.key] = measured
        return self.found[measured.key]

    def save(self) -> None:
        """Write the file, if there is one."""
        if self.path is not None:
            rows = [measured.to_dict() for measured in self]
            text = json.dumps({"schema": SCHEMA, "measured": rows}, indent=1)
            write_if_different(self.path, text + "\n")

    def __iter__(self) -> Iterator[Measured]:
        """Return the measurements, by key."""
        return iter(self.found[key] for key in sorted(self.found))
