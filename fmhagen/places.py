"""Where fmhagen keeps what it can make again: binaries, and templates as byte code."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT_VARIABLE = "FMHAGEN_CACHE_DIR"
COMPILED_TEMPLATES = "templates"  # the directory of byte code below the cache's


def default_path() -> Path | None:
    """Return where the cache lies by default, or None if there is no home for it.

    `FMHAGEN_CACHE_DIR` comes first, then the user's cache directory as the platform defines it.
    """
    override = os.environ.get(ENVIRONMENT_VARIABLE)
    if override:
        return Path(override).expanduser().absolute()
    home = os.environ.get("HOME")
    if home is not None and not os.environ.get("XDG_CACHE_HOME") and not os.path.isdir(home):
        return None  # do not make a home directory for a user who has none
    import platformdirs

    # NOTE: where neither HOME nor a passwd entry names a home, newer platformdirs raises and older
    # ones leave a "~" at the front.
    try:
        path = platformdirs.user_cache_path("fmhagen", appauthor=False)
    except RuntimeError:
        return None
    return path if path.is_absolute() else None
