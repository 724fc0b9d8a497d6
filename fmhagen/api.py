"""API: the functions that users call.

source = emit(spec, target="mi300x")     one readable file
kernel = compile_kernel(spec)            a callable on tensors
o, lse = kernel(q, k, v, return_lse=True)
o_ref, lse_ref = reference(spec, q, k, v)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fmhagen.emission import emit_source
from fmhagen.kernel import DEFAULT_TARGET, CacheChoice, Kernel
from fmhagen.lowering import lower as lower_to
from fmhagen.oracle.attention import reference
from fmhagen.plan.attention import Plan
from fmhagen.schedule import Schedule
from fmhagen.select import choose, default_schedule
from fmhagen.select.choice import Choice
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

if TYPE_CHECKING:
    from fmhagen.runtime.emulator_backend import EmulatorOptions

__all__ = ["Kernel", "choose_schedule", "compile_kernel", "emit", "lower", "reference"]


def emit(
    spec: AttentionSpec, schedule: Schedule | None = None, *, target: str = DEFAULT_TARGET
) -> Source:
    """Print a kernel as one self-contained source file.

    Args:
        spec: what to compute.
        schedule: how to tile it; None means the default of the target.
        target: the chip, under any of its names.

    Raises:
        UnknownTargetError: no target answers to the name.
        UnsupportedSpecError: the target does not support the spec.
        ScheduleError: the schedule does not fit.
    """
    return emit_source(lower(spec, schedule, target=target))


def lower(
    spec: AttentionSpec,
    schedule: Schedule | None = None,
    *,
    target: str = DEFAULT_TARGET,
    seqlen_hint: int | None = None,
) -> Plan:
    """Decide everything that a kernel's text and its launch need; see `emit`."""
    chip = find_target(target)
    if schedule is None:
        schedule = default_schedule(spec, chip, seqlen_hint=seqlen_hint)
    return lower_to(spec, schedule, chip)


def choose_schedule(
    spec: AttentionSpec, *, target: str = DEFAULT_TARGET, seqlen_hint: int | None = None
) -> Choice:
    """Return the default schedule of a spec, the reasons, and what was weighed against it."""
    return choose(spec, find_target(target), seqlen_hint=seqlen_hint)


def compile_kernel(
    spec: AttentionSpec,
    *,
    device: str = "auto",
    target: str | None = None,
    schedule: Schedule | None = None,
    cache: CacheChoice = "default",
    emulator: EmulatorOptions | None = None,
    seqlen_hint: int | None = None,
    query_hint: int | None = None,
    group_hint: int | None = None,
    heads_hint: int | None = None,
) -> Kernel:
    """Return a callable kernel.

    Args:
        spec: what to compute.
        device: "cuda", "hip" or "emulator" compile now and accept that memory alone; with "auto"
            the tensors of a call decide (host memory runs on the emulator), and the kernel is
            compiled when it is first needed.
        target: the chip; None means that of the device, and for the emulator the first target.
        schedule: how to tile it; None means the default of the target.
        cache: where binaries are kept: a cache, "default" for the user's, None for nowhere.
        emulator: seed, checks and size of the emulated chip.
        seqlen_hint: about the most keys of a sequence, which may choose another schedule; the
            kernel computes every length, whatever it says.
        query_hint: about the most query rows of a sequence: with spec.kv_cache many of them choose
            the main loop of prefill. The kernel computes any number, whatever it says.
        group_hint: the query heads of a key/value head, whose queries may share tiles there; with
            it a few rows of many heads are many.
        heads_hint: the query heads of all sequences of a call together: where there are so few that
            their tiles leave units without work, keys are cut into parts (`Schedule.split_keys`).

    Raises:
        InvalidSpecError: no such device, or it cannot run the target.
        RuntimeUnavailableError: an explicit device is not here, or is another chip.
        UnsupportedSpecError: the target does not support the spec.
        ScheduleError: the schedule does not fit.
        CompileError: no compiler is here, or it refused the source.
    """
    return Kernel(
        spec,
        device=device,
        target=target,
        schedule=schedule,
        cache=cache,
        emulator=emulator,
        seqlen_hint=seqlen_hint,
        query_hint=query_hint,
        group_hint=group_hint,
        heads_hint=heads_hint,
    )
