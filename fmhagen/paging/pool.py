"""Pool: who holds each page.

    free   --take-->   held   --release, no name-->   free
                       held   --release, a name--->   kept   --retain-->   held
    kept   --take, when nothing is free-->   held (the name is forgotten)

A page is held while its count of references is above zero. A kept page is one that nobody holds
but whose contents have a name: it serves a later sequence of the same prefix until its space is
needed. The one that has been kept for the longest time goes first.
"""

from __future__ import annotations

from collections import OrderedDict

from fmhagen.paging.prefix import PrefixIndex


class PagePool:
    """Reference counts of `num_pages` pages, the free ones, and the kept ones by age.

    Attributes:
        num_pages: pages in all.
        references: how many sequences hold each page; read it, do not write it.
        index: names of pages.
        evictions: kept pages that were taken for something else.
    """

    __slots__ = ("_free", "_kept", "evictions", "index", "num_pages", "references")

    def __init__(self, num_pages: int) -> None:
        """Start with every page free."""
        self.num_pages = num_pages
        self.references = [0] * num_pages
        self.index = PrefixIndex()
        self.evictions = 0
        self._free = list(range(num_pages - 1, -1, -1))  # a stack; page 0 goes first
        self._kept: OrderedDict[int, None] = OrderedDict()  # the oldest first

    @property
    def num_free(self) -> int:
        """Pages that hold nothing."""
        return len(self._free)

    @property
    def num_kept(self) -> int:
        """Pages that nobody holds and that have a name."""
        return len(self._kept)

    @property
    def num_available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._kept)

    def take(self) -> int:
        """Return a page with one reference and no name; there must be one available."""
        if self._free:
            page = self._free.pop()
        else:
            page, _ = self._kept.popitem(last=False)
            self.index.forget(page)
            self.evictions += 1
        self.references[page] = 1
        return page

    def retain(self, page: int) -> None:
        """Add a reference to a page that is held or kept."""
        if not self.references[page]:
            del self._kept[page]
        self.references[page] += 1

    def release(self, page: int) -> None:
        """Take a reference from a held page; the last one frees it, or keeps it by its name."""
        self.references[page] -= 1
        if self.references[page]:
            return
        if page in self.index:
            self._kept[page] = None
        else:
            self._free.append(page)

    def forget_kept(self) -> int:
        """Free every kept page and return how many there were."""
        count = len(self._kept)
        for page in self._kept:
            self.index.forget(page)
            self._free.append(page)
        self._kept.clear()
        return count
