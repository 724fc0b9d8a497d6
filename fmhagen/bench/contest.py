"""Records of a contest: who is timed on a workload, and what came of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from fmhagen.bench.workloads import Workload
from fmhagen.schedule import Schedule

OK = "ok"
MISSING = "missing"  # the peer is not installed
REFUSED = "refused"  # the contestant says that it does not do this workload
WRONG = "wrong"  # its result is not float64's
FAILED = "failed"  # it raised, or took the process with it
HUNG = "hung"  # the watchdog ended it

OURS = "fmhagen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One contestant.

    Attributes:
        name: what it is called in tables.
        peer: a peer's name, or None for a kernel of fmhagen.
        schedule: of a kernel of fmhagen; None means the default for the workload.
        with_out: a kernel of fmhagen is given `out=`; else it allocates O in the call.
    """

    name: str
    peer: str | None = None
    schedule: Schedule | None = None
    with_out: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON-ready data."""
        return {
            "name": self.name,
            "peer": self.peer,
            "schedule": None if self.schedule is None else self.schedule.to_dict(),
            "with_out": self.with_out,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Entry:
        """Build an entry from `to_dict`'s data."""
        schedule = data["schedule"]
        made = None if schedule is None else Schedule.from_dict(schedule)
        return cls(name=data["name"], peer=data["peer"], schedule=made, with_out=data["with_out"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Entries that are timed in the same shuffled rounds on the same tensors.

    Attributes:
        workload: what they compute.
        entries: who takes part.
        rounds: timed samples of each.
        window_ms: device time of one sample, about.
        on_host: time the host's part of a call instead of the device's.
        check: compare every result with float64 before it is timed.
        input_sets: sets of tensors that calls rotate over, so that L2 is not warm by accident.
        seed: of inputs and of the order of rounds.
    """

    workload: Workload
    entries: tuple[Entry, ...]
    rounds: int = 5
    window_ms: float = 30.0
    on_host: bool = False
    check: bool = True
    input_sets: int = 3
    seed: int = 0

    def without(self, name: str) -> Contest:
        """Return the contest without one entry."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.name != name))

    def to_dict(self) -> dict[str, Any]:
        """Return the contest as JSON-ready data."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain["workload"] = self.workload.to_dict()
        plain["entries"] = [entry.to_dict() for entry in self.entries]
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Contest:
        """Build a contest from `to_dict`'s data."""
        made = dict(data)
        made["workload"] = Workload.from_dict(data["workload"])
        made["entries"] = tuple(Entry.from_dict(entry) for entry in data["entries"])
        return cls(**made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one entry.

    Attributes:
        name: the entry's.
        status: ok, missing, refused, wrong, failed or hung.
        reason: one sentence where the status is not ok, or the method is "calls".
        milliseconds: of one call, a sample a round.
        method: "graph" (replays between events), "calls" (plain calls between events) or "host".
        clock_mhz: the chip's clock at each sample, where it can be read.
        watts: its power, likewise.
        error_rms: RMS of O - float64 relative to the RMS of float64.
        error_worst: the largest |O - float64| relative to the largest |float64|.
        repeatable: whether O was bitwise the same after all rounds; None if that was not asked.
        facts: what is known of the kernel: symbol, digest, schedule, resources, version.
    """

    name: str
    status: str
    reason: str = ""
    milliseconds: tuple[float, ...] = ()
    method: str = ""
    clock_mhz: tuple[float, ...] = ()
    watts: tuple[float, ...] = ()
    error_rms: float | None = None
    error_worst: float | None = None
    repeatable: bool | None = None
    facts: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether there is a time."""
        return self.status == OK and bool(self.milliseconds)

    @property
    def median_ms(self) -> float:
        """The median of the samples."""
        return statistics.median(self.milliseconds)

    @property
    def spread(self) -> float:
        """Slowest less quickest sample, as a share of the median."""
        return (max(self.milliseconds) - min(self.milliseconds)) / self.median_ms

    def tflops(self, workload: Workload) -> float:
        """Return TFLOP/s over the visible pairs."""
        return workload.flops / self.median_ms / 1e9

    def terabytes(self, workload: Workload) -> float:
        """Return TB/s of the cache's keys and values, each read once."""
        return workload.cache_bytes / self.median_ms / 1e9

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Build an outcome from `to_dict`'s data, perhaps after JSON."""
        made = dict(data)
        for name in ("milliseconds", "clock_mhz", "watts"):
            made[name] = tuple(made.get(name) or ())
        return cls(**made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A workload and what came of each entry."""

    workload: Workload
    outcomes: tuple[Outcome, ...]

    def find(self, name: str) -> Outcome | None:
        """Return the outcome of an entry that has a time, or None."""
        return next((o for o in self.outcomes if o.name == name and o.ok), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready data, with TFLOP/s."""
        rows = []
        for outcome in self.outcomes:
            row = outcome.to_dict()
            if outcome.ok:
                row["tflops"] = round(outcome.tflops(self.workload), 2)
            rows.append(row)
        return {"workload": self.workload.to_dict(), "outcomes": rows}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Result:
        """Build a result from `to_dict`'s data."""
        rows = [{k: v for k, v in row.items() if k != "tflops"} for row in data["outcomes"]]
        return cls(
            workload=Workload.from_dict(data["workload"]),
            outcomes=tuple(Outcome.from_dict(row) for row in rows),
        )
