"""Many query rows over a cache on the emulator, against float64 with poison everywhere."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cache_cases import (
    DTYPES,
    HUGE_PAGE,
    Cache,
    aligned,
    assert_right,
    cache_arguments,
    call_kernel,
    largest_value,
    make_cache,
)
from emulated import with_text
from faults import Edit

from fmhagen import AttentionSpec, compile_kernel
from fmhagen.compile import compile_source
from fmhagen.compile.binary import Binary
from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError, ScheduleError, TensorError
from fmhagen.kernel import Kernel
from fmhagen.lowering import lower
from fmhagen.oracle.attention import reference
from fmhagen.plan.attention import Plan
from fmhagen.runtime.cache_calls import CacheCalls
from fmhagen.runtime.emulator_backend import EmulatorBackend, EmulatorOptions
from fmhagen.runtime.launcher import Launcher
from fmhagen.schedule import MainLoop
from fmhagen.select import default_schedule
from fmhagen.select.rules.rows import (
    FEW_HEADS,
    PACKED_QUERIES,
    PREFILL_ROWS,
    SHARED_ROWS,
    class_of_heads,
    class_of_rows,
)
from fmhagen.targets import find_target

CAUSAL = AttentionSpec(causal=True, kv_cache=True)
LENGTHS = (0, 130, 1, 300, 77)  # keys
ROWS = (3, 0, 5, 141, 129)  # query rows, where they are packed
MANY = 200


@functools.cache
def kernel(spec: AttentionSpec, seed: int = 0, packs: bool = False, target: str = "sm90") -> Kernel:
    """Compile for the emulator; few units, so that a block has several tiles of work."""
    options = EmulatorOptions(seed=seed, compute_units=3)
    schedule = default_schedule(spec, find_target(target), query_hint=MANY)
    schedule = dataclasses.replace(schedule, pack_heads=packs)
    return compile_kernel(
        spec,
        device="emulator",
        target=target,
        emulator=options,
        schedule=schedule,
        query_hint=MANY,
    )


def alarm_of(plan: Plan, binary: Callable[[], Binary], cache: Cache, **more: Any) -> str:
    """Run another binary in a plan's place: what the emulator says, or "" of a wrong result."""
    options = EmulatorOptions(seed=1, compute_units=3)
    launcher = Launcher(plan, EmulatorBackend(options), binary)
    calls = CacheCalls(plan.spec, lambda q: launcher)
    try:
        extras: Any = cache_arguments(cache) | more
        o, lse = calls(cache.q, cache.k, cache.v, None, None, True, extras)
        with pytest.raises(AssertionError):
            assert_right(plan.spec, cache, o, lse, **more)
    except EmulatorError as error:
        return error.kind
    return ""


def run(
    spec: AttentionSpec,
    cache: Cache,
    *,
    seed: int = 0,
    packs: bool = False,
    target: str = "sm90",
    roundings: float = 1.0,
    **more: Any,
) -> None:
    """Call the kernel with as many rows a sequence, and check what it gives."""
    o, lse = call_kernel(kernel(spec, seed, packs, target), cache, **more)
    assert_right(spec, cache, o, lse, roundings=roundings, **more)


def packed(cache: Cache, rows: tuple[int, ...], gap: int = 0) -> tuple[Any, dict[str, Any]]:
    """Return queries packed with `gap` unused rows of NaN behind each sequence, and arguments."""
    offsets = np.concatenate([[0], np.cumsum([n + gap for n in rows])]).astype(np.int32)
    dtype = cache.q.dtype
    q = np.full((offsets[-1], *cache.q.shape[2:]), np.nan, dtype)
    rng = np.random.default_rng(5)
    for first, n in zip(offsets, rows, strict=False):
        q[first : first + n] = rng.standard_normal((n, *q.shape[1:])).astype(dtype)
    extras: dict[str, Any] = {"cu_seqlens_q": offsets}
    if gap:
        extras["seqused_q"] = np.array(rows, np.int32)
    return aligned(q), extras


