"""Emulator records: what a run of the emulator is given and what it counts."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class Checks(enum.IntFlag):
    """What a run checks besides bounds, alignment, barriers and convergence.

    RACES finds unordered accesses to shared memory, POISON reads of what nobody wrote, BANKS
    counts bank conflicts; ADVERSARIAL lets asynchronous operations take effect at seeded moments
    (else at once), PREEMPTION interleaves warps at barrier operations.
    """

    NONE = 0
    RACES = 1
    POISON = 2
    BANKS = 4
    ADVERSARIAL = 8
    PREEMPTION = 16
    ALL = 31


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A piece of host memory that the kernel may touch.

    Attributes:
        address, nbytes, name: where it lies, and what messages call it.
        writable: the kernel may write it.
        written_once: it is filled with NaN patterns before the run; a second write of one of its
            bytes, or a read of a byte that nobody wrote, is a fault.
        is_kept: of a `written_once` buffer: what is there stays, and may be read.
        settled: a dependent launch may read it before it waits for the kernel ahead.
    """

    address: int
    nbytes: int
    name: str
    writable: bool = False
    written_once: bool = False
    is_kept: bool = False
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A named piece of shared memory, for messages: a tile, a stage, a barrier."""

    offset_bytes: int
    nbytes: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BankUse:
    """How one kind of access went through the banks of shared memory, in warp instructions."""

    name: str
    accesses: int
    wavefronts: int
    extra_wavefronts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferUse:
    """What a run did with one buffer; `unwritten_bytes` are those of a written_once buffer."""

    name: str
    read_bytes: int
    written_bytes: int
    unwritten_bytes: int
    first_unwritten_byte: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run without a fault counted.

    `instructions` counts warp-wide instructions once a warp and the others once a thread.
    """

    instructions: Mapping[str, int]
    banks: tuple[BankUse, ...]
    buffers: tuple[BufferUse, ...]
    steps: int
    switches: int
    agents: int

    @property
    def extra_wavefronts(self) -> int:
        """Bank conflicts of all kinds of access together."""
        return sum(use.extra_wavefronts for use in self.banks)
