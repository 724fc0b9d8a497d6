"""The slot table of a step in two phases: products alone, then the softmax of the next unit alone.

Two groups of waves run it half a step apart, so that one group's products stand beside the other's
softmax. A slot here is a matrix instruction and what it takes to feed the ones behind it.
"""

from __future__ import annotations

from fmhagen.lowering.slot_draft import Draft, Shape
from fmhagen.lowering.slot_score import RAISE_CLK, VECTOR_CLK
from fmhagen.lowering.slot_softmax import (
    raise_atom,
    scale_atom,
    softmax_clk,
    take_atom,
)
from fmhagen.lowering.slots import fragment_read, matrix_atoms
from fmhagen.plan.slots import Atom, Slot, SlotTable

# From the barrier that ends the phase to its last matrix instruction: meanwhile the other group's
# first operands come from LDS. Where the softmax is about as long as the products, less is better.
SHORT_HANDOVER_CLK, LONG_HANDOVER_CLK = 5 * 32, 7 * 32
STAGING_CLK = 10 * 32  # of the softmax's phase, for what it issues besides

# Vector work behind each of a pair's exponentials, so that matrix instructions fit in between.
PACE_CLK = (12, 8)


def softmax_atoms(shape: Shape, products_clk: int) -> tuple[Atom, ...]:
    """Return P = exp2(..) of a unit, pair by pair, beside `products_clk` of the other group's work.

    An exponential holds the vector port for as long as four other instructions, and a matrix
    instruction waits for the port. Where there is time, exponentials therefore stand apart, with
    idle issues if need be; else the phase is to be short, and they stand in twos.
    """
    pairs = shape.unit // 4
    taking = max(PACE_CLK[0], VECTOR_CLK + shape.round_clk)
    paced = pairs * (2 * RAISE_CLK + taking + PACE_CLK[1] + shape.score_clk)
    atoms = [scale_atom(shape, 0, "s_next")]
    if paced + STAGING_CLK + LONG_HANDOVER_CLK > products_clk:
        for i in range(pairs):
            atoms += [scale_atom(shape, i + 1, "s_next")] if i + 1 < pairs else []
            atoms += [raise_atom(i, 0), raise_atom(i, 1), take_atom(shape, i)]
        return tuple(atoms)
    for i in range(pairs):
        first = [take_atom(shape, i - 1)] if i else []
        second = [scale_atom(shape, i + 1, "s_next")] if i + 1 < pairs else []
        for half, beside in enumerate((first, second)):
            idle = (PACE_CLK[half] - sum(atom.clk for atom in beside)) // VECTOR_CLK
            atoms += [raise_atom(i, half), *beside]
            atoms += [Atom(call=f"idle<{idle}>")] if idle > 0 else []
    return (*atoms, take_atom(shape, pairs - 1))


def make_turns_table(shape: Shape) -> SlotTable:
    """Place the reads of LDS and the barrier; a pure function of the shape.

    Raises:
        ValueError: the table fails its check.
    """
    from fmhagen.lowering.slot_check import check_turns_table

    length = shape.prefetch + 1
    count = shape.key_fragments + shape.value_fragments
    ring = [i % length for i in range(count)]
    matrix = matrix_atoms(shape, ring)
    total, uses = len(matrix), shape.form.uses
    draft = Draft(atoms=[[] for _ in range(total)])
    for i in range(shape.prefetch, count):
        # Its register is free from the last use of the fragment that is in it on.
        slot = uses * (i - shape.prefetch) - 1 if i > shape.prefetch else 0
        draft.put(slot, fragment_read(shape, i, ring[i], following=False))
    last_read = max((i for i, atoms in enumerate(draft.atoms) if atoms), default=0)
    is_tight = softmax_clk(shape) + STAGING_CLK > total * shape.form.clk
    lead = SHORT_HANDOVER_CLK if is_tight else LONG_HANDOVER_CLK
    handover = max(last_read + 1, total - lead // shape.form.clk)
    draft.put(min(handover, total - 1), Atom(call="wait_lds"))
    draft.put(min(handover, total - 1), Atom(call="block_barrier"))
    slots = tuple(Slot(matrix=matrix[i], atoms=tuple(draft.atoms[i])) for i in range(total))
    table = SlotTable(
        score_slots=slots[: uses * shape.key_fragments],
        value_slots=slots[uses * shape.key_fragments :],
        fragments=min(length, count),
        ahead=tuple(
            fragment_read(shape, i, ring[i], following=False)
            for i in range(min(shape.prefetch, count))
        ),
        slot_clk=shape.form.slot_clk,
        softmax=softmax_atoms(shape, total * shape.form.clk),
    )
    check_turns_table(shape, table)
    return table
