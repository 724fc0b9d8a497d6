"""The paged cache against a naive model: thousands of drawn histories, every token compared.

A failure prints the seed of its history and what was done: `play(seed)` plays it again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from paging_model import Full, Model

from fmhagen import PagedKVCache
from fmhagen.errors import OutOfPagesError, PagingError

HISTORIES = 10_000
CHUNKS = 20
OPERATIONS = 24
POISON = -1


class CopyFailed(Exception):
    """A copy that the test made fail."""


class Store:
    """The slots of a cache as lists: one number a token; may fail to copy."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.pages = [[POISON] * page_size for _ in range(num_pages)]
        self.fails = False

    def copy_pages(self, sources: list[int], destinations: list[int]) -> None:
        assert len(set(destinations)) == len(destinations)
        assert not set(sources) & set(destinations)
        for source, destination in zip(sources, destinations, strict=True):
            if self.fails:
                self.pages[destination] = [POISON] * self.page_size
                raise CopyFailed
            self.pages[destination] = self.pages[source].copy()


class History:
    """One cache and its model, and what was done to both."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        num_pages, page_size = draw.randint(1, 14), draw.randint(1, 5)
        share = draw.random() < 0.9
        self.store = Store(num_pages, page_size)
        self.cache = PagedKVCache(storage=self.store, share_prefixes=share)
        self.model = Model(num_pages, page_size, share=share)
        self.vocabulary = draw.randint(1, 3)
        self.prompts: list[list[int | None]] = [[]]
        self.trace = [f"{num_pages} pages of {page_size}, share={share}"]

    def tokens(self, most: int) -> list[int | None]:
        """Draw tokens of which whole prefixes come again; sometimes their ids are not known."""
        number = self.draw.randint(0, most)
        if self.draw.random() < 0.1:
            return [None] * number
        return [self.draw.randrange(self.vocabulary) for _ in range(number)]

    def prompt(self) -> list[int | None]:
        """Draw a prompt; half of them begin as an earlier one, or as a sequence of now."""
        tokens = self.tokens(3 * self.store.page_size + 2)
        if None not in tokens and self.draw.random() < 0.5:
            now = [sequence.tokens for sequence in self.model.sequences.values()]
            known = [old for old in self.prompts + now if None not in old]
            tokens = [*self.draw.choice(known), *tokens[: self.store.page_size]]
        self.prompts.append(tokens)
        return tokens

    def some(self) -> int:
        return self.draw.choice(list(self.model.sequences))

    def pages(self) -> dict[int, tuple[int, ...]]:
        return {number: self.cache.pages(number) for number in self.cache.sequences}

    def written(self, slots: np.ndarray, number: int, count: int, before: set[int]) -> None:
        """Write the last `count` tokens of a sequence; pages that are new hold garbage first."""
        size = self.store.page_size
        contents = self.model.sequences[number].contents
        for page in self.cache.pages(number)[-(-(len(contents) - count) // size) :]:
            assert page not in before
            self.store.pages[page] = [POISON] * size
        assert len(slots) == count
        for slot, value in zip(slots.tolist(), contents[len(contents) - count :], strict=True):
            self.store.pages[slot // size][slot % size] = value

    # --- operations ---

    def allocate(self) -> None:
        tokens, salt = self.prompt(), self.draw.choice((b"", b"", b"a"))
        self.trace.append(f"allocate({tokens}, salt={salt!r})")
        known = None not in tokens
        before = self.pages()
        arguments = {"tokens": tokens} if known else {"count": len(tokens)}
        try:
            new = self.cache.allocate(**arguments, salt=salt)  # type: ignore[arg-type]
        except OutOfPagesError:
            with pytest.raises(Full):
                self.model.allocate(-1, tokens, salt)
            return
        assert new.cached == self.model.allocate(new.sequence, tokens, salt)
        held = {page for pages in before.values() for page in pages}
        self.written(new.slots, new.sequence, len(tokens) - new.cached, held)

    def append(self) -> None:
        numbers = list(self.model.sequences)
        self.draw.shuffle(numbers)
        numbers = numbers[: self.draw.randint(1, len(numbers))]
        lists = [self.tokens(self.draw.choice((1, 1, 2, 7))) for _ in numbers]
        self.store.fails = self.draw.random() < 0.1
        self.trace.append(f"append_batch({numbers}, {lists}, fails={self.store.fails})")
        held = {page for pages in self.pages().values() for page in pages}
        counts = [len(tokens) for tokens in lists]
        batch = [self.model.sequences[number] for number in numbers]
        assert self.cache.pages_needed(numbers, counts) == self.model.needed(batch, counts)[0]
        try:
            done = self.give(numbers, lists)
        except OutOfPagesError:
            with pytest.raises(Full):
                self.model.append(numbers, lists, copy_fails=False)
            return
        except CopyFailed:
            assert self.model.append(numbers, lists, copy_fails=True) == -1
            return
        assert self.model.append(numbers, lists, copy_fails=False) == len(done.copies)
        new = {destination for _, destination in done.copies}
        assert {source for source, _ in done.copies} <= held
        assert not new & held
        first = 0
        for number, tokens in zip(numbers, lists, strict=True):
            slots = done.slots[first : first + len(tokens)]
            self.written(slots, number, len(tokens), held | new)
            first += len(tokens)

    def give(self, numbers: list[int], lists: list[list[int | None]]):  # noqa: ANN201
        """Append by whichever call takes such tokens."""
        unknown = any(None in tokens for tokens in lists)
        if unknown:
            for tokens in lists:
                tokens[:] = [None] * len(tokens)
            counts = [len(tokens) for tokens in lists]
            if len(numbers) == 1:
                return self.cache.append(numbers[0], count=counts[0])
            return self.cache.append_batch(numbers, counts=counts)
        if len(numbers) == 1:
            return self.cache.append(numbers[0], lists[0])
        if all(len(tokens) == 1 for tokens in lists):
            return self.cache.append_batch(numbers, [tokens[0] for tokens in lists])
        return self.cache.append_batch(numbers, lists)

    def commit(self) -> None:
        numbers = None if self.draw.random() < 0.6 else [self.some()]
        self.trace.append(f"commit({numbers})")
        wanted = self.model.commit(sorted(self.model.sequences) if numbers is None else numbers)
        assert self.cache.commit(numbers) == wanted

    def fork(self) -> None:
        parent, count = self.some(), self.draw.randint(0, 3)
        self.trace.append(f"fork({parent}, {count})")
        for child in self.cache.fork(parent, count):
            self.model.fork(parent, child)

    def truncate(self) -> None:
        number = self.some()
        length = self.draw.randint(0, len(self.model.sequences[number].tokens))
        self.trace.append(f"truncate({number}, {length})")
        self.cache.truncate(number, length)
        self.model.truncate(number, length)

    def free(self) -> None:
        number = self.some()
        self.trace.append(f"free({number})")
        self.cache.free(number)
        self.model.end(number)
        with pytest.raises(PagingError):
            self.cache.length(number)

    def drop(self) -> None:
        self.trace.append("drop_prefixes()")
        assert self.cache.drop_prefixes() == self.model.drop()

    # --- checks ---

    def step(self) -> None:
        operations: list[tuple[Callable[[], None], int]] = [(self.allocate, 4), (self.drop, 1)]
        if self.model.sequences:
            operations += [(self.append, 8), (self.commit, 5), (self.fork, 2)]
            operations += [(self.truncate, 2), (self.free, 3)]
        calls, weights = zip(*operations, strict=True)
        self.draw.choices(calls, weights)[0]()

    def check(self) -> None:
        """Compare all that can be seen: tokens, sharing, counts, tables."""
        cache, model, size = self.cache, self.model, self.store.page_size
        assert cache.sequences == tuple(model.sequences)
        pages = self.pages()
        twins: dict[int, int] = {}
        for number, sequence in model.sequences.items():
            assert cache.length(number) == len(sequence.tokens)
            real = pages[number]
            found = [slot for page in real for slot in self.store.pages[page]]
            assert found[: len(sequence.contents)] == sequence.contents
            for page, twin in zip(real, sequence.pages, strict=True):
                assert twins.setdefault(id(twin), page) == page
        assert len(set(twins.values())) == len(twins)  # one page, one twin
        assert cache.num_available == model.available()
        sequences = model.sequences.values()
        full = min((len(s.tokens) // size for s in sequences), default=0)
        same = [len({id(s.pages[i]) for s in sequences}) == 1 for i in range(full)]
        assert cache.shared_prefix(cache.sequences) == (*same, False).index(False) * size
        usage = cache.usage()
        held = model.held()
        assert usage.pages_held == len(held)
        assert usage.pages_kept == len(model.kept)
        assert usage.pages_free == model.free()
        assert usage.pages_shared == sum(model.holders(page) > 1 for page in held)
        assert usage.tokens == sum(len(s.tokens) for s in model.sequences.values())
        used = {
            (id(s.pages[i // size]), i % size)
            for s in model.sequences.values()
            for i in range(len(s.tokens))
        }
        assert usage.slots_used == len(used)

    def check_tables(self) -> None:
        numbers = list(self.model.sequences)
        self.draw.shuffle(numbers)
        pages = [self.cache.pages(number) for number in numbers]
        lengths = [self.cache.length(number) for number in numbers]
        tables = self.cache.tables(numbers)
        assert tables.block_table.dtype == tables.cache_seqlens.dtype == np.int32
        width = tables.block_table.shape[1]
        wanted = [[*row, *[0] * (width - len(row))] for row in pages]
        assert tables.block_table.tolist() == wanted
        assert tables.cache_seqlens.tolist() == lengths
        csr = self.cache.csr(numbers)
        ends = csr.indptr.tolist()
        assert [tuple(csr.indices[a:b].tolist()) for a, b in pairwise(ends)] == (pages)
        size = self.store.page_size
        assert csr.last_page_len.tolist() == [(n - 1) % size + 1 if n else 0 for n in lengths]

    def end(self) -> None:
        """Nothing is leaked: with all sequences ended every page is free or kept, then free."""
        for number in list(self.model.sequences):
            self.cache.free(number)
            self.model.end(number)
        self.check()
        assert self.cache.num_available == self.cache.num_pages
        self.cache.drop_prefixes()
        assert self.cache.usage().pages_free == self.cache.num_pages


def play(seed: int) -> None:
    """Play one history, and compare after every operation."""
    history = History(seed)
    try:
        for _ in range(OPERATIONS):
            history.step()
            history.check()
        history.check_tables()
        history.end()
    except BaseException as error:
        error.add_note(f"seed {seed}:\n" + "\n".join(history.trace))
        raise


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_drawn_histories_agree_with_the_model(chunk: int) -> None:
    for seed in range(chunk, HISTORIES, CHUNKS):
        play(seed)
