"""A lock among processes that dies with its holder.

NOTE: it is flock(2), which the kernel releases when its holder dies, however it dies. Linux carries
it over NFS as a byte-range lock of the server, which is released when the client's lease ends. A
lock file's existence means nothing, so a killed process never blocks a later one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from fmhagen.errors import CacheError

_log = logging.getLogger("fmhagen")


@contextlib.contextmanager
def held(lock_file: Path, *, message_seconds: float, timeout_seconds: float) -> Iterator[None]:
    """Hold a lock file; report a long wait, and give up at the time-out.

    Raises:
        CacheError: another process has held it for `timeout_seconds`; the message names the file.
        OSError: the file cannot be made, or its file system has no flock.
    """
    import filelock

    # NOTE: without fallback_to_soft=False a file system without flock would get a lock that is a
    # file's existence, which a killed process leaves behind.
    lock = filelock.FileLock(lock_file, fallback_to_soft=False)
    soft_seconds = min(message_seconds, timeout_seconds)
    try:
        try:
            lock.acquire(timeout=soft_seconds)
        except filelock.Timeout:
            _log.warning(
                "another process has held %s for %.0f s; fmhagen waits up to %.0f s",
                lock_file,
                soft_seconds,
                timeout_seconds,
            )
            lock.acquire(timeout=timeout_seconds - soft_seconds)
    except filelock.Timeout as error:
        raise CacheError(
            f"another process has held {lock_file} for {timeout_seconds:.0f} s; "
            f"`fuser {lock_file}` names it: end it if it hangs, or use another cache directory"
        ) from error
    try:
        yield
    finally:
        lock.release()
