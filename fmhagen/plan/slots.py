"""A slot table: a step of a main loop as data, printed line by line.

A slot is one matrix instruction and what a wave issues while the matrix core works on it.
"""

from __future__ import annotations

from dataclasses import dataclass

ISSUE_CLK = 4  # of the vector port, which a matrix instruction's issue takes


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixForm:
    """A matrix instruction, and what its shape makes of a wave of 32 queries.

    Attributes:
        rows: of its accumulator, and columns.
        depth: of its product.
        clk: of the matrix core.
    """

    rows: int
    depth: int
    clk: int

    @property
    def name(self) -> str:
        """The shape, as in the instruction's name."""
        return f"{self.rows}x{self.rows}x{self.depth}"

    @property
    def lane_rows(self) -> int:
        """Query rows of a lane; parts of 32 rows of K or of V^T, each an operand of its own."""
        return 32 // self.rows

    @property
    def span(self) -> int:
        """Keys or depths of which the lanes of a row hold eight each: one operand from LDS."""
        return 2 * self.depth

    @property
    def uses(self) -> int:
        """Matrix instructions that one fragment from LDS is an operand of."""
        return 2 * self.lane_rows

    @property
    def slot_clk(self) -> int:
        """Clocks of vector work that one matrix instruction hides."""
        return self.clk - ISSUE_CLK


FORMS = {
    form.name: form
    for form in (MatrixForm(rows=32, depth=8, clk=32), MatrixForm(rows=16, depth=16, clk=16))
}


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
        earliest: first slot in which it may stand, if later than others of its kind.
    """

    call: str
    arguments: tuple[str, ...] = ()
    result: str = ""
    clk: int = 0
    is_memory: bool = False
    latest: int = 0
    earliest: int = 0

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
        slot_clk: clocks of vector work that a slot's matrix instruction hides.
        softmax: where P is made in a phase of its own, that phase's atoms.
    """

    score_slots: tuple[Slot, ...]
    value_slots: tuple[Slot, ...]
    fragments: int
    ahead: tuple[Atom, ...]
    slot_clk: int
    softmax: tuple[Atom, ...] = ()

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All slots of the step."""
        return self.score_slots + self.value_slots

    @property
    def overfull(self) -> tuple[int, ...]:
        """Slots whose vector work is longer than the matrix instruction hides."""
        return tuple(i for i, slot in enumerate(self.slots) if slot.vector_clk > self.slot_clk)
