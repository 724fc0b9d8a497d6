"""Refusal of what other libraries' functions take and fmhagen does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fmhagen.errors import UnsupportedArgumentError


def refuse_others(function: str, given: Mapping[str, Any], neutral: Mapping[str, Any]) -> None:
    """Refuse arguments that are known but not supported, unless they ask for nothing.

    Args:
        function: the function that was called.
        given: the arguments by name.
        neutral: for each known name the value that asks for nothing, or a tuple of such values.

    Raises:
        TypeError: the function has no such argument.
        UnsupportedArgumentError: names the argument and the value that works.
    """
    for name, value in given.items():
        if name not in neutral:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        values = neutral[name] if isinstance(neutral[name], tuple) else (neutral[name],)
        wanted = values[0]
        is_tensor = len(getattr(value, "shape", ())) > 0
        if any(value is x or (x is not None and not is_tensor and value == x) for x in values):
            continue
        shown = type(value).__name__ if is_tensor else value
        limit = f"{function} of fmhagen does not support it"
        raise UnsupportedArgumentError(name, shown, limit, f"use {name}={wanted!r}")