def run_packed(
    spec: AttentionSpec,
    cache: Cache,
    rows: tuple[int, ...],
    *,
    gap: int = 0,
    seed: int = 0,
    packs: bool = False,
    target: str = "sm90",
    roundings: float = 1.0,
    **more: Any,
) -> None:
    """Call the kernel with packed rows; rows of no sequence must stay as the emulator made them."""
    q, extras = packed(cache, rows, gap)
    o, lse = kernel(spec, seed, packs, target)(
        q, cache.k, cache.v, return_lse=True, **cache_arguments(cache), **extras, **more
    )
    o_right, lse_right = reference(
        spec, q, cache.k, cache.v, **cache_arguments(cache), **extras, **more
    )
    used = np.zeros(len(q), bool)
    for first, n in zip(extras["cu_seqlens_q"], rows, strict=False):
        used[first : first + n] = True
    assert np.isnan(o[~used].astype(np.float64)).all()
    o64, lse, lse_right = o[used].astype(np.float64), lse[:, used], lse_right[:, used]
    assert np.array_equal(np.isneginf(lse), np.isneginf(lse_right))
    seen = np.isfinite(lse_right)
    assert np.abs(lse[seen] - lse_right[seen]).max(initial=0) < 2e-5
    largest = largest_value(spec, cache, **more)
    assert np.abs(o64 - o_right[used]).max(initial=0) <= roundings * 2.0**-8 * largest  # NaN fails
    assert not o64[~o_right[used].any(axis=2)].any()


@pytest.mark.parametrize("page_size", [None, 1, 3])
def test_rows_of_one_number(page_size: int | None) -> None:
    spec = dataclasses.replace(CAUSAL, page_size=page_size)
    run(spec, make_cache(spec, lengths=LENGTHS, seqlen_q=140, heads=2, heads_kv=1, room=60))


@pytest.mark.parametrize("page_size", [None, 16, 24, 256])
def test_packed_rows(page_size: int | None) -> None:
    spec = dataclasses.replace(CAUSAL, page_size=page_size, varlen=True)
    cache = make_cache(spec, lengths=LENGTHS, heads=2, heads_kv=1, room=40)
    run_packed(spec, cache, ROWS)


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_layout": "hnd", "layout": "bhsd", "head_dim": 64, "page_size": 16},
        {"head_dim": 96, "causal": False, "page_size": 64},
        {"head_dim": 256, "page_size": 8, "dtype": "fp16"},
        {"head_dim": 192, "head_dim_v": 128, "page_size": 128, "cache_layout": "hnd"},
        {"head_dim": 64, "causal": False, "window_left": 40, "window_right": 9, "page_size": 16},
        {"head_dim": 64, "soft_cap": 3.0, "page_size": 16},
    ],
)
def test_kinds_of_spec(changes: dict[str, Any]) -> None:
    spec = dataclasses.replace(CAUSAL, **changes)
    run(spec, make_cache(spec, lengths=(0, 200, 70), seqlen_q=100, heads=2, heads_kv=1, room=40))


def test_sinks_slopes_and_unused_rows() -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=16, sink=True, alibi=True)
    cache = make_cache(spec, lengths=(0, 200, 1), seqlen_q=100, heads=4, heads_kv=2)
    sinks = np.array((0.5, -3.0, 9.0, -np.inf), np.float32)
    slopes = np.array((0.5, 0.25, 0.0, 0.1), np.float32)
    run(spec, cache, sinks=sinks, alibi_slopes=slopes)
    spec = AttentionSpec(head_dim=64, page_size=16, varlen=True)
    cache = make_cache(spec, lengths=LENGTHS, heads=2, heads_kv=1)
    run_packed(spec, cache, ROWS, gap=3)


