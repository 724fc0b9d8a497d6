"""Worker: the child process that holds contests, a JSON line a job, so that it can be ended.

job     {"job": "facts"} | {"job": "ceiling"} | {"job": "contest", "contest": {...}}
answer  {"progress": [entry, phase]}*  then  {"result": ...} | {"error": text} |
        {"lost": entry, "reason": text}, after which the worker ends
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from fmhagen.bench.contest import Contest
from fmhagen.bench.device import TorchDevice
from fmhagen.bench.measure import DeviceLostError, hold
from fmhagen.bench.peers import find_peers


def serve(jobs: TextIO, answers: TextIO, open_device: Callable[[], Any] = TorchDevice) -> int:
    """Answer jobs until there are no more; return the exit status."""

    def answer(**data: Any) -> None:
        answers.write(json.dumps(data) + "\n")
        answers.flush()

    device = None
    for line in jobs:
        job = json.loads(line)
        try:
            device = device or open_device()
            tell = lambda entry, phase: answer(progress=[entry, phase])  # noqa: E731
            answer(result=run_job(job, device, tell))
        except DeviceLostError as error:
            answer(lost=error.entry, reason=error.reason)
            return 1
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")
    return 0


def run_job(job: dict[str, Any], device: Any, tell: Callable[[str, str], None]) -> Any:
    """Do one job and return its JSON-ready result.

    Raises:
        DeviceLostError: an entry of a contest ended the device's context.
        ValueError: there is no such job.
    """
    if job["job"] == "facts":
        return device.facts()
    if job["job"] == "ceiling":
        return device.matmul_tflops()
    if job["job"] == "peers":
        found = {peer.name: (peer.missing(), peer) for peer in find_peers(job["names"])}
        return {
            name: {"missing": missing, "version": None if missing else peer.version()}
            for name, (missing, peer) in found.items()
        }
    if job["job"] == "contest":
        outcomes = hold(Contest.from_dict(job["contest"]), device, tell)
        return [outcome.to_dict() for outcome in outcomes]
    raise ValueError(f"job={job['job']!r}: there is no such job")


def main() -> int:
    """Serve on standard input and output; whatever a peer prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return serve(sys.stdin, answers)


if __name__ == "__main__":
    # NOTE: no clean-up of a device that may hang: the process ends at once.
    status = main()
    sys.stderr.flush()
    os._exit(status)
