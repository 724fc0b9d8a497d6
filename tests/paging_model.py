"""A naive model of the paged cache: whole histories kept, everything counted by looking."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Page:
    """A page: an object of its own; who holds it is found by looking at all sequences."""

    name: tuple[object, ...] | None = None


@dataclass(eq=False)
class Sequence:
    """Everything that a sequence ever was told, and its pages."""

    salt: bytes
    tokens: list[int | None] = field(default_factory=list)  # None: an unknown id
    contents: list[int] = field(default_factory=list)  # what is written for each token
    pages: list[Page] = field(default_factory=list)
    committed: int = 0  # tokens


class Full(Exception):
    """Too few pages; nothing has been changed."""


class Model:
    """The rules, one after another, with no cleverness."""

    def __init__(self, num_pages: int, size: int, *, share: bool) -> None:
        self.num_pages, self.size, self.share = num_pages, size, share
        self.sequences: dict[int, Sequence] = {}
        self.kept: list[Page] = []  # the oldest first
        self.serial = 0

    # --- looking ---

    def holders(self, page: Page) -> int:
        return sum(page in sequence.pages for sequence in self.sequences.values())

    def held(self) -> list[Page]:
        return list({id(p): p for s in self.sequences.values() for p in s.pages}.values())

    def free(self) -> int:
        return self.num_pages - len(self.held()) - len(self.kept)

    def available(self) -> int:
        return self.free() + len(self.kept)

    def known(self, name: tuple[object, ...]) -> Page | None:
        return next((p for p in (*self.held(), *self.kept) if p.name == name), None)

    def full_pages(self, sequence: Sequence) -> int:
        """Return how many pages are full of tokens with known ids."""
        ids = sequence.tokens
        known = ids.index(None) if None in ids else len(ids)
        return known // self.size

    def name(self, salt: bytes, tokens: list[int | None], page: int) -> tuple[object, ...]:
        return (salt, *tokens[: (page + 1) * self.size])

    def written_partly(self, sequence: Sequence) -> bool:
        return len(sequence.tokens) % self.size != 0

    # --- changing ---

    def take(self, sequence: Sequence) -> None:
        """Add a page to a sequence."""
        if not self.free():
            self.evict()
        sequence.pages.append(Page())

    def evict(self) -> None:
        self.kept.pop(0).name = None

    def release(self, sequence: Sequence) -> None:
        """Drop the last page of a sequence."""
        page = sequence.pages.pop()
        if not self.holders(page) and page.name is not None:
            self.kept.append(page)

    def allocate(self, number: int, tokens: list[int | None], salt: bytes) -> int:
        """Return how many tokens were there already."""
        hits: list[Page] = []
        if self.share and None not in tokens:
            for i in range(max(0, len(tokens) - 1) // self.size):
                page = self.known(self.name(salt, tokens, i))
                if page is None:
                    break
                hits.append(page)
        needed = -(-len(tokens) // self.size) - len(hits)
        if needed > self.free() + sum(page not in hits for page in self.kept):
            raise Full
        cached = len(hits) * self.size
        sequence = Sequence(salt, committed=cached)
        self.sequences[number] = sequence
        self.kept = [page for page in self.kept if page not in hits]
        sequence.pages = hits
        self.write(sequence, tokens[:cached], shared=True)
        self.write(sequence, tokens[cached:])
        return cached

    def needed(self, batch: list[Sequence], counts: list[int]) -> tuple[int, list[Sequence]]:
        """Return the pages that appends take in all, and who copies."""
        copying: list[Sequence] = []
        total = 0
        for sequence, count in zip(batch, counts, strict=True):
            if count and self.written_partly(sequence):
                page = sequence.pages[-1]
                gone = sum(other.pages[-1] is page for other in copying)
                if self.holders(page) - gone > 1:
                    copying.append(sequence)
            after = len(sequence.tokens) + count
            total += -(-after // self.size) - len(sequence.pages)
        return total + len(copying), copying

    def append(self, numbers: list[int], lists: list[list[int | None]], *, copy_fails: bool) -> int:
        """Return how many pages were copied, or -1 if the copy failed."""
        batch = [self.sequences[number] for number in numbers]
        total, copying = self.needed(batch, [len(tokens) for tokens in lists])
        if total > self.available():
            raise Full
        if copying and copy_fails:
            for _ in range(len(copying) - self.free()):
                self.evict()
            return -1
        for sequence in copying:
            if not self.free():
                self.evict()
            sequence.pages[-1] = Page()
        for sequence, tokens in zip(batch, lists, strict=True):
            if tokens and self.written_partly(sequence):
                sequence.pages[-1].name = None
            self.write(sequence, tokens)
        return len(copying)

    def write(self, sequence: Sequence, tokens: list[int | None], *, shared: bool = False) -> None:
        """Add tokens; what is written depends on all before and on the token."""
        for token in tokens:
            if not shared and len(sequence.tokens) == len(sequence.pages) * self.size:
                self.take(sequence)
            self.serial += 1
            before = sequence.contents[-1] if sequence.contents else hash(sequence.salt)
            unknown = ("unknown", self.serial)
            sequence.contents.append(hash((before, unknown if token is None else token)))
            sequence.tokens.append(token)

    def commit(self, numbers: list[int]) -> int:
        """Return how many pages became known."""
        count = 0
        for number in numbers:
            sequence = self.sequences[number]
            if not self.share:
                continue
            for i in range(sequence.committed // self.size, self.full_pages(sequence)):
                name = self.name(sequence.salt, sequence.tokens, i)
                if self.known(name) is None and sequence.pages[i].name is None:
                    sequence.pages[i].name = name
                    count += 1
            sequence.committed = max(sequence.committed, self.full_pages(sequence) * self.size)
        return count

    def fork(self, parent: int, child: int) -> None:
        old = self.sequences[parent]
        self.sequences[child] = Sequence(
            old.salt, old.tokens[:], old.contents[:], old.pages[:], old.committed
        )

    def truncate(self, number: int, length: int) -> None:
        sequence = self.sequences[number]
        while len(sequence.pages) > -(-length // self.size):
            self.release(sequence)
        del sequence.tokens[length:]
        del sequence.contents[length:]
        sequence.committed = min(sequence.committed, length // self.size * self.size)

    def end(self, number: int) -> None:
        self.truncate(number, 0)
        del self.sequences[number]

    def drop(self) -> int:
        count = len(self.kept)
        for page in self.kept:
            page.name = None
        self.kept = []
        return count
