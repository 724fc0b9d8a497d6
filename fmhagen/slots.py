"""A slot table: a step of a main loop as data, printed line by line.

A slot is one matrix instruction and what a wave issues while the matrix core works on it.
"""

from __future__ import annotations

from dataclasses import dataclass

MATRIX_CLK = 32  # one 32 x 32 x 8 matrix instruction
ISSUE_CLK = 4  # of these, the vector port is taken by its issue
SLOT_CLK = MATRIX_CLK - ISSUE_CLK


@dataclass(frozen=True, slots=True, kw_only=True)
class Atom:
    """One line of a slot: a call, what it costs and when it may stand.

    Attributes:
        call: function called.
        arguments: its arguments.
        result: what the result is assigned to, or "".
        clk: clocks of the vector port.
        is_memory: whether it is a memory operation.
        latest: last slot in which it may stand.
    """

    call: str
    arguments: tuple[str, ...] = ()
    result: str = ""
    clk: int = 0
    is_memory: bool = False
    latest: int = 0

    @property
    def statement(self) -> str:
        """The line as C++."""
        assigned = f"{self.result} = " if self.result else ""
        return f"{assigned}{self.call}({', '.join(self.arguments)});"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One matrix instruction and the atoms beside it, in the order in which they are issued."""

    matrix: Atom
    atoms: tuple[Atom, ...]

    @property
    def vector_clk(self) -> int:
        """Clocks of the vector port beside the matrix instruction's issue."""
        return sum(atom.clk for atom in self.atoms)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotTable:
    """One step.

    Attributes:
        score_slots: slots of S = Q K^T.
        value_slots: slots of O = O + P V.
        fragments: registers of the ring, four 32-bit ones each.
        ahead: atoms before the first step: the reads that a step expects to be under way.
    """

    score_slots: tuple[Slot, ...]
    value_slots: tuple[Slot, ...]
    fragments: int
    ahead: tuple[Atom, ...]

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots of the step."""
        return self.score_slots + self.value_slots

    @property
    def overfull(self) -> tuple[int, ...]:
        """Slots whose vector work is longer than the matrix instruction hides."""
        return tuple(i for i, slot in enumerate(self.slots) if slot.vector_clk > SLOT_CLK)
