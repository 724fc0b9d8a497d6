"""Prebuild: compile candidates on the CPU, in parallel, into the cache that the device reads."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec

# NOTE: advice C7510 to C7519 of ptxas: each matrix instruction then waits for the one before.
SERIALISED = re.compile(r"\bC75\d\d\b|serializ", re.IGNORECASE)
Pool = Callable[[int], Executor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One candidate, compiled or refused.

    Attributes:
        schedule: the candidate.
        digest: of the kernel's body, "" if there is none.
        reason: why it is out: it spills, or the compiler refused it; "" if it is good.
        registers: a thread's, 0 if it is out.
    """

    schedule: Schedule
    digest: str = ""
    reason: str = ""
    registers: int = 0


def processes(count: int) -> Executor:
    """Return a pool of fresh processes."""
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"))


def default_jobs() -> int:
    """Return how many compilations to run at once: the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return max(1, len(affinity(0)) if affinity else os.cpu_count() or 1)


def prebuild(
    spec: AttentionSpec,
    schedules: Sequence[Schedule],
    target: str,
    *,
    jobs: int,
    pool: Pool = processes,
    tell: Callable[[Built], None] = lambda built: None,
) -> tuple[Built, ...]:
    """Compile every schedule; the result is in the order of `schedules`.

    Args:
        spec: what the kernels compute.
        schedules: what is compiled.
        target: the chip's name.
        jobs: compilations at once.
        pool: makes the executor.
        tell: is called as each is done.
    """
    if not schedules:
        return ()
    found: dict[Schedule, Built] = {}
    with pool(min(jobs, len(schedules))) as executor:
        futures: dict[Future[tuple[str, str, int]], Schedule] = {
            executor.submit(build, spec.to_dict(), schedule.to_dict(), target): schedule
            for schedule in schedules
        }
        for future in as_completed(futures):
            schedule = futures[future]
            try:
                digest, reason, registers = future.result()
            except Exception as error:  # a process of the pool died
                digest, reason, registers = "", f"{type(error).__name__}: {error}", 0
            found[schedule] = Built(
                schedule=schedule, digest=digest, reason=reason, registers=registers
            )
            tell(found[schedule])
    return tuple(found[schedule] for schedule in schedules)


def build(spec: dict[str, Any], schedule: dict[str, Any], target: str) -> tuple[str, str, int]:
    """Compile one kernel into the user's cache; return (digest, reason, registers)."""
    from fmhagen.api import emit
    from fmhagen.compile import compile_source
    from fmhagen.errors import FmhagenError

    try:
        made = emit(AttentionSpec.from_dict(spec), Schedule.from_dict(schedule), target=target)
    except FmhagenError as error:
        return "", str(error), 0
    try:
        binary = compile_source(made)
    except FmhagenError as error:
        return made.digest, " ".join(str(error).split())[:300], 0
    if SERIALISED.search(binary.log):
        return made.digest, "the compiler serialises its matrix instructions", 0
    return made.digest, "", binary.resources.registers
