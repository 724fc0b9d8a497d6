"""Constructor calls broken into lines, for the headers of emitted files."""

from __future__ import annotations

import textwrap


def wrapped_call(call: str) -> tuple[str, ...]:
    """Break a call at its spaces; a string that is broken is closed and opened again."""
    lines = textwrap.wrap(call, 104, break_long_words=False, break_on_hyphens=False)
    wrapped = []
    is_open = False
    for i, line in enumerate(lines):
        begins = "'" if is_open else ""
        # NOTE: no string here holds a quote: they are texts of expressions and names of choices.
        is_open ^= line.count("'") % 2 == 1
        wrapped.append("    " * (i > 0) + begins + line + (" '" * is_open))
    return tuple(wrapped)
