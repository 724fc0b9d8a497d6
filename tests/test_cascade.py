"""A shared prefix computed once and merged, on the emulator: against float64 and one kernel."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cache_cases import DTYPES, Cache, aligned

from fmhagen import AttentionSpec, PagedKVCache, PageStorage
from fmhagen.cascade import CascadeKernel
from fmhagen.errors import UnsupportedSpecError
from fmhagen.oracle.attention import reference
from fmhagen.paging import CascadeTables
from fmhagen.runtime.emulator_backend import EmulatorOptions

SPEC = AttentionSpec(causal=True, page_size=16, head_dim=64)
HEADS, HEADS_KV = 4, 2
EPSILON = {"bf16": 2.0**-8, "fp16": 2.0**-11}
ROUNDINGS = 3  # of O: two partial results and their sum, where one kernel rounds once


@functools.cache
def kernel(spec: AttentionSpec) -> CascadeKernel:
    return CascadeKernel(spec, device="emulator", emulator=EmulatorOptions(compute_units=4))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Forks of one prompt in a paged cache full of poison, and what they hold in float64."""

    cache: PagedKVCache
    storage: PageStorage
    sequences: tuple[int, ...]
    case: Cache


def make_batch(
    spec: AttentionSpec,
    *,
    prompt: int,
    own: tuple[int, ...],
    seqlen_q: int = 1,
    heads: int = HEADS,
    heads_kv: int = HEADS_KV,
    spread: float = 1.0,
    layout: str = "nhd",
    seed: int = 0,
) -> Batch:
    """Write a prompt, fork it once for each of `own`, and append so many tokens to each."""
    rng = np.random.default_rng(seed)
    dtype = DTYPES[spec.dtype]
    size = spec.page_size or 1
    pages = -(-prompt // size) + sum(-(-n // size) + 2 for n in own) + 3
    storage = PageStorage.allocate(
        lambda shape: aligned(np.full(shape, np.nan, dtype)),
        num_pages=pages,
        page_size=size,
        heads_kv=heads_kv,
        head_dim=spec.d,
        head_dim_v=spec.dv,
        layout=layout,
    )
    cache = PagedKVCache(storage=storage)

    def write(slots: Any) -> None:
        k = rng.standard_normal((len(slots), heads_kv, spec.d)).astype(dtype)
        v = rng.standard_normal((len(slots), heads_kv, spec.dv)).astype(dtype)
        storage.write(0, slots, k, v)

    first = cache.allocate(count=prompt)
    write(first.slots)
    sequences = (first.sequence, *cache.fork(first.sequence, len(own) - 1))
    for sequence, count in zip(sequences, own, strict=True):
        write(cache.append(sequence, count=count).slots)
    q = spread * rng.standard_normal((len(own), seqlen_q, heads, spec.d))
    q = q.transpose(0, 2, 1, 3) if spec.layout == "bhsd" else q
    tables = cache.tables(sequences)
    case = Cache(
        q=aligned(q.astype(dtype)),
        k=storage.k(),
        v=storage.v(),
        lengths=tables.cache_seqlens,
        table=tables.block_table,
    )
    return Batch(cache=cache, storage=storage, sequences=sequences, case=case)


def attend(
    spec: AttentionSpec, batch: Batch
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return O (B, Sq, H, dv) and LSE of one contiguous cache, read page by page, not by tables."""
    case, cache = batch.case, batch.cache
    held = [batch.storage.gather(0, cache.pages(s), cache.length(s)) for s in batch.sequences]
    most = max(len(k) for k, _ in held)
    k, v = (
        np.stack([np.pad(pair[i], ((0, most - len(pair[i])), (0, 0), (0, 0))) for pair in held])
        for i in range(2)
    )
    contiguous = dataclasses.replace(spec, page_size=None, cache_layout="nhd", layout="bshd")
    q = case.q.swapaxes(1, 2) if spec.layout == "bhsd" else case.q
    return reference(contiguous, q, k, v, cache_seqlens=case.lengths)


def check(spec: AttentionSpec, batch: Batch) -> CascadeTables:
    """Compute in two parts; compare with float64 and, within a rounding, with one kernel."""
    case = batch.case
    heads_first = spec.layout == "bhsd"
    q = case.q.swapaxes(1, 2) if heads_first else case.q
    tables = batch.cache.cascade(batch.sequences, queries=q.shape[1])
    cascade = kernel(spec)
    o, lse = cascade(case.q, case.k, case.v, tables, return_lse=True)
    assert np.array_equal(cascade(case.q, case.k, case.v, tables), o)
    o = o.swapaxes(1, 2) if heads_first else o

    o_right, lse_right = attend(spec, batch)
    seen = np.isfinite(lse_right)
    assert np.array_equal(np.isneginf(lse), ~seen)
    assert np.abs(lse[seen] - lse_right[seen]).max(initial=0) < 2e-5
    o64 = o.astype(np.float64)
    assert not np.isnan(o64).any()
    assert not o64[~seen.transpose(0, 2, 1)].any()
    largest = np.nanmax(np.abs(case.v.astype(np.float64)), initial=0)
    assert np.abs(o64 - o_right).max(initial=0) <= ROUNDINGS * EPSILON[spec.dtype] * largest

    lengths, pages = case.lengths, case.table
    whole, whole_lse = cascade.rest(
        q, case.k, case.v, block_table=pages, cache_seqlens=lengths, return_lse=True
    )
    assert np.abs(lse[seen] - whole_lse[seen]).max(initial=0) < 1e-5
    difference = np.abs(o64 - whole.astype(np.float64)).max(initial=0)
    assert difference <= ROUNDINGS * EPSILON[spec.dtype] * largest
    return tables


@pytest.mark.parametrize("seqlen_q", [1, 2, 5])
@pytest.mark.parametrize("page_size", [1, 3, 16, 24])
def test_pages_of_any_size(page_size: int, seqlen_q: int) -> None:
    spec = dataclasses.replace(SPEC, page_size=page_size)
    batch = make_batch(spec, prompt=101, own=(7, 40, 5, 100), seqlen_q=seqlen_q)
    tables = check(spec, batch)
    assert tables.prefix_length == 101 // page_size * page_size


@pytest.mark.parametrize(("heads", "heads_kv"), [(2, 2), (8, 1), (6, 2), (20, 1)])
def test_groups(heads: int, heads_kv: int) -> None:
    # 19 sequences: their rows of a group do not fill the last tile
    own = tuple(range(1, 20))
    batch = make_batch(SPEC, prompt=64, own=own, heads=heads, heads_kv=heads_kv)
    assert check(SPEC, batch).prefix_length == 64


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("pages", ["nhd", "hnd"])
def test_layouts(layout: Any, pages: str) -> None:
    spec = dataclasses.replace(SPEC, layout=layout, dtype="fp16", head_dim_v=128)
    check(spec, make_batch(spec, prompt=50, own=(3, 20), seqlen_q=3, layout=pages))


def test_without_a_mask() -> None:
    spec = dataclasses.replace(SPEC, causal=False)
    check(spec, make_batch(spec, prompt=33, own=(1, 0, 9), seqlen_q=4))


@pytest.mark.parametrize("seed", range(3))
def test_large_logits(seed: int) -> None:
    # One part has nearly all the weight, now the prefix, now the rest.
    batch = make_batch(SPEC, prompt=80, own=(20, 3, 64, 1), seqlen_q=2, spread=10.0, seed=seed)
    check(SPEC, batch)


def test_parts_without_keys_come_through_unchanged() -> None:
    """Nothing shared: the rest's kernel alone. Nothing else: the prefix's kernel alone."""
    batch = make_batch(SPEC, prompt=15, own=(1, 30))
    case, cascade = batch.case, kernel(SPEC)
    tables = check(SPEC, batch)
    assert tables.prefix_length == 0
    o = cascade(case.q, case.k, case.v, tables)
    lengths, pages = case.lengths, case.table
    assert np.array_equal(
        o, cascade.rest(case.q, case.k, case.v, block_table=pages, cache_seqlens=lengths)
    )

    batch = make_batch(SPEC, prompt=32, own=(0, 0, 0))
    case = batch.case
    tables = check(SPEC, batch)
    assert tables.prefix_length == 32
    assert tables.rest.cache_seqlens.tolist() == [0, 0, 0]
    o = cascade(case.q, case.k, case.v, tables)
    prefix = cascade.prefix(
        case.q.reshape(1, 3, HEADS, SPEC.d),
        case.k,
        case.v,
        block_table=tables.prefix.block_table,
        cache_seqlens=tables.prefix.cache_seqlens,
    )
    assert np.array_equal(o, prefix.reshape(o.shape))


def test_rows_that_see_nothing() -> None:
    batch = make_batch(SPEC, prompt=2, own=(0, 1, 60), seqlen_q=6)
    assert check(SPEC, batch).prefix_length == 0


def test_a_query_within_the_prompt_keeps_the_prefix_before_it() -> None:
    batch = make_batch(SPEC, prompt=64, own=(1, 20), seqlen_q=3)
    # The first row of the shorter one stands at position 62, inside the last page of the prompt.
    assert check(SPEC, batch).prefix_length == 48


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_torch_tensors(layout: Any) -> None:
    torch = pytest.importorskip("torch")
    spec = dataclasses.replace(SPEC, layout=layout, dtype="fp16")
    batch = make_batch(spec, prompt=40, own=(3, 20, 1), seqlen_q=2)
    q, k, v = (
        torch.from_numpy(np.ascontiguousarray(a))
        for a in (batch.case.q, batch.case.k, batch.case.v)
    )
    tables = batch.cache.cascade(batch.sequences, queries=2)
    wanted, wanted_lse = kernel(spec)(
        batch.case.q, batch.case.k, batch.case.v, tables, return_lse=True
    )
    o, lse = kernel(spec)(
        q, k, v, batch.cache.cascade(batch.sequences, queries=2, like=q), return_lse=True
    )
    assert o.shape == q.shape
    np.testing.assert_array_equal(o.numpy(), wanted)
    np.testing.assert_array_equal(lse.numpy(), wanted_lse)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"page_size": None, "kv_cache": True}, "page_size=None: a shared prefix lies in shared"),
        ({"window_left": 5}, "window_left=5: keys of a prefix must mean the same"),
        ({"alibi": True}, "alibi=True"),
        ({"anchor": "top_left"}, "anchor='top_left': query rows must stand behind"),
        ({"mask_mod": lambda b, h, m, n: n % 2 == 0}, "mask_mod"),
        ({"varlen": True}, "varlen=True: all sequences have as many query rows"),
        ({"max_logit": True}, "max_logit=True: a cascade gives O and LSE alone"),
        ({"score_mod": lambda s, b, h, m, n: s + n}, "score_mod"),
    ],
)
def test_what_makes_prefixes_differ_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedSpecError, match=says):
        CascadeKernel(dataclasses.replace(SPEC, **changes))
