"""Selection: workloads from the words of a command line."""

from __future__ import annotations

import dataclasses
from typing import Any

from fmhagen.bench.workloads import LENGTHS, MASKS, Workload, grid, suite
from fmhagen.errors import InvalidSpecError


def words(text: str) -> tuple[str, ...]:
    """Split at commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words(text))
    except ValueError:
        raise InvalidSpecError(flag, text, "must be whole numbers with commas between") from None


def select(
    suite_name: str | None,
    head_dim: str,
    mask: str,
    seqlen: str,
    dtype: str,
    tokens: int,
    hidden: int,
) -> tuple[Workload, ...]:
    """Return a suite narrowed by what is given, or without a suite a grid of it; else `quick`.

    Raises:
        InvalidSpecError: a word means nothing, or nothing is left.
    """
    depths, masks = _numbers("head_dim", head_dim), words(mask)
    lengths = _numbers("seqlen", seqlen)
    if suite_name is None and (depths or masks or lengths):
        return grid(
            depths or (128,),
            masks or MASKS,
            lengths or LENGTHS,
            dtype=dtype or "bf16",
            tokens=tokens,
            hidden=hidden,
        )
    found = tuple(
        workload
        for workload in suite(suite_name or "quick")
        if (not depths or workload.spec.d in depths)
        and (not masks or workload.mask in masks)
        and (not lengths or workload.seqlen_q in lengths)
    )
    if not found:
        raise InvalidSpecError("suite", suite_name or "quick", "nothing is left of it")
    if not dtype:
        return found
    return tuple(
        dataclasses.replace(w, spec=type(w.spec).from_dict({**w.spec.to_dict(), "dtype": dtype}))
        for w in found
    )


def resized(
    workloads: tuple[Workload, ...], batch: int, heads: int, heads_kv: int, seqlen_k: int
) -> tuple[Workload, ...]:
    """Return workloads with other sizes where one is given (not 0), none twice."""
    given = {"batch": batch, "heads": heads, "heads_kv": heads_kv or heads, "seqlen_k": seqlen_k}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value}
    resized = (dataclasses.replace(w, **changes) for w in workloads)
    return tuple(dict.fromkeys(resized))