@pytest.mark.parametrize(
    ("changes", "heads", "rows"),
    [
        ({"head_dim": 64, "page_size": 16}, (6, 1), 50),  # two of six heads share tiles
        ({"head_dim": 64, "page_size": 1, "sink": True}, (8, 2), 30),
        ({"page_size": 16, "window_left": 40}, (4, 2), 70),
        ({"head_dim": 192, "head_dim_v": 128}, (8, 1), 20),
        ({"head_dim": 64, "causal": False}, (3, 3), 20),
    ],
)
def test_heads_of_a_group_share_tiles(
    changes: dict[str, Any], heads: tuple[int, int], rows: int
) -> None:
    spec = dataclasses.replace(CAUSAL, **changes)
    cache = make_cache(spec, lengths=LENGTHS, seqlen_q=rows, heads=heads[0], heads_kv=heads[1])
    more = {"sinks": np.linspace(-1, 2, heads[0]).astype(np.float32)} if spec.sink else {}
    run(spec, cache, packs=True, **more)


def test_heads_share_tiles_of_packed_rows() -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=16, varlen=True)
    cache = make_cache(spec, lengths=LENGTHS, heads=4, heads_kv=1, room=40)
    run_packed(spec, cache, ROWS, gap=3, packs=True)


@pytest.mark.parametrize("changes", [{}, {"causal": True, "window_left": 30, "sink": True}])
def test_heads_share_tiles_of_packed_rows_without_a_cache(changes: dict[str, Any]) -> None:
    spec = AttentionSpec(head_dim=64, varlen=True, **changes)
    schedule = default_schedule(spec, find_target("sm90"))
    options = EmulatorOptions(seed=3, compute_units=3)
    call = compile_kernel(
        spec,
        device="emulator",
        emulator=options,
        schedule=dataclasses.replace(schedule, pack_heads=True),
    )
    rng = np.random.default_rng(0)
    offsets = [np.cumsum((0, *n)).astype(np.int32) for n in ((3, 0, 70, 33), (5, 7, 200, 33))]
    q, k, v = (
        aligned(rng.standard_normal((rows, heads, 64)).astype(DTYPES["bf16"]))
        for rows, heads in ((offsets[0][-1], 6), (offsets[1][-1], 3), (offsets[1][-1], 3))
    )
    extras: dict[str, Any] = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), offsets, strict=True))
    if spec.sink:
        extras["sinks"] = np.linspace(-1, 2, 6).astype(np.float32)
    o, lse = call(q, k, v, return_lse=True, **extras)
    o_right, lse_right = reference(spec, q, k, v, **extras)
    assert np.abs(o.astype(np.float64) - o_right).max() < 0.02
    np.testing.assert_allclose(lse, lse_right, atol=2e-5)


