"""PagedKVCache and PageStorage: examples with known answers, layouts, arguments, errors."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fmhagen import PagedKVCache, PageStorage
from fmhagen.errors import OutOfPagesError, PagingError, TensorError
from fmhagen.oracle.attention import as_float64
from fmhagen.paging import CsrTables, csr_of, tables_of_csr
from fmhagen.paging.csr import tables_on_device

LAYERS, HEADS, DEPTH, DEPTH_V = 2, 3, 8, 4
PAGES, SIZE = 7, 4


def poisoned(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, np.nan, ml_dtypes.bfloat16)


def apart(layout: str) -> PageStorage:
    return PageStorage.allocate(
        poisoned,
        num_pages=PAGES,
        page_size=SIZE,
        heads_kv=HEADS,
        head_dim=DEPTH,
        head_dim_v=DEPTH_V,
        layers=LAYERS,
        layout=layout,
    )


def together(layout: str) -> PageStorage:
    return PageStorage.allocate(
        poisoned,
        num_pages=PAGES,
        page_size=SIZE,
        heads_kv=HEADS,
        head_dim=DEPTH,
        layers=LAYERS,
        layout=layout,
        combined=True,
    )


def halves_first(layout: str) -> PageStorage:
    """(2, num_pages, ...), a view of a wider buffer."""
    inner = (SIZE, HEADS) if layout == "nhd" else (HEADS, SIZE)
    tensors = [poisoned((2, PAGES, *inner, 2 * DEPTH))[..., :DEPTH] for _ in range(LAYERS)]
    return PageStorage.combined(tensors, layout=layout, axis=0)


STORAGES = [
    pytest.param(make, layout, id=f"{make.__name__}-{layout}")
    for make in (apart, together, halves_first)
    for layout in ("nhd", "hnd")
]


def random_like(cache: Any, tokens: int, seed: int) -> np.ndarray:
    depth = cache.shape[3]
    values = np.random.default_rng(seed).standard_normal((tokens, HEADS, depth))
    return values.astype(cache.dtype)


@pytest.mark.parametrize(("make", "layout"), STORAGES)
def test_what_is_written_is_read_in_every_layout(make: Any, layout: str) -> None:
    storage = make(layout)
    cache = PagedKVCache(storage=storage)
    assert (cache.num_pages, cache.page_size) == (PAGES, SIZE)
    new = cache.allocate(count=6)
    written = []
    for layer in range(LAYERS):
        k = random_like(storage.k(layer), 6, layer)
        v = random_like(storage.v(layer), 6, layer + 10)
        storage.write(layer, new.slots, k, v)
        written.append((k, v))
    samples = cache.fork(new.sequence, 2)
    step = cache.append_batch((new.sequence, *samples))
    assert len(step.copies) == 2  # the last holder writes in place
    for layer in range(LAYERS):
        k3 = random_like(storage.k(layer), 3, layer + 20)
        v3 = random_like(storage.v(layer), 3, layer + 30)
        storage.write(layer, step.slots, k3, v3)
        for i, sequence in enumerate((new.sequence, *samples)):
            k, v = storage.gather(layer, cache.pages(sequence), 7)
            np.testing.assert_array_equal(k, np.concatenate((written[layer][0], k3[i : i + 1])))
            np.testing.assert_array_equal(v, np.concatenate((written[layer][1], v3[i : i + 1])))
    used = cache.usage()
    assert (used.slots_used, used.tokens, used.pages_shared) == (4 + 3 * 3, 21, 1)
    held = {page for sequence in cache.sequences for page in cache.pages(sequence)}
    rest = [page for page in range(PAGES) if page not in held]
    assert np.isnan(storage.k(0)[rest].astype(np.float32)).all()


def test_views_have_the_kernel_s_axes_and_share_memory() -> None:
    for make in (apart, together, halves_first):
        for layout in ("nhd", "hnd"):
            storage = make(layout)
            assert storage.k(1).shape == (PAGES, SIZE, HEADS, DEPTH)
            assert storage.v(1).shape[:3] == (PAGES, SIZE, HEADS)
            assert storage.k(1).strides[3] == 2
            rows_first = storage.k(1).strides[1] > storage.k(1).strides[2]
            assert rows_first == (layout == "nhd")
    assert apart("hnd").bytes_per_slot == LAYERS * HEADS * (DEPTH + DEPTH_V) * 2


def test_a_prefix_is_found_after_its_commit_and_not_before() -> None:
    cache = PagedKVCache(num_pages=12, page_size=4)
    prompt = list(range(10))
    first = cache.allocate(prompt)
    assert (first.cached, len(first.slots)) == (0, 10)
    assert cache.allocate(prompt).cached == 0
    assert cache.commit() == 2  # of the two equal pairs of full pages one is known
    second = cache.allocate(np.array(prompt))
    assert second.cached == 8
    assert cache.pages(second.sequence)[:2] == cache.pages(first.sequence)[:2]
    assert cache.allocate([*prompt[:8], 99]).cached == 8
    assert cache.allocate(prompt[:8]).cached == 4  # the last token is left to compute
    assert cache.allocate([99, *prompt[1:]]).cached == 0
    assert cache.allocate([], salt=b"x").cached == 0


def test_salts_and_unknown_ids_share_nothing() -> None:
    cache = PagedKVCache(num_pages=20, page_size=2)
    cache.allocate([1, 2, 3, 4, 5], salt=b"adapter")
    cache.commit()
    assert cache.allocate([1, 2, 3, 4, 5]).cached == 0
    assert cache.allocate([1, 2, 3, 4, 5], salt=b"adapter").cached == 4
    opaque = cache.allocate(count=3)
    cache.append(opaque.sequence, [1, 2, 3])
    assert cache.commit() == 2  # those of the salt of nothing alone


def test_freed_prefixes_are_kept_and_the_oldest_is_evicted_first() -> None:
    cache = PagedKVCache(num_pages=4, page_size=2)
    for prompt in ([1, 1, 1, 1], [2, 2, 2, 2]):
        new = cache.allocate(prompt)
        cache.commit()
        cache.free(new.sequence)
    assert cache.usage().pages_kept == cache.num_available == 4
    cache.free(cache.allocate([1, 1, 1, 1]).sequence)  # a page of it is the youngest now
    new = cache.allocate(count=6)
    assert cache.usage().pages_evicted == 3
    cache.free(new.sequence)
    assert cache.allocate([2, 2, 2]).cached == 0
    assert cache.allocate([1, 1, 1]).cached == 2


def test_a_full_cache_says_so_and_changes_nothing() -> None:
    cache = PagedKVCache(num_pages=3, page_size=4)
    a = cache.allocate(count=5).sequence
    b = cache.allocate(count=4).sequence
    before = (cache.pages(a), cache.pages(b), cache.usage())
    with pytest.raises(OutOfPagesError, match=r"1 pages are needed and 0 of 3 .* 2 seq") as caught:
        cache.append_batch((a, b))
    assert (caught.value.needed, caught.value.available, caught.value.total) == (1, 0, 3)
    assert pickle.loads(pickle.dumps(caught.value)).to_dict() == caught.value.to_dict()
    with pytest.raises(OutOfPagesError):
        cache.allocate(count=1)
    assert (cache.pages(a), cache.pages(b), cache.usage()) == before
    assert cache.append(a, count=3).slots.tolist() == [cache.pages(a)[1] * 4 + i for i in (1, 2, 3)]


def test_beams_fork_and_end_without_a_page() -> None:
    cache = PagedKVCache(num_pages=3, page_size=4)
    beams: tuple[int, ...] = (cache.allocate(count=6).sequence,)
    for survivors in ((0, 0), (1, 1), (0, 1)):
        chosen = [cache.fork(beams[i])[0] for i in survivors]
        for beam in beams:
            cache.free(beam)
        beams = tuple(chosen)
        cache.append_batch(beams)
        assert len({cache.pages(beam)[0] for beam in beams}) == 1
        for beam in beams:
            cache.truncate(beam, 6)  # the next round writes the same slot
    assert cache.usage().pages_held == 3


def test_tables_of_a_batch() -> None:
    cache = PagedKVCache(num_pages=10, page_size=4)
    a, b, c = (cache.allocate(count=n).sequence for n in (9, 0, 4))
    tables = cache.tables((c, a, b))
    assert tables.block_table.tolist() == [[3, 0, 0], [0, 1, 2], [0, 0, 0]]
    assert tables.cache_seqlens.tolist() == [4, 9, 0]
    assert cache.tables((b,)).block_table.shape == (1, 1)
    assert cache.tables(()).block_table.shape == (0, 1)
    assert cache.tables((a, c), unwritten=(3, 1)).cache_seqlens.tolist() == [6, 3]
    assert cache.tables((a, c), width=5).block_table.shape == (2, 5)
    csr = cache.csr((c, a, b))
    assert csr.indptr.tolist() == [0, 1, 4, 4]
    assert csr.indices.tolist() == [3, 0, 1, 2]
    assert csr.last_page_len.tolist() == [4, 1, 0]
    assert {t.dtype for t in (csr.indptr, csr.indices, csr.last_page_len)} == {np.dtype(np.int32)}

    out = cache.tables((a, b, c), width=6)
    addresses = (out.block_table.ctypes.data, out.cache_seqlens.ctypes.data)
    assert cache.tables((c,), out=out) is out
    assert out.block_table.tolist() == [[3, 0, 0, 0, 0, 0], [0] * 6, [0] * 6]
    assert out.cache_seqlens.tolist() == [4, 0, 0]
    assert addresses == (out.block_table.ctypes.data, out.cache_seqlens.ctypes.data)


def test_the_table_grows_with_sequences_and_lengths() -> None:
    cache = PagedKVCache(num_pages=4000, page_size=1)
    sequences = [cache.allocate(count=n).sequence for n in range(60)]
    cache.append(sequences[7], count=500)
    tables = cache.tables(sequences)
    assert tables.block_table.shape == (60, 507)
    for i, sequence in enumerate(sequences):
        pages = cache.pages(sequence)
        assert tables.block_table[i].tolist() == [*pages, *[0] * (507 - len(pages))]
    assert len({page for s in sequences for page in cache.pages(s)}) == sum(range(60)) + 500


def test_csr_refuses_lengths_that_the_table_cannot_hold() -> None:
    table = np.arange(4, dtype=np.int32).reshape(2, 2)
    with pytest.raises(PagingError, match=r"cache_seqlens\[1\]=9: .*between 0 and the 8 keys"):
        csr_of(table, np.array([8, 9], np.int32), 4)
    with pytest.raises(PagingError, match=r"cache_seqlens\[0\]=-1"):
        csr_of(table, np.array([-1, 9], np.int32), 4)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_csr_and_back(dtype: Any) -> None:
    generator = np.random.default_rng(0)
    for size in (1, 3, 16):
        lengths = generator.integers(0, 40, 9).astype(np.int32)
        table = generator.integers(0, 250, (9, 40)).astype(np.int32)
        csr = csr_of(table, lengths, size)
        strided = (np.repeat(part.astype(dtype), 2)[::2] for part in _parts(csr))
        back = tables_of_csr(*strided, size, width=40)
        assert back.cache_seqlens.tolist() == lengths.tolist()
        for row, wanted, length in zip(back.block_table, table, lengths, strict=True):
            pages = -(-length // size)
            assert row.tolist() == [*wanted[:pages], *[0] * (40 - pages)]
        again = csr_of(back.block_table, back.cache_seqlens, size)
        for one, other in zip(_parts(csr), _parts(again), strict=True):
            np.testing.assert_array_equal(one, other)
    assert tables_of_csr([0], [], [], 4).block_table.shape == (0, 1)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_csr_is_turned_where_it_lies(framework: str, dtype: Any) -> None:
    """By operations that read nothing back; what does not belong to a sequence has no effect."""
    make: Any = np.asarray if framework == "numpy" else pytest.importorskip("torch").from_numpy
    for lengths, size in (((5, 0, 12, 3, 0), 3), ((0, 0), 4), ((7,), 1), ((), 2), ((64, 63), 16)):
        counts = -(-np.array(lengths, np.int64) // size)
        width = int(counts.max(initial=0)) + 1
        table = np.random.default_rng(1).integers(1, 99, (len(lengths), width)).astype(np.int32)
        csr = csr_of(table, np.array(lengths, np.int32), size)
        assert csr.max_pages == width - 1
        garbage = np.full(3, 2_147_480_000)
        csr.last_page_len[counts == 0] = 77
        parts = (csr.indptr, np.concatenate((csr.indices, garbage)), csr.last_page_len)
        back = tables_on_device(*(make(part.astype(dtype)) for part in parts), size, width)
        for found, right in (
            (back.block_table, np.where(np.arange(width) < counts[:, None], table, 0)),
            (back.cache_seqlens, np.array(lengths)),
        ):
            assert str(found.dtype).endswith("int32")
            assert np.array_equal(np.asarray(found), right)
    short = tables_on_device(*(make(np.array(p)) for p in ([0, 3, 4], [1, 2, 3, 4], [2, 1])), 4, 2)
    assert short.block_table.tolist() == [[1, 2], [4, 0]]
    assert short.cache_seqlens.tolist() == [8, 1]  # no more than what the table holds
    with pytest.raises(PagingError, match=r"last_page_len=.*of 2 elements"):
        tables_on_device(*(make(np.array(p)) for p in ([0, 3, 4], [1, 2, 3, 4], [2])), 4, 2)
    with pytest.raises(PagingError, match="indices='float64"):
        tables_on_device(*(make(np.array(p)) for p in ([0, 3, 4], [1.0] * 4, [2, 1])), 4, 2)


def test_csr_on_a_device_needs_a_width() -> None:
    torch = pytest.importorskip("torch")
    parts = [torch.zeros(2, dtype=torch.int32, device="meta") for _ in range(3)]
    with pytest.raises(PagingError, match="width=None: must be given"):
        tables_of_csr(*parts, 4)
    with pytest.raises(PagingError, match="indices='on the host'"):
        tables_of_csr(parts[0], [1], parts[2], 4, width=2)


def _parts(csr: CsrTables) -> tuple[Any, Any, Any]:
    return csr.indptr, csr.indices, csr.last_page_len


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (([1, 2], [0, 1], [1]), r"indptr=\[1, 2\]: must begin with 0 and never decrease"),
        (([0, 2, 1], [0, 1], [1, 1]), r"indptr=\[0, 2, 1\]: must begin with 0"),
        (([0, 3], [0, 1], [1]), r"indptr\[1\]=3: must be at most the 2 indices"),
        (([0, 1], [0], [1, 1]), r"last_page_len=2: must be as many as the 1 sequences"),
        (([0, 1], [0], [0]), r"last_page_len\[0\]=0: must be between 1 and the page size of 4"),
        (([0, 1], [0], [5]), r"last_page_len\[0\]=5"),
        (([0, 1], [0.0], [1]), r"indices='float64 of shape \(1,\)': must be a one-dimensional"),
        (([[0, 1]], [0], [1]), r"indptr='int64 of shape \(1, 2\)'"),
    ],
)
def test_csr_that_means_nothing_is_refused(arguments: Any, says: str) -> None:
    with pytest.raises(PagingError, match=says):
        tables_of_csr(*arguments, 4)


def test_usage_counts_waste_and_what_sharing_saves() -> None:
    cache = PagedKVCache(num_pages=100, page_size=16)
    prompt = cache.allocate(list(range(40))).sequence
    cache.commit()
    samples = cache.fork(prompt, 7)
    everyone = (prompt, *samples)
    for token in range(10):
        cache.append_batch(everyone, [token] * 8)
    usage = cache.usage()
    # two prompt pages shared, and for each of 8 a page filled up and one with 2 tokens
    assert (usage.pages_held, usage.pages_shared) == (2 + 8 * 2, 2)
    assert (usage.tokens, usage.slots_used) == (400, 32 + 8 * 18)
    assert usage.slots_wasted == 8 * 14
    assert usage.waste == pytest.approx(112 / 288)
    assert usage.tokens_saved == 7 * 32
    assert usage.slots_contiguous() == 400
    assert usage.slots_contiguous(2048) == 8 * 2048
    assert usage.pages_copied == 7
    assert "18 held (2 shared)" in str(usage)
    assert PagedKVCache(num_pages=1, page_size=1).usage().waste == 0.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda c: c.append(5), r"sequence=5: is not one of the 1 sequences alive; was it freed"),
        (lambda c: c.append_batch([0, 7], [1, 2]), r"sequence=7"),
        (lambda c: c.append_batch([0, 0]), r"sequences=0: must name each sequence once"),
        (lambda c: c.append_batch([0], [1, 2]), r"tokens=2: must be as many as the 1 sequences"),
        (lambda c: c.append_batch([0], counts=[1, 2]), r"counts=2: must be as many"),
        (lambda c: c.append_batch([0], [1], counts=1), r"counts=1: must not be given beside"),
        (lambda c: c.append_batch([0], [[1.5]]), r"tokens\[0\]=\[1.5\]: must be token ids"),
        (lambda c: c.append_batch([0], [2**70]), r"tokens\[0\]=.*integers of 64 bits"),
        (lambda c: c.append_batch([0], 3), r"tokens=3: must be a list"),
        (lambda c: c.append(0, "text"), r"tokens='text': must be a list"),
        (lambda c: c.append(0, [1], count=1), r"count=1: must not be given beside tokens"),
        (lambda c: c.append(0, count=-1), r"count=-1: must not be negative; use truncate"),
        (lambda c: c.append(0, count=1.0), r"count=1.0: must be a number of tokens"),
        (lambda c: c.append(0, np.ones((1, 2), int)), r"tokens=.*must be token ids"),
        (lambda c: c.allocate([0.5]), r"tokens=\[0.5\]: must be token ids"),
        (lambda c: c.truncate(0, 4), r"length=4: sequence 0 has only 3 tokens"),
        (lambda c: c.fork(0, -1), r"count=-1: must not be negative"),
        (lambda c: c.free(3), r"sequence=3"),
        (lambda c: c.commit([0, 9]), r"sequence=9"),
        (lambda c: c.tables([0], width=1), r"width=1: the longest sequence .* has 2 pages"),
        (lambda c: c.tables([0], unwritten=4), r"cache_seqlens\[0\]=-1: more tokens"),
        (lambda c: c.tables([0, 0], out=c.tables([0])), r"out='1 rows, 1 lengths': must have room"),
        (lambda c: c.tables([0], out=c.tables([0]), width=9), r"width=9: must not be given beside"),
        (lambda c: PagedKVCache(num_pages=1), r"page_size=None: must be given where there is no"),
        (lambda c: PagedKVCache(num_pages=0, page_size=1), r"num_pages=0: .* between 1 and"),
        (lambda c: PagedKVCache(storage=apart("nhd"), page_size=4), r"page_size=4: must be given"),
    ],
)
def test_refusals_name_the_field_and_change_nothing(call: Any, says: str) -> None:
    cache = PagedKVCache(num_pages=4, page_size=2)
    cache.allocate([1, 2, 3])
    before = (cache.sequences, cache.pages(0), cache.length(0), cache.usage())
    with pytest.raises(PagingError, match=says):
        call(cache)
    assert (cache.sequences, cache.pages(0), cache.length(0), cache.usage()) == before


def test_storages_refuse_shapes_that_do_not_fit() -> None:
    with pytest.raises(PagingError, match="layout='hdn': must be one of nhd, hnd; did you mean"):
        apart("hdn")
    good = poisoned((3, 4, 2, 8))
    with pytest.raises(TensorError, match=r"values\[0\]=\(3, 5, 2, 8\): .* pages and slots"):
        PageStorage([good], [poisoned((3, 5, 2, 8))])
    with pytest.raises(TensorError, match=r"values\[0\]=.*as many heads"):
        PageStorage([good], [poisoned((3, 4, 1, 8))])
    with pytest.raises(PagingError, match="layers=1: must be at least 1, as many of K as of V"):
        PageStorage([good], [])
    with pytest.raises(TensorError, match=r"tensors\[0\]=.*size 2 along axis 1"):
        PageStorage.combined([poisoned((3, 1, 4, 2, 8))])
    with pytest.raises(PagingError, match="axis=2"):
        PageStorage.combined([good], axis=2)
    with pytest.raises(PagingError, match=r"head_dim_v=4: .* share a tensor; use combined=False"):
        PageStorage.allocate(
            poisoned, num_pages=1, page_size=1, heads_kv=1, head_dim=8, head_dim_v=4, combined=True
        )


def torch_makers() -> list[tuple[Any, Any]]:
    """Return (make, random values) for element types of torch, on a GPU if there is one."""
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return [
        (
            lambda shape, dtype=dtype: torch.empty(shape, dtype=dtype, device=device),
            lambda shape, dtype=dtype: torch.randn(shape, device=device).to(dtype),
        )
        for dtype in (torch.bfloat16, torch.float8_e4m3fn)
    ]


def cupy_makers() -> list[tuple[Any, Any]]:
    """Return (make, random values) of CuPy."""
    cupy = pytest.importorskip("cupy")
    return [
        (
            lambda shape: cupy.empty(shape, cupy.float16),
            lambda shape: cupy.random.standard_normal(shape).astype(cupy.float16),
        )
    ]


@pytest.mark.parametrize("makers", [torch_makers, cupy_makers])
def test_other_frameworks_hold_pages_too(makers: Any) -> None:
    for make, random in makers():
        storage = PageStorage.allocate(
            make, num_pages=4, page_size=2, heads_kv=2, head_dim=8, layout="hnd", combined=True
        )
        cache = PagedKVCache(storage=storage)
        new = cache.allocate(count=3)
        k, v = random((3, 2, 8)), random((3, 2, 8))
        storage.write(0, storage.places(new.slots), k, v)
        (child,) = cache.fork(new.sequence)
        cache.append(child)
        for found, wanted in zip(storage.gather(0, cache.pages(child), 3), (k, v), strict=True):
            assert type(found) is type(wanted)
            np.testing.assert_array_equal(as_float64(found), as_float64(wanted))
        tables = cache.tables((child, new.sequence), like=storage.k())
        assert type(tables.block_table) is type(k)
        assert str(tables.block_table.dtype).endswith("int32")
        assert tables.block_table.device == storage.k().device
        again = cache.tables((new.sequence,), out=tables)
        assert again is tables
        assert again.cache_seqlens.tolist() == [3, 0]


def test_the_shared_prefix_ends_at_the_last_full_page_of_all() -> None:
    cache = PagedKVCache(num_pages=20, page_size=4)
    a = cache.allocate(count=10).sequence
    b, c = cache.fork(a, 2)
    assert cache.shared_prefix((a, b)) == 8  # the third page is shared and not full
    cache.append_batch((a, b), counts=2)
    assert cache.shared_prefix((a, b, c)) == 8
    assert cache.shared_prefix((a,)) == 12
    cache.truncate(c, 7)
    assert cache.shared_prefix((a, b, c)) == 4
    other = cache.allocate(count=9).sequence
    assert cache.shared_prefix((a, other)) == 0
    assert cache.shared_prefix(()) == 0


@pytest.mark.parametrize("queries", [1, 2, 4])
def test_cascade_tables_split_behind_what_every_query_sees(queries: int) -> None:
    cache = PagedKVCache(num_pages=40, page_size=4)
    for own in ((1, 1, 1), (0, 3, 9), (7, 4, 2)):
        first = cache.allocate(count=12).sequence
        batch = (first, *cache.fork(first, 2))
        for sequence, count in zip(batch, own, strict=True):
            cache.append(sequence, count=count)
        split = cache.cascade(batch, queries=queries)
        shortest = 12 + min(own)
        assert split.prefix_length == min(12, (shortest - queries + 1) // 4 * 4)
        pages = split.prefix_length // 4
        assert split.prefix.block_table.tolist() == [list(cache.pages(first)[:pages])]
        assert split.prefix.cache_seqlens.tolist() == [split.prefix_length]
        for row, length, sequence in zip(
            split.rest.block_table, split.rest.cache_seqlens, batch, strict=True
        ):
            assert length == cache.length(sequence) - split.prefix_length
            assert tuple(row[: -(-length // 4)]) == cache.pages(sequence)[pages:]
        for sequence in batch:
            cache.free(sequence)


def test_cascade_tables_where_nothing_or_everything_is_shared() -> None:
    cache = PagedKVCache(num_pages=10, page_size=4)
    a, b = (cache.allocate(count=8).sequence for _ in range(2))
    split = cache.cascade((a, b))
    assert split.prefix_length == 0
    assert split.prefix.cache_seqlens.tolist() == [0]
    assert split.rest.block_table.tolist() == cache.tables((a, b)).block_table.tolist()
    split = cache.cascade((a, *cache.fork(a)))
    assert split.prefix_length == 8
    assert split.rest.cache_seqlens.tolist() == [0, 0]
    assert split.rest.block_table.shape == (2, 1)
    assert cache.cascade(()).rest.cache_seqlens.shape == (0,)
    with pytest.raises(PagingError, match="queries=0"):
        cache.cascade((a,), queries=0)
