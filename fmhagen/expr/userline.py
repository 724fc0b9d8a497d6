"""Where the user's function stands when something in it is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from fmhagen.errors import TraceError

_OWN = str(Path(__file__).resolve().parent.parent)
_FOREIGN = ("torch", "numpy")


def fail(message: str, hint: str | None = None) -> NoReturn:
    """Raise an error that points at the line of the user's function that runs now.

    Raises:
        TraceError: always.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    raise TraceError(message, path=frame.f_code.co_filename, line=frame.f_lineno, suggestion=hint)


def last_line_of_user(trace: TracebackType | None) -> tuple[str, int] | None:
    """Return file and line of the user's code that an error passed through last."""
    found = None
    while trace is not None:
        path = trace.tb_frame.f_code.co_filename
        if not _is_foreign(path):
            found = path, trace.tb_lineno
        trace = trace.tb_next
    return found


def _is_foreign(filename: str) -> bool:
    """Return whether code is of this package or of a framework, rather than the user's."""
    if filename.startswith(_OWN):
        # The built-in functions read as a user's would, but an error in them is their caller's.
        return True
    parts = Path(filename).parts
    return "site-packages" in parts and parts[parts.index("site-packages") + 1] in _FOREIGN
