"""Where the templates lie: inside an installed package, or beside it in the repository."""

from __future__ import annotations

import functools
import importlib.metadata
from pathlib import Path


@functools.cache
def templates_dir() -> Path:
    """Return the directory that holds `kernels/`, `parts/` and `prelude/`.

    A wheel carries it as `fmhagen/_templates`; an editable install or a checkout uses the
    repository's `templates/`.

    Raises:
        FileNotFoundError: neither exists, so the installation is broken.
    """
    package = Path(__file__).resolve().parent  # compilers need real files: no zipped packages
    candidates = (package / "_templates", package.parent / "templates")
    for candidate in candidates:
        if (candidate / "prelude").is_dir():
            return candidate
    looked = " nor ".join(str(candidate) for candidate in candidates)
    raise FileNotFoundError(f"fmhagen's templates are neither at {looked}; reinstall fmhagen")


def prelude_dir() -> Path:
    """Return the directory of pure C++ that enters emitted files and the emulator."""
    return templates_dir() / "prelude"


@functools.cache
def package_version() -> str:
    """Return the version of the installed distribution, or "0+source" in a bare checkout."""
    try:
        return importlib.metadata.version("fmhagen")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"