def hide(cache: Cache, page: int, seen: list[Any]) -> Cache:
    """Fill keys that no row sees with NaN, and table entries of pages without one with anything."""
    k, v = aligned(cache.k), aligned(cache.v)
    table = None if cache.table is None else cache.table.copy()
    for b, visible in enumerate(seen):
        for n in np.flatnonzero(~visible):
            at = (b, n) if cache.table is None else (cache.table[b, n // page], n % page)
            k[at] = v[at] = np.nan
        if table is None:
            continue
        for i in range(-(-len(visible) // page)):
            if not visible[i * page : (i + 1) * page].any():
                table[b, i] = HUGE_PAGE if i % 2 else -5
    return dataclasses.replace(cache, table=table, k=k, v=v)


@pytest.mark.parametrize(("page_size", "mask"), [(16, "window"), (1, "bands")])
def test_what_no_row_sees_may_hold_anything(page_size: int, mask: str) -> None:
    check_unseen(page_size, mask)


def check_unseen(page_size: int | None, mask: str, target: str = "sm90") -> None:
    """Fill what no row sees with anything: it has no effect, to the bit."""
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=page_size)
    left, first = 20, 0
    if mask == "bands":
        first = 4
        text = f"(kv_idx < {first}) | (q_idx + seqlen_k - seqlen_q - kv_idx <= {left})"
        spec = dataclasses.replace(spec, mask_mod=text)
    else:
        spec = dataclasses.replace(spec, window_left=left)
    lengths, rows = (0, 330, 160), 70
    cache = make_cache(spec, lengths=lengths, seqlen_q=rows, heads=2, heads_kv=1)
    at = [np.arange(n) for n in lengths]
    seen = [(n < first) | (n >= len(n) - rows - left) for n in at]
    hidden = hide(cache, page_size or 0, seen)
    call = kernel(spec, 0, False, target)
    found = [call(c.q, c.k, c.v, return_lse=True, **cache_arguments(c)) for c in (cache, hidden)]
    assert np.array_equal(found[0][0].view(np.uint16), found[1][0].view(np.uint16))
    assert np.array_equal(found[0][1], found[1][1])
    assert_right(spec, cache, *found[0])


def test_wrong_lengths_and_tables_give_no_fault() -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=16)
    cache = make_cache(spec, lengths=(40, 200), seqlen_q=70, heads=2, heads_kv=1)
    call = kernel(spec)
    for lengths, entry in (((-7, 2**31 - 1), HUGE_PAGE), ((40, 9999), -1)):
        table = np.full_like(cache.table, entry)  # type: ignore[arg-type]
        wrong = np.array(lengths, np.int32)
        o = call(cache.q, cache.k, cache.v, cache_seqlens=wrong, block_table=table)
        assert not o.astype(np.float64).any()  # such pages read as zeros
    for k, v, table in (
        (cache.k, cache.v, np.zeros((2, 0), np.int32)),
        (cache.k[:0], cache.v[:0], np.zeros((2, 3), np.int32)),
    ):
        o = call(cache.q, k, v, cache_seqlens=cache.lengths, block_table=table)
        assert not o.astype(np.float64).any()


def test_a_table_may_be_a_slice_of_another() -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=16)
    cache = make_cache(spec, lengths=(40, 200), seqlen_q=70, heads=2, heads_kv=1)
    assert cache.table is not None
    wide = np.full((2, 40), HUGE_PAGE, np.int32)
    wide[:, 3 : 3 + cache.table.shape[1]] = cache.table
    table = wide[:, 3 : 3 + cache.table.shape[1]]
    o, lse = kernel(spec)(
        cache.q, cache.k, cache.v, cache_seqlens=cache.lengths, block_table=table, return_lse=True
    )
    assert_right(spec, cache, o, lse)


def test_which_main_loop_reads_a_cache() -> None:
    chip = find_target("sm90")

    def loop(spec: AttentionSpec, rows: int | None, group: int | None = None) -> str:
        return default_schedule(spec, chip, query_hint=rows, group_hint=group).main_loop

    assert loop(CAUSAL, None) == loop(CAUSAL, SHARED_ROWS - 1) == MainLoop.SPLIT_KV
    assert loop(CAUSAL, SHARED_ROWS) == loop(CAUSAL, PREFILL_ROWS) == MainLoop.WARP_SPECIALISED
    assert loop(CAUSAL, SHARED_ROWS // 4 - 1, 4) == MainLoop.SPLIT_KV
    assert loop(CAUSAL, SHARED_ROWS // 4, 4) == MainLoop.WARP_SPECIALISED
    alibi = dataclasses.replace(CAUSAL, alibi=True)  # reads the head, so heads share no tiles
    assert loop(alibi, SHARED_ROWS // 4, 4) == MainLoop.SPLIT_KV
    assert loop(dataclasses.replace(CAUSAL, varlen=True), None) == MainLoop.WARP_SPECIALISED
    small = dataclasses.replace(CAUSAL, kv_dtype="e4m3")
    assert loop(small, 4096) == MainLoop.WARP_SPECIALISED
    assert loop(small, SHARED_ROWS - 1) == MainLoop.SPLIT_KV


def test_which_heads_share_tiles() -> None:
    chip = find_target("sm90")

    def packs(spec: AttentionSpec, rows: int | None, group: int | None = None) -> bool:
        return default_schedule(spec, chip, query_hint=rows, group_hint=group).pack_heads

    assert packs(CAUSAL, PREFILL_ROWS)
    assert packs(CAUSAL, 200, 4)
    assert not packs(CAUSAL, 128, 4)  # whole tiles
    assert not packs(CAUSAL, PACKED_QUERIES, 4)
    assert not packs(CAUSAL, PREFILL_ROWS, 1)
    packed = dataclasses.replace(CAUSAL, varlen=True)
    assert packs(packed, 1, 4)
    assert not packs(packed, None)
    for change in ({"alibi": True}, {"max_logit": True}, {"score_mod": "score * h"}):
        spec = dataclasses.replace(CAUSAL, **change)
        schedule = default_schedule(spec, chip, query_hint=PREFILL_ROWS, group_hint=4)
        assert not schedule.pack_heads
        with pytest.raises(ScheduleError, match="pack_heads"):
            lower(spec, dataclasses.replace(schedule, pack_heads=True), chip)


def test_classes_of_rows() -> None:
    # rows, heads of a group, query heads of all sequences
    assert class_of_rows(8, 4, 32 * 32) == class_of_rows(64, 1, 128) == SHARED_ROWS
    assert class_of_rows(7, 4, 32 * 32) is None  # a tile has few rows
    assert class_of_rows(64, 1, 32) == SHARED_ROWS  # there are few tiles, whose keys are cut
    assert class_of_rows(15, 4, 32) is None  # a tile has few rows, and units have tiles of 16
    assert class_of_heads(16, 4, 32) == class_of_heads(256, 4, 32) == FEW_HEADS
    assert class_of_heads(512, 4, 32) is class_of_heads(64, 4, 32 * 32) is None
    assert class_of_rows(PREFILL_ROWS, 4, 32 * 32) == PREFILL_ROWS
    assert class_of_rows(128, 4, 32 * 32) == PACKED_QUERIES  # whole tiles
    assert class_of_rows(5000, 1, 1) == PACKED_QUERIES


def test_when_keys_are_cut() -> None:
    chip = find_target("sm90")

    def cuts(rows: int, heads: int | None, **changes: Any) -> bool:
        spec = dataclasses.replace(CAUSAL, **changes)
        hints = {"query_hint": rows, "group_hint": 4, "heads_hint": heads}
        return default_schedule(spec, chip, **hints).split_keys

    assert cuts(256, 32)
    assert cuts(PREFILL_ROWS, FEW_HEADS, page_size=1)
    assert not cuts(512, 32)  # as many tiles as units
    assert not cuts(256, None)
    for changes in ({"varlen": True}, {"batch_invariant": True}):
        assert not cuts(256, 32, **changes)


def test_how_pages_are_copied() -> None:
    chip = find_target("sm90")
    for page_size, how in (
        (None, "bulk"),
        (16, "bulk"),
        (48, "bulk"),
        (24, "gather"),
        (1, "gather"),
    ):
        spec = dataclasses.replace(CAUSAL, page_size=page_size)
        assert default_schedule(spec, chip, query_hint=MANY).copy == how
    schedule = default_schedule(CAUSAL, chip, query_hint=MANY)
    for how, limit in (("gather", "no|none"), ("direct", "shared memory")):
        with pytest.raises(ScheduleError, match=limit):
            lower(CAUSAL, dataclasses.replace(schedule, copy=how), chip)


def test_what_is_refused() -> None:
    spec = dataclasses.replace(CAUSAL, head_dim=64, page_size=16)
    cache = make_cache(spec, lengths=(40, 20), seqlen_q=70, heads=2, heads_kv=1)
    tensors = cache.q, cache.k, cache.v
    call = kernel(spec)
    with pytest.raises(TensorError, match="num_splits"):
        call(*tensors, num_splits=4, **cache_arguments(cache))
    with pytest.raises(TensorError, match="block_table"):
        call(*tensors, cache_seqlens=cache.lengths)
    with pytest.raises(TensorError, match="cache_seqlens"):
        call(*tensors, block_table=cache.table)
    with pytest.raises(TensorError, match="max_pages"):
        call(*tensors, cache_seqlens=cache.lengths, block_table=cache.table[:1])  # type: ignore[index]
    with pytest.raises(TensorError, match="page_size=16"):
        call(cache.q, cache.k[:, :8], cache.v[:, :8], **cache_arguments(cache))
    chip = find_target("sm90")
    small = dataclasses.replace(spec, varlen=True, kv_dtype="e4m3")
    with pytest.raises(ScheduleError, match="widened"):
        lower(small, default_schedule(spec, chip, query_hint=MANY), chip)
    with pytest.raises(ScheduleError, match="main_loop"):
        lower(dataclasses.replace(spec, varlen=True), default_schedule(spec, chip), chip)


# Edits of the emitted file, and what the emulator says of them; "" is a wrong result.
FAULTS = {
    "values of nobody stay": ("clear_unseen(v_tile, seen, n_first); proxy_fence();", "", ("",)),
    "no fence behind the clearing": (
        "n_first); proxy_fence(); warp_sync();",
        "n_first);",
        ("proxy",),
    ),
    "cleared before they land": (
        "mbarrier_wait(smem + V_LANDED, cleared % 2);",
        "",
        ("race",),
    ),
    "a page for every piece": (
        "piece < TILE_PIECES && is_seen(seen, n, PIECE_ROWS)",
        "piece < TILE_PIECES",
        ("out_of_bounds",),
    ),
}


# The same where lanes gather the rows of small pages.
GATHER_FAULTS = {
    "no fence behind the copies": (
        "copy_async_wait<PENDING>(); proxy_fence(); warp_sync();",
        "copy_async_wait<PENDING>(); warp_sync();",
        ("proxy",),
    ),
    "copies handed on before they land": (
        "copy_async_wait<PENDING>(); proxy_fence();",
        "proxy_fence();",
        ("race", "unfinished"),
    ),
    "lanes do not meet before one hands on": (
        "proxy_fence(); warp_sync(); if (thread_index() % 32 == 0) { mbarrier_arrive(full); }",
        "proxy_fence(); if (thread_index() % 32 == 0) { mbarrier_arrive(full); }",
        ("race", "proxy"),
    ),
    "a buffer that is in use": ("wait_empty<STAGES>(empty, steps);", "", ("race", "deadlock")),
    "one warp's share is enough": (
        "mbarrier_init(smem + V_FULL + stage * BARRIER_BYTES, COPY_WARPS);",
        "mbarrier_init(smem + V_FULL + stage * BARRIER_BYTES, 1);",
        ("race", "barrier", "deadlock"),
    ),
    "entries of keys that nobody sees": (
        "key < COPY_KEYS && is_seen(seen, n, 1)",
        "key < COPY_KEYS",
        ("out_of_bounds",),
    ),
    "no swizzle": ("(chunk ^ key % 8) * 16", "chunk * 16", ("",)),
    "pages of the tile before": (
        "found = find_keys(params, tile, seen, (n_tile - 1) * TILE_N);",
        "",
        ("",),
    ),
}


@pytest.mark.parametrize(
    ("page_size", "fault"),
    [(32, fault) for fault in FAULTS] + [(1, fault) for fault in GATHER_FAULTS],
)
def test_planted_faults_are_found(page_size: int, fault: str) -> None:
    # NOTE: sequences have more tiles of keys than a ring has.
    depth, lengths = (64, (90, 200)) if page_size > 1 else (96, (90, 400))
    spec = AttentionSpec(head_dim=depth, page_size=page_size, kv_cache=True)
    cache = make_cache(spec, lengths=lengths, seqlen_q=70, heads=2, heads_kv=1)
    chip = find_target("sm90")
    plan = lower(spec, default_schedule(spec, chip, query_hint=MANY), chip)
    source = emit_source(plan)
    old, new, kinds = (FAULTS if page_size > 1 else GATHER_FAULTS)[fault]
    text = Edit(old=old, new=new).apply(source.text)
    binary = functools.partial(compile_source, with_text(source, text), for_emulator=True)
    assert alarm_of(plan, binary, cache) in kinds
