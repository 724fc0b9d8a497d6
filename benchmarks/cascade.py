"""Decoding with a shared prefix: one kernel over all keys beside the two of a cascade, in us.

Run with `python benchmarks/cascade.py` on a machine with a GPU and PyTorch. Each figure is the
median time of one call among many in a replayed graph, with caches that are too large for L2 where
the shape allows it; both results are compared before they are timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

from fmhagen import AttentionSpec, PagedKVCache, PageStorage, compile_kernel
from fmhagen.cascade import CascadeKernel

HEADS, HEADS_KV, DEPTH, PAGE_SIZE = 32, 8, 128, 16
OWN = 256  # tokens of each sequence behind the prefix


def graphed_us(torch: Any, call: Callable[[], object], calls: int, replays: int) -> float:
    """Return the time of a call in a graph of several, microseconds."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def compare(torch: Any, batch: int, prefix: int, replays: int) -> tuple[float, float]:
    """Return microseconds of one kernel and of a cascade."""
    pages = prefix // PAGE_SIZE + batch * (OWN // PAGE_SIZE + 2)
    storage = PageStorage.allocate(
        lambda shape: torch.randn(shape, device="cuda").to(torch.bfloat16),
        num_pages=pages,
        page_size=PAGE_SIZE,
        heads_kv=HEADS_KV,
        head_dim=DEPTH,
    )
    cache = PagedKVCache(storage=storage)
    first = cache.allocate(count=prefix).sequence
    sequences = (first, *cache.fork(first, batch - 1))
    cache.append_batch(sequences, counts=OWN)
    q = torch.randn(batch, 1, HEADS, DEPTH, device="cuda").to(torch.bfloat16)
    spec = AttentionSpec(causal=True, page_size=PAGE_SIZE)
    plain, cascade = compile_kernel(spec), CascadeKernel(spec)
    tables = cache.tables(sequences, like=q)
    split = cache.cascade(sequences, like=q)
    k, v = storage.k(), storage.v()

    def one() -> Any:
        lengths, pages = tables.cache_seqlens, tables.block_table
        return plain(q, k, v, block_table=pages, cache_seqlens=lengths)

    def two() -> Any:
        return cascade(q, k, v, split)

    difference = (one().float() - two().float()).abs().max().item()
    assert difference < 2e-2, difference
    return graphed_us(torch, one, 20, replays), graphed_us(torch, two, 20, replays)


def main() -> None:
    """Print a table: batch and prefix, both times, their ratio."""
    import torch

    parser = argparse.ArgumentParser(description="Time decoding with a shared prefix.")
    parser.add_argument("--replays", type=int, default=9)
    replays = parser.parse_args().replays
    print(
        f"| batch | prefix | one kernel | cascade | ratio | ({HEADS}/{HEADS_KV}, page {PAGE_SIZE})"
    )
    print("|---|---|---|---|---|")
    for batch in (4, 16, 64, 256):
        for prefix in (1024, 8192, 32768):
            one, two = compare(torch, batch, prefix, replays)
            print(f"| {batch} | {prefix} | {one:.1f} | {two:.1f} | {one / two:.2f} |", flush=True)


if __name__ == "__main__":
    main()
