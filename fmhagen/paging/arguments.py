"""Arguments: token ids and counts as callers give them, checked before anything changes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

from fmhagen.errors import PagingError

Tokens: TypeAlias = Sequence[int] | Any  # token ids; also a 1-d array or tensor of integers
NewTokens: TypeAlias = "array[int] | int"  # checked ids; an int is one id

_MAX_SIZE = 2**31 - 1  # page numbers and lengths are int32


def size(name: str, value: Any) -> int:
    """Return a number of pages or of slots a page.

    Raises:
        PagingError: it is not an integer of 32 bits from 1 up.
    """
    if not _is_integer(value) or not 1 <= value <= _MAX_SIZE:
        raise PagingError(name, value, f"must be an integer between 1 and {_MAX_SIZE}")
    return int(value)


def count(name: str, value: Any) -> int:
    """Return a number of tokens.

    Raises:
        PagingError: it is not an integer, or is negative.
    """
    if not _is_integer(value):
        raise PagingError(name, value, "must be a number of tokens, an integer")
    if value < 0:
        raise PagingError(name, value, "must not be negative", "use truncate to drop tokens")
    return int(value)


def counts(name: str, values: Sequence[int] | int, number: int) -> list[int]:
    """Return a number of tokens for each of `number` sequences; one number stands for all.

    Raises:
        PagingError: one of them is no number of tokens, or they are not as many as the sequences.
    """
    if _is_integer(values):
        return [count(name, values)] * number
    each = [count(f"{name}[{i}]", n) for i, n in enumerate(_listed(name, values))]
    _check_as_many(name, len(each), number)
    return each


def token_ids(name: str, tokens: Tokens) -> array[int]:
    """Return token ids as a compact array of 64-bit integers.

    Raises:
        PagingError: they are not integers of 64 bits.
    """
    try:
        return array("q", _listed(name, tokens))
    except (TypeError, OverflowError):
        hint = "pass a list or a one-dimensional array; count= where the ids are not known"
        raise PagingError(name, tokens, "must be token ids, integers of 64 bits", hint) from None


def new_tokens(
    tokens: Tokens | None, number: int | None, *, default: int
) -> tuple[array[int] | None, int]:
    """Return the ids (None: not known) and the number of one sequence's new tokens.

    Raises:
        PagingError: both are given, or one means nothing.
    """
    if tokens is None:
        return None, default if number is None else count("count", number)
    if number is not None:
        raise PagingError("count", number, "must not be given beside tokens")
    ids = token_ids("tokens", tokens)
    return ids, len(ids)


def batch_tokens(
    tokens: Sequence[Any] | Any | None, numbers: Sequence[int] | int | None, sequences: int
) -> tuple[Sequence[NewTokens | None], list[int]]:
    """Return ids and number of the new tokens of each of some sequences.

    Raises:
        PagingError: both are given, one means nothing, or they are not as many as the sequences.
    """
    if tokens is None:
        each = counts("counts", 1 if numbers is None else numbers, sequences)
        return [None] * sequences, each
    if numbers is not None:
        raise PagingError("counts", numbers, "must not be given beside tokens")
    items = _listed("tokens", tokens)
    _check_as_many("tokens", len(items), sequences)
    try:
        return array("q", items), [1] * sequences  # one id each: the common step
    except (TypeError, OverflowError):
        lists = [_one_or_more(f"tokens[{i}]", item) for i, item in enumerate(items)]
        return lists, [len(ids) for ids in lists]


def _one_or_more(name: str, tokens: Any) -> array[int]:
    return token_ids(name, [tokens] if _is_integer(tokens) else tokens)


def _is_integer(value: Any) -> bool:
    # A list has no __index__; an array of one element has, but is a list of one here.
    return hasattr(value, "__index__") and not isinstance(value, bool) and not _shape(value)


def _shape(value: Any) -> Any:
    return getattr(value, "shape", ())


def _listed(name: str, values: Any) -> Sequence[Any]:
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, str | bytes) or not hasattr(listed, "__iter__"):
        raise PagingError(name, values, "must be a list, or a one-dimensional array")
    return listed if hasattr(listed, "__len__") else list(listed)


def _check_as_many(name: str, given: int, wanted: int) -> None:
    if given != wanted:
        raise PagingError(name, given, f"must be as many as the {wanted} sequences")
