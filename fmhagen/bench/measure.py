"""Measure: hold a contest on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from fmhagen.bench.caches import caches_of
from fmhagen.bench.contest import (
    FAILED,
    MISSING,
    OK,
    REFUSED,
    WRONG,
    Contest,
    Entry,
    Outcome,
)
from fmhagen.bench.hints import hints_of
from fmhagen.bench.peers import Call, find_peers
from fmhagen.bench.timing import Sample, calls_per_sample, interleave
from fmhagen.bench.workloads import Workload
from fmhagen.errors import CompileError, FmhagenError, ScheduleError, SpillError
from fmhagen.errors import UnsupportedSpecError as Unsupported
from fmhagen.spec import AttentionSpec

ERROR_LIMIT = {"bf16": 5e-3, "fp16": 1e-3}  # RMS against float64; rounding O alone gives a third
SMALL_ERROR_LIMIT = 6e-2  # of a peer that rounds Q and P to 8 bits too
HOST_CALLS = 16
Tell = Callable[[str, str], None]


class Ground(Protocol):
    """What a contest needs of a device; `device.TorchDevice` is one, tests have another."""

    torch: Any

    def inputs(self, workload: Workload, *, sets: int, seed: int) -> list[Any]: ...  # noqa: D102
    def new_output(self, workload: Workload, like: Any) -> Any: ...  # noqa: D102
    def capture(self, call: Call, calls: int, sets: int) -> Any: ...  # noqa: D102
    def run_poisoned(self, replay: Any) -> Any: ...  # noqa: D102
    def sample(self, replay: Any) -> Sample: ...  # noqa: D102
    def sample_host(self, call: Call, calls: int) -> Sample: ...  # noqa: D102
    def reference(self, workload: Workload, inputs: Any) -> Any: ...  # noqa: D102
    def errors(self, output: Any, reference: Any) -> tuple[float, float]: ...  # noqa: D102
    def copy(self, output: Any) -> Any: ...  # noqa: D102
    def same_bits(self, one: Any, other: Any) -> bool: ...  # noqa: D102
    def is_alive(self) -> bool: ...  # noqa: D102
    def release(self) -> None: ...  # noqa: D102


class DeviceLostError(FmhagenError, RuntimeError):
    """An entry ended the device's context; the process must be left.

    Attributes:
        entry: the entry's name.
        reason: what it raised.
    """

    def __init__(self, entry: str, reason: str) -> None:
        """Keep both beside the message."""
        self.entry, self.reason = entry, reason
        super().__init__(f"{entry}: {reason}")


@dataclass(slots=True, kw_only=True)
class _Ready:
    """An entry that can be called."""

    call: Call
    facts: dict[str, Any]
    replay: Any = None
    before: Any = None
    errors: tuple[float, float] | None = None
    samples: list[Sample] = field(default_factory=list)


def hold(
    contest: Contest, ground: Ground, tell: Tell = lambda entry, phase: None
) -> tuple[Outcome, ...]:
    """Prepare, check and time every entry; one outcome each, in the order of the entries.

    Args:
        contest: who is timed on what.
        ground: the device.
        tell: is called with an entry's name and a phase before something that may hang.

    Raises:
        DeviceLostError: an entry ended the device's context.
    """
    ground.release()
    sets = ground.inputs(contest.workload, sets=contest.input_sets, seed=contest.seed)
    reference = None
    if contest.check and not contest.on_host:
        tell("", "reference")
        reference = ground.reference(contest.workload, sets[0])
    ready: dict[str, _Ready] = {}
    outcomes: dict[str, Outcome] = {}
    for entry in contest.entries:
        try:
            ready[entry.name] = _prepare(entry, contest, ground, sets, reference, tell)
        except _NotTimedError as stop:
            outcomes[entry.name] = stop.outcome
        except Exception as error:
            outcomes[entry.name] = _failure(entry.name, error, ground)

    def sample(name: str) -> Sample:
        one = ready[name]
        try:
            return (
                ground.sample_host(one.call, HOST_CALLS)
                if contest.on_host
                else ground.sample(one.replay)
            )
        except Exception as error:
            raise DeviceLostError(name, f"{type(error).__name__}: {error}") from error

    taken = interleave(
        tuple(ready),
        sample,
        rounds=contest.rounds,
        seed=contest.seed,
        tell=lambda name: tell(name, "time"),
    )
    for name, one in ready.items():
        one.samples = taken[name]
        outcomes[name] = _outcome(name, one, contest, ground)
    return tuple(outcomes[entry.name] for entry in contest.entries)


class _NotTimedError(Exception):
    """An entry that takes no part, with its outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(outcome.reason)


def _stop(name: str, status: str, reason: str, **more: Any) -> _NotTimedError:
    return _NotTimedError(Outcome(name=name, status=status, reason=reason, **more))


