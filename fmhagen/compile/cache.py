"""The cache of binaries: content-addressed, safe among processes, never in the way.

    <path>/<key>/<file>.cu          the source, where every diagnostic points
    <path>/<key>/<file>.cu.cubin    the image
    <path>/<key>/entry.json         the sidecar: everything else, and the image's SHA-256
    <path>/locks/<key>.lock         held by whoever builds the entry
    <path>/templates/               templates as byte code, which emission keeps (see places.py)

The key is a digest of everything that decides the image: source text, flags, compiler and its
version, target, fmhagen's version and, for the emulator, its headers. No time stamp is looked at.
Files are written beside their place, flushed to disk and renamed, the sidecar last; a reader checks
the image's digest, so a half-written or corrupted entry is a miss and is built again.
Locks are released by the kernel (see lock.py).
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fmhagen.compile.binary import Binary
from fmhagen.compile.entry import load_entry, read_sidecar, write_entry
from fmhagen.compile.lock import held
from fmhagen.places import COMPILED_TEMPLATES, ENVIRONMENT_VARIABLE, default_path

_LAYOUT_VERSION = 1


class CacheWarning(UserWarning):
    """The cache's directory cannot be used, so binaries are kept for this process alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """One binary in the cache.

    Attributes:
        key: the entry's digest.
        symbol: the kernel's name.
        target: the canonical target name.
        kind: the binary's kind.
        compiler: name and version.
        image_bytes: size of the image.
        path: the entry's directory, or None if it is in memory.
    """

    key: str
    symbol: str
    target: str
    kind: str
    compiler: str
    image_bytes: int
    path: Path | None


def cache_key(**parts: object) -> str:
    """Return the digest of named parts; every part that decides the image must be given."""
    text = json.dumps({"layout": _LAYOUT_VERSION, **parts}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def default_cache() -> Cache:
    """Return the process's cache at the default path."""
    return _shared_cache(default_path())


@functools.cache
def _shared_cache(path: Path | None) -> Cache:
    return Cache(path)


def tool_environment(scratch: Path) -> dict[str, str]:
    """Return the environment for compilers; tools that need a home get `scratch` if none is there.

    NOTE: zig refuses to run without a directory for its own cache.
    """
    environment = dict(os.environ)
    home = environment.get("HOME")
    if "ZIG_GLOBAL_CACHE_DIR" not in environment and (
        not home or not os.path.isdir(home) or not os.access(home, os.W_OK)
    ):
        environment["ZIG_GLOBAL_CACHE_DIR"] = str(scratch / "zig")
    return environment


