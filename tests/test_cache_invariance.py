"""batch_invariant: the bits of a row are the same alone, in any batch and in any order."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from cache_cases import Cache, make_cache
from test_cache_kernels import PLAIN, kernel, run

from fmhagen.errors import TensorError
from fmhagen.spec import AttentionSpec

SPEC = dataclasses.replace(PLAIN, batch_invariant=True, causal=True, page_size=16)
LENGTHS = (2000, 0, 513, 512, 700, 1, 1300)


def some(cache: Cache, which: list[int]) -> Cache:
    """Return the batch that has only these sequences, in this order."""
    assert cache.table is not None
    return dataclasses.replace(
        cache,
        q=np.ascontiguousarray(cache.q[which]),
        lengths=cache.lengths[which],
        table=np.ascontiguousarray(cache.table[which]),
    )


@pytest.mark.parametrize("spec", [SPEC, dataclasses.replace(SPEC, kv_dtype="e4m3", page_size=1)])
def test_bits_do_not_depend_on_batch_mates(spec: AttentionSpec) -> None:
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=2)
    o, lse = run(spec, cache, compute_units=8)
    everyone = list(range(len(LENGTHS)))
    batches = [[b] for b in everyone] + [everyone[::-1], [0, 4, 0], [6, 1, 3, 2]]
    for which in batches:
        for units in (2, 8, 60):
            part = some(cache, which)
            other, other_lse = kernel(spec, 1, units)(
                part.q,
                part.k,
                part.v,
                cache_seqlens=part.lengths,
                block_table=part.table,
                return_lse=True,
            )
            assert np.array_equal(other.view(np.uint16), o[which].view(np.uint16)), which
            assert np.array_equal(other_lse, lse[which])


def test_the_room_in_the_table_does_not_matter() -> None:
    cache = make_cache(SPEC, lengths=(700, 1300))
    o, _ = run(SPEC, cache, compute_units=8)
    assert cache.table is not None
    wide = np.concatenate((cache.table, np.full_like(cache.table, 2**31 - 1)), axis=1)
    other, _ = run(SPEC, dataclasses.replace(cache, table=wide), compute_units=8)
    assert np.array_equal(o.view(np.uint16), other.view(np.uint16))


@pytest.mark.parametrize("compute_units", [1, 3, 7, 40])
@pytest.mark.parametrize("lengths", [(5000,), (64, 900, 2), tuple(range(0, 1500, 37))])
def test_every_part_has_an_owner(lengths: tuple[int, ...], compute_units: int) -> None:
    spec = dataclasses.replace(SPEC, page_size=None)
    run(spec, make_cache(spec, lengths=lengths, heads_kv=1), compute_units=compute_units)


def test_the_cut_is_fixed() -> None:
    cache: Any = make_cache(SPEC, lengths=(70,))
    with pytest.raises(TensorError, match="batch_invariant"):
        run(SPEC, cache, num_splits=2)
