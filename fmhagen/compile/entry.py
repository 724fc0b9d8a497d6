"""One entry of the cache on disk: an image and a sidecar that vouches for it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from fmhagen.compile.binary import Binary, Resources

SIDECAR = "entry.json"
_SUFFIXES = {"cubin": ".cubin", "code_object": ".hsaco", "shared_library": ".so", "object": ".o"}


def write_entry(directory: Path, binary: Binary) -> Binary:
    """Publish a binary in its entry's directory and return it with its path.

    The image comes first and the sidecar last, each by an atomic rename after a flush to disk.

    Raises:
        OSError: the disk is full or the directory is not writable.
    """
    image_path = directory / f"{binary.symbol}{_SUFFIXES[binary.kind]}"
    sidecar = {
        **binary.to_dict(),
        "path": None,
        "image": image_path.name,
        "image_bytes": len(binary.image),
        "image_sha256": hashlib.sha256(binary.image).hexdigest(),
    }
    write_atomically(image_path, binary.image)
    text = json.dumps(sidecar, indent=2, sort_keys=True) + "\n"
    write_atomically(directory / SIDECAR, text.encode())
    _flush_directory(directory)
    return dataclasses.replace(binary, path=image_path)


def read_sidecar(directory: Path) -> dict[str, Any] | None:
    """Return an entry's sidecar, or None if there is no whole one."""
    try:
        sidecar = json.loads((directory / SIDECAR).read_bytes())
    except (OSError, ValueError):
        return None
    wanted = {"symbol", "target", "kind", "compiler", "image", "image_bytes", "image_sha256"}
    return sidecar if isinstance(sidecar, dict) and wanted <= sidecar.keys() else None


def load_entry(directory: Path) -> Binary | None:
    """Return the binary of an entry, or None if it is missing, cut short or altered."""
    sidecar = read_sidecar(directory)
    if sidecar is None:
        return None
    try:
        image_path = directory / Path(sidecar["image"]).name
        image = image_path.read_bytes()
        if hashlib.sha256(image).hexdigest() != sidecar["image_sha256"]:
            return None
        return Binary(
            symbol=sidecar["symbol"],
            target=sidecar["target"],
            kind=sidecar["kind"],
            image=image,
            path=image_path,
            compiler=sidecar["compiler"],
            flags=tuple(sidecar["flags"]),
            resources=Resources(**sidecar["resources"]),
            log=sidecar["log"],
        )
    except (OSError, KeyError, TypeError):
        return None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees all of it or none of it, even after a crash.

    Raises:
        OSError: the disk is full or the directory is not writable.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _flush_directory(directory: Path) -> None:
    """Flush a directory's entries to disk, where the platform can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