def _prepare(
    entry: Entry,
    contest: Contest,
    ground: Ground,
    sets: Sequence[Any],
    reference: Any,
    tell: Tell,
) -> _Ready:
    tell(entry.name, "prepare")
    made = (
        _peer(entry, contest, ground, sets) if entry.peer else _ours(entry, contest, ground, sets)
    )
    if contest.on_host:
        made.call(0)
        return made
    tell(entry.name, "capture")
    work = contest.workload.work
    calls = calls_per_sample(work, contest.window_ms, contest.input_sets)
    made.replay = ground.capture(made.call, calls, contest.input_sets)
    tell(entry.name, "check")
    output = ground.run_poisoned(made.replay)
    if reference is not None:
        made.errors = ground.errors(output, reference)
        limit = _error_limit(entry, contest.workload.spec)
        if not made.errors[0] <= limit:
            reason = f"RMS error {made.errors[0]:.2e} against float64, more than {limit:.0e}"
            rms, worst = made.errors
            raise _stop(
                entry.name,
                WRONG,
                reason,
                error_rms=rms,
                error_worst=worst,
                method=made.replay.method,
                facts=made.facts,
            )
    if entry.peer is None:
        made.before = ground.copy(output)
    return made


def _error_limit(entry: Entry, spec: AttentionSpec) -> float:
    if entry.peer is not None and spec.kv_dtype is not None:
        return SMALL_ERROR_LIMIT
    return ERROR_LIMIT[spec.dtype]


def _peer(entry: Entry, contest: Contest, ground: Ground, sets: Sequence[Any]) -> _Ready:
    (peer,) = find_peers((str(entry.peer),))
    missing = peer.missing()
    if missing is not None:
        raise _stop(entry.name, MISSING, missing)
    reason = peer.refusal(contest.workload)
    if reason is not None:
        raise _stop(entry.name, REFUSED, reason)
    call = peer.prepare(ground.torch, contest.workload, sets)
    return _Ready(call=call, facts={})


def _ours(entry: Entry, contest: Contest, ground: Ground, sets: Sequence[Any]) -> _Ready:
    from fmhagen.api import compile_kernel

    workload = contest.workload
    try:
        kernel = compile_kernel(
            workload.spec,
            device="cuda",
            schedule=entry.schedule,
            **hints_of(workload),
        )
        kernel.load(0)
    except (Unsupported, ScheduleError, SpillError, CompileError) as error:
        raise _stop(entry.name, REFUSED, _one_line(error)) from error
    facts = {
        "symbol": kernel.plan.symbol,
        "digest": kernel.source.digest,
        "schedule": kernel.plan.schedule.to_dict(defaults=True),
        "resources": kernel.resources.to_dict(),
        "compiler": kernel.binary.compiler,
    }
    if workload.spec.kv_cache:
        return _Ready(call=_cache_call(kernel, entry, workload, ground, sets), facts=facts)
    if not entry.with_out:
        return _Ready(call=lambda i: kernel(*sets[i]), facts=facts)
    outputs = [ground.new_output(workload, inputs[0]) for inputs in sets]

    def call(i: int) -> Any:
        return kernel(*sets[i], out=outputs[i])

    return _Ready(call=call, facts=facts)


def _cache_call(
    kernel: Any, entry: Entry, workload: Workload, ground: Ground, sets: Sequence[Any]
) -> Callable[[int], Any]:
    caches = caches_of(ground.torch, workload, sets)
    outputs = [ground.new_output(workload, c.q) if entry.with_out else None for c in caches]

    def call(i: int) -> Any:
        one = caches[i]
        return kernel(one.q, one.k, one.v, out=outputs[i], **one.arguments)

    return call


def _failure(name: str, error: Exception, ground: Ground) -> Outcome:
    reason = f"{type(error).__name__}: {_one_line(error)}"
    if not ground.is_alive():
        raise DeviceLostError(name, reason) from error
    return Outcome(name=name, status=FAILED, reason=reason)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


def _outcome(name: str, one: _Ready, contest: Contest, ground: Ground) -> Outcome:
    made = Outcome(
        name=name,
        status=OK,
        milliseconds=tuple(s.milliseconds for s in one.samples),
        method="host" if contest.on_host else one.replay.method,
        reason="" if contest.on_host else one.replay.reason,
        clock_mhz=tuple(s.clock_mhz for s in one.samples if s.clock_mhz is not None),
        watts=tuple(s.watts for s in one.samples if s.watts is not None),
        facts=one.facts,
    )
    if one.errors is not None:
        made = replace(made, error_rms=one.errors[0], error_worst=one.errors[1])
    if one.before is not None:
        same = ground.same_bits(one.before, one.replay.output())
        made = replace(made, repeatable=same)
        if not same:
            made = replace(made, status=WRONG, reason="O changed between replays")
    return made
