"""Places: where new tokens go, and what is asked of whoever owns the tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


class CopiesPages(Protocol):
    """What the manager asks of a storage; `PageStorage` is one."""

    @property
    def num_pages(self) -> int:
        """Pages that it has."""

    @property
    def page_size(self) -> int:
        """Slots a page."""

    def copy_pages(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy whole pages, in every layer; no page is in both lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Where new tokens go.

    Attributes:
        slots: int64, page * page_size + offset of each new token, in the order given; its keys and
            values are written there.
        copies: (source, destination) pages that were copied on write, or, for a cache without a
            storage, that the caller must copy before it writes.
    """

    slots: npt.NDArray[np.int64]
    copies: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A new sequence.

    Attributes:
        sequence: its number, never given again.
        cached: how many of its first tokens have their keys and values in the cache already.
        slots: int64, where the keys and values of the others go; see `Appended.slots`.
    """

    sequence: int
    cached: int
    slots: npt.NDArray[np.int64]