class Cache:
    """Binaries by key, on disk where possible.

    Where the directory cannot be used (it is read-only, a file stands in its place, the disk is
    full, there is no home), a private temporary directory is used for the life of the process, and
    memory where even that fails; one CacheWarning says so.

    Args:
        path: the directory; None means the default path.
        lock_message_seconds: after how long a wait for another process is reported.
        lock_timeout_seconds: after how long it is an error.
    """

    def __init__(  # noqa: D107 (the class's docstring describes the arguments)
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        lock_message_seconds: float = 10.0,
        lock_timeout_seconds: float = 1200.0,
    ) -> None:
        self.lock_message_seconds = lock_message_seconds
        self.lock_timeout_seconds = lock_timeout_seconds
        self._memory: dict[str, Binary] = {}
        self._path: Path | None = Path(path).absolute() if path is not None else default_path()
        self._is_fallback = False
        if self._path is None:
            self._fall_back("there is no home directory")
        else:
            try:
                _require_usable(self._path)
            except OSError as error:
                self._fall_back(str(error))

    @property
    def path(self) -> Path | None:
        """The directory in use, or None if binaries are in memory only."""
        return self._path

    def get_or_build(self, key: str, build: Callable[[Path], Binary]) -> Binary:
        """Return the binary of a key; build it if no process has done so yet.

        `build` is called with an existing directory for its files, by one process at a time.

        Raises:
            CacheError: another process holds the entry's lock beyond the time-out.
            CompileError: from `build`; the source stays in the directory.
        """
        if self._path is None:
            return self._from_memory(key, build)
        directory = self._path / key
        found = load_entry(directory)
        if found is not None:
            return found
        built: Binary | None = None
        try:
            with self._locked(key):
                found = load_entry(directory)  # another process may have built it meanwhile
                if found is not None:
                    return found
                directory.mkdir(exist_ok=True)
                built = build(directory)
                return write_entry(directory, built)
        except OSError as error:
            self._fall_back(str(error))
            if built is not None and self._path is None:
                self._memory[key] = built
                return built
            return self.get_or_build(key, build if built is None else lambda _: built)

    def _from_memory(self, key: str, build: Callable[[Path], Binary]) -> Binary:
        """Build without a directory: only compilers that need no file (NVRTC, hipRTC) can."""
        if key not in self._memory:
            nowhere = Path(os.devnull)  # nothing can be made below it, even by root
            self._memory[key] = dataclasses.replace(build(nowhere), path=None)
        return self._memory[key]

    def list(self) -> tuple[CacheEntry, ...]:
        """Return the complete entries, sorted by symbol and key."""
        entries = []
        for directory in self._directories():
            sidecar = read_sidecar(directory)
            if sidecar is not None:
                entries.append(
                    CacheEntry(
                        key=directory.name,
                        symbol=str(sidecar["symbol"]),
                        target=str(sidecar["target"]),
                        kind=str(sidecar["kind"]),
                        compiler=str(sidecar["compiler"]),
                        image_bytes=int(sidecar["image_bytes"]),
                        path=directory,
                    )
                )
        for key, binary in self._memory.items():
            entries.append(
                CacheEntry(
                    key=key,
                    symbol=binary.symbol,
                    target=binary.target,
                    kind=binary.kind,
                    compiler=binary.compiler,
                    image_bytes=len(binary.image),
                    path=None,
                )
            )
        return tuple(sorted(entries, key=lambda entry: (entry.symbol, entry.key)))

    def clear(self) -> int:
        """Remove every entry, complete or not, and return how many there were.

        Templates in byte code go, too, and are not counted.

        Raises:
            CacheError: another process is building an entry and does not finish in time.
        """
        count = len(self._memory)
        self._memory.clear()
        for directory in self._directories():
            with self._locked(directory.name):
                shutil.rmtree(directory, ignore_errors=True)
            count += 1
        if self._path is not None:
            shutil.rmtree(self._path / COMPILED_TEMPLATES, ignore_errors=True)
        return count

    def _directories(self) -> tuple[Path, ...]:
        """Return the directories of entries, sorted because the file system's order varies."""
        if self._path is None or not self._path.is_dir():
            return ()
        return tuple(sorted(child for child in self._path.iterdir() if len(child.name) == 64))

    def _locked(self, key: str) -> contextlib.AbstractContextManager[None]:
        """Return the lock of one key, to be entered."""
        assert self._path is not None
        lock_file = self._path / "locks" / f"{key}.lock"
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        return held(
            lock_file,
            message_seconds=self.lock_message_seconds,
            timeout_seconds=self.lock_timeout_seconds,
        )

    def _fall_back(self, reason: str) -> None:
        """Move to a private temporary directory, then to memory; warn once."""
        refused = self._path
        replacement: Path | None = None
        if not self._is_fallback:
            try:
                replacement = Path(tempfile.mkdtemp(prefix="fmhagen-"))
                _require_usable(replacement)
                atexit.register(_remove_if_owner, replacement, os.getpid())
            except OSError:
                replacement = None
            where = "a temporary directory" if replacement is not None else "memory"
            warnings.warn(
                f"fmhagen's cache{f' {refused}' if refused else ''} cannot be used ({reason}); "
                f"binaries are kept in {where} for this process alone. "
                f"Set {ENVIRONMENT_VARIABLE} to a writable directory",
                CacheWarning,
                stacklevel=4,
            )
        self._is_fallback = True
        self._path = replacement


def _require_usable(path: Path) -> None:
    """Raise OSError unless files can be made and locked in a directory."""
    (path / "locks").mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path / "locks", prefix="probe-")
    os.close(descriptor)
    try:
        with held(Path(name), message_seconds=0, timeout_seconds=0):
            pass
    finally:
        Path(name).unlink(missing_ok=True)


def _remove_if_owner(path: Path, owner: int) -> None:
    """Remove a temporary directory at exit, unless this is a forked child of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
