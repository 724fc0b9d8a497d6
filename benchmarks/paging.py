"""What `PagedKVCache` itself costs on the host: microseconds of its operations.

Run with `python benchmarks/paging.py`; it needs no device. Each figure is the median of the
processor time of many calls in one thread, so that other processes hardly matter.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable

from fmhagen import PagedKVCache

BATCH = 256
PROMPT = 1000


def median_us(call: Callable[[], object], repeats: int) -> float:
    """Return the median processor time of a call in microseconds."""
    times = []
    for _ in range(repeats):
        started = time.thread_time_ns()
        call()
        times.append(time.thread_time_ns() - started)
    return statistics.median(times) / 1e3


def decoding(page_size: int, repeats: int) -> dict[str, float]:
    """Time a step of a batch of 256 sequences that grow by one token."""
    draw = random.Random(0)
    pages = BATCH * ((PROMPT + 2 * repeats) // page_size + 2)
    cache = PagedKVCache(num_pages=pages, page_size=page_size)
    batch = [
        cache.allocate([draw.randrange(100_000) for _ in range(PROMPT - i % 64)]).sequence
        for i in range(BATCH)
    ]
    cache.commit()
    tokens = list(range(BATCH))
    return {
        "append_batch, 256 ids": median_us(lambda: cache.append_batch(batch, tokens), repeats),
        "append_batch and commit": median_us(
            lambda: (cache.append_batch(batch, tokens), cache.commit()), repeats
        ),
        "tables": median_us(lambda: cache.tables(batch), repeats),
        "csr": median_us(lambda: cache.csr(batch), repeats),
    }


def sequences(page_size: int, repeats: int) -> dict[str, float]:
    """Time what happens once a request: a prompt of 1000 tokens comes, is sampled, goes."""
    draw = random.Random(0)
    cache = PagedKVCache(num_pages=8 * (PROMPT // page_size + 2), page_size=page_size)

    def prompt() -> list[int]:
        return [draw.randrange(100_000) for _ in range(PROMPT)]

    def come_and_go(tokens: list[int]) -> None:
        new = cache.allocate(tokens).sequence
        cache.commit()
        cache.free(new)

    known = prompt()
    come_and_go(known)
    times = {"allocate, commit, free; known": median_us(lambda: come_and_go(known), repeats)}
    fresh = iter([prompt() for _ in range(repeats)])
    times["allocate, commit, free; new"] = median_us(lambda: come_and_go(next(fresh)), repeats)
    parent = cache.allocate(known).sequence

    def sample() -> None:
        for child in cache.fork(parent, 8):
            cache.free(child)

    times["fork 8, free 8"] = median_us(sample, repeats)
    return times


def main() -> None:
    """Print a table: operations down, page sizes across."""
    parser = argparse.ArgumentParser(description="Time the paged cache's own work.")
    parser.add_argument("--repeats", type=int, default=300)
    repeats = parser.parse_args().repeats
    sizes = (1, 16, 64)
    columns = [decoding(size, repeats) | sequences(size, repeats) for size in sizes]
    print("| us | " + " | ".join(f"page {size}" for size in sizes) + " |")
    print("|---|" + "---|" * len(sizes))
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(f"{column[name]:.0f}" for column in columns) + " |")


if __name__ == "__main__":
    main()
