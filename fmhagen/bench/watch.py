"""Watch: contests in a child process under a watchdog, so that a hang ends one entry alone."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fmhagen.bench.contest import FAILED, HUNG, Contest, Outcome
from fmhagen.errors import FmhagenError

Tell = Callable[[str, str], None]
COMMAND = (sys.executable, "-m", "fmhagen.bench.worker")
MAX_STARTS_WITHOUT_BLAME = 2


class BenchError(FmhagenError, RuntimeError):
    """The child process that measures cannot do its work, and no entry is to blame."""


class _EndedError(Exception):
    """The child hung or ended; says at which entry, as far as is known."""

    def __init__(self, entry: str, status: str, reason: str) -> None:
        self.entry, self.status, self.reason = entry, status, reason
        super().__init__(reason)


def silent(entry: str, phase: str) -> None:
    """Tell nobody."""


class Watched:
    """Holds contests in a child process; starts another one after a hang or a crash.

    Use it in a `with` statement, which ends the child.
    """

    def __init__(
        self, *, idle_seconds: float, command: tuple[str, ...] = COMMAND, tell: Tell = silent
    ) -> None:
        """Start nothing yet.

        Args:
            idle_seconds: the child is ended when it says nothing for so long.
            command: how the child is started.
            tell: is called with an entry and a phase as the child works.
        """
        self._idle_seconds = idle_seconds
        self._command = command
        self._tell = tell
        self._child: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the child."""
        self._end()

    def ask(self, job: str, **more: Any) -> Any:
        """Return the result of a job that is no contest.

        Raises:
            BenchError: the child refused, hung or ended.
        """
        try:
            return self._ask({"job": job, **more})
        except _EndedError as ended:
            raise BenchError(f"{job}: {ended.reason}") from ended

    def hold(self, contest: Contest) -> tuple[Outcome, ...]:
        """Return the outcomes of a contest; an entry that hangs or crashes is named, and left out.

        Raises:
            BenchError: the child ends again and again with no entry to blame.
        """
        left, lost, blameless = contest, {}, 0
        while left.entries:
            try:
                rows = self._ask({"job": "contest", "contest": left.to_dict()})
            except _EndedError as ended:
                if ended.entry not in {entry.name for entry in left.entries}:
                    blameless += 1
                    if blameless >= MAX_STARTS_WITHOUT_BLAME:
                        raise BenchError(f"{contest.workload.name}: {ended.reason}") from ended
                    continue
                lost[ended.entry] = Outcome(
                    name=ended.entry, status=ended.status, reason=ended.reason
                )
                left = left.without(ended.entry)
                continue
            found = {row["name"]: Outcome.from_dict(row) for row in rows} | lost
            return tuple(found[entry.name] for entry in contest.entries)
        return tuple(lost[entry.name] for entry in contest.entries)

    def _ask(self, job: dict[str, Any]) -> Any:
        child = self._started()
        entry, phase = "", "start"
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
        except OSError:
            pass  # it has ended: the reader says so
        while True:
            try:
                line = self._lines.get(timeout=self._idle_seconds)
            except queue.Empty:
                self._end()
                reason = f"said nothing for {self._idle_seconds:g} s in phase {phase!r}; ended"
                raise _EndedError(entry, HUNG, reason) from None
            if line is None:
                code = child.wait()
                self._end()
                reason = f"its process ended with status {code} in phase {phase!r}"
                raise _EndedError(entry, FAILED, reason)
            answer = json.loads(line)
            if "progress" in answer:
                entry, phase = answer["progress"]
                self._tell(entry, phase)
            elif "lost" in answer:
                self._end()
                raise _EndedError(answer["lost"], FAILED, answer["reason"])
            elif "error" in answer:
                raise BenchError(answer["error"])
            else:
                return answer["result"]

    def _started(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                cwd=Path.cwd(),
            )
            self._lines = queue.Queue()
            reader = threading.Thread(target=_pump, args=(self._child, self._lines), daemon=True)
            reader.start()
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=20)  # a process that is stuck in its driver may stay
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()


def _pump(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert child.stdout is not None
    with contextlib.suppress(ValueError, OSError):
        for line in child.stdout:
            lines.put(line)
    lines.put(None)


class Direct:
    """The same in this process: no watchdog, for a debugger."""

    def __init__(self, device: Any, *, tell: Tell = silent) -> None:
        """Use an open device."""
        self._device, self._tell = device, tell

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing."""

    def ask(self, job: str, **more: Any) -> Any:
        """Return the result of a job."""
        from fmhagen.bench.worker import run_job

        return run_job({"job": job, **more}, self._device, self._tell)

    def hold(self, contest: Contest) -> tuple[Outcome, ...]:
        """Return the outcomes of a contest.

        Raises:
            DeviceLostError: an entry ended the device's context.
        """
        from fmhagen.bench.measure import hold

        return hold(contest, self._device, self._tell)


Judge = Watched | Direct


def judge(watchdog_seconds: float, tell: Tell = silent) -> Judge:
    """Return what holds contests: a watched child, or this process if the time-out is 0.

    Raises:
        RuntimeUnavailableError: in this process, and there is no device.
    """
    if watchdog_seconds > 0:
        return Watched(idle_seconds=watchdog_seconds, tell=tell)
    from fmhagen.bench.device import TorchDevice

    return Direct(TorchDevice(), tell=tell)
