"""The slot table of a software-pipelined step: what stands beside each matrix instruction.

A step computes S of the next unit of keys while it raises this unit's scores to P (first phase),
then adds P V of this unit while it takes the maximum of the next one's scores (second phase). A
slot is one matrix instruction and what a wave issues while the matrix core works on it: at most
`slot_clk` of vector work and about one memory operation. The table is made here and printed by the
template as it is, since no compiler finds this order by itself.

Reads of LDS run `prefetch` fragments ahead of the matrix instructions that use them, through a ring
of registers, and over the end of a step: the first fragments of a step are read in the step before.
"""

from __future__ import annotations

import itertools

from fmhagen.lowering.slot_draft import Draft, Shape
from fmhagen.lowering.slot_pages import place_paged_loads
from fmhagen.lowering.slot_score import place_fetches
from fmhagen.lowering.slot_softmax import place_vector_work
from fmhagen.lowering.slot_staging import place_staging
from fmhagen.plan.slots import Atom, Slot, SlotTable

LINE_ELEMENTS = 64  # of a row of K, in 128 bytes: all banks once
BARRIER_LEAD_CLK = 7 * 32  # from the barrier to the first use of what it makes visible
READ_LEAD_CLK = 3 * 32  # at least, from a read of LDS to its use


def make_slot_table(shape: Shape) -> SlotTable:
    """Place every atom of a step; a pure function of the shape.

    Raises:
        ValueError: an atom found no slot within its bounds, or the table fails its check.
    """
    from fmhagen.lowering.slot_check import check_slot_table

    turns = ring_turns(shape.key_fragments + shape.value_fragments, shape.prefetch)
    ring = [place for length in turns for place in range(length)]
    matrix = matrix_atoms(shape, ring)
    total, uses = len(matrix), shape.form.uses
    second = uses * shape.key_fragments
    lead = BARRIER_LEAD_CLK // shape.form.clk
    barrier = total - min(lead, (total - second) // 2, uses * shape.prefetch - 1)
    draft = Draft(atoms=[[] for _ in range(total)])
    draft.put(barrier, Atom(call="wait_lds"))
    draft.put(barrier, Atom(call="block_barrier"))
    ahead = _place_reads(shape, draft, ring, barrier)
    written = place_staging(shape, draft, second, barrier)
    place_fetches(shape, draft, second)
    place_vector_work(shape, draft, second)
    if shape.pages is not None:
        place_paged_loads(shape, draft, written)
    slots = tuple(Slot(matrix=matrix[i], atoms=_issue_order(draft.atoms[i])) for i in range(total))
    table = SlotTable(
        score_slots=slots[:second],
        value_slots=slots[second:],
        fragments=max(ring) + 1,
        ahead=tuple(fragment_read(shape, i, ring[i], following=False) for i in range(ahead)),
        slot_clk=shape.form.slot_clk,
    )
    check_slot_table(shape, table)
    return table


def ring_turns(fragments: int, prefetch: int) -> tuple[int, ...]:
    """Split the fragments of a step into turns of the ring, each longer than the prefetch.

    A turn has some length or one more, so that a step ends where a turn does and the next one finds
    its fragments in the same registers.
    """
    for length in range(min(prefetch + 1, fragments), 1, -1):
        for turns in range(fragments // length, 0, -1):
            longer = fragments - turns * length
            if 0 <= longer <= turns:
                return (length + 1,) * longer + (length,) * (turns - longer)
    return (fragments,)


def matrix_atoms(shape: Shape, ring: list[int]) -> list[Atom]:
    """Return the matrix instructions of a step in order, given each fragment's register."""
    rows = shape.form.lane_rows
    atoms = []
    for i in range(shape.key_fragments):
        block, step, part = key_place(shape, i)
        for half, row in itertools.product(range(2), range(rows)):
            score = f"s_next[{(block * rows + row) * rows + part}]"
            operands = (score, f"w.fragment[{ring[i]}]", f"w.q[{step * rows + row}]")
            if step == half == 0:
                atoms.append(Atom(call="multiply_first", arguments=operands))
            else:
                atoms.append(Atom(call="multiply", arguments=(*operands, str(half))))
    for i in range(shape.value_fragments):
        group, block, part = value_place(shape, i)
        fragment = f"w.fragment[{ring[shape.key_fragments + i]}]"
        for half, row in itertools.product(range(2), range(rows)):
            output = f"w.o[{(block * rows + row) * rows + part}]"
            operands = (output, fragment, f"p[{group * rows + row}]")
            atoms.append(Atom(call="multiply", arguments=(*operands, str(half))))
    return atoms


def key_place(shape: Shape, fragment: int) -> tuple[int, int, int]:
    """Return a fragment of K: block of 32 keys, step along the depth, part of the block."""
    block, rest = divmod(fragment, shape.depth_steps * shape.form.lane_rows)
    return block, *divmod(rest, shape.form.lane_rows)


def value_place(shape: Shape, fragment: int) -> tuple[int, int, int]:
    """Return a fragment of V^T: group of keys, block of 32 rows, part of the block."""
    group, rest = divmod(fragment, shape.value_blocks * shape.form.lane_rows)
    return group, *divmod(rest, shape.form.lane_rows)


def fragment_read(shape: Shape, fragment: int, register: int, *, following: bool) -> Atom:
    """Return the read of one fragment of K or V^T, of this step or of the following one."""
    if fragment < shape.key_fragments:
        block, step, part = key_place(shape, fragment)
        region = "k_following" if following else "k_next"
        line, column = divmod(step, LINE_ELEMENTS // shape.form.span)
        address = f"w.k_read[{column}] + {region} + k_place({block}, {line}, {part})"
    else:
        group, block, part = value_place(shape, fragment - shape.key_fragments)
        place = group * shape.form.lane_rows + part
        address = f"w.v_read[{place}] + v_now + v_place({block})"
    return Atom(
        call="lds_read_b128",
        arguments=(address,),
        result=f"w.fragment[{register}]",
        is_memory=True,
    )


def _place_reads(shape: Shape, draft: Draft, ring: list[int], barrier: int) -> int:
    """Place the reads of LDS; return how many of the next step's stand in this one."""
    total, uses = len(draft.atoms), shape.form.uses
    lead = uses * shape.prefetch
    least = READ_LEAD_CLK // shape.form.clk
    last_use = {place: uses * (i + 1) - 1 for i, place in enumerate(ring)}  # in this step
    ahead = 0
    # NOTE: the first turn of the ring alone, else they would replace one another.
    for i in range(min(shape.key_fragments, shape.prefetch)):
        if ring[i] != i:
            break
        earliest = max(barrier, total + uses * i - lead, last_use[ring[i]])
        slot = draft.open_slot(earliest, total - 1)
        if slot is None:
            break
        draft.put(slot, fragment_read(shape, i, ring[i], following=True))
        ahead += 1
    for i in range(ahead, len(ring)):
        holders = [uses * (j + 1) - 1 for j in range(i) if ring[j] == ring[i]]
        earliest = max([0, uses * i - lead, *holders])
        latest = uses * i - 1 if i < shape.key_fragments else min(uses * i - 1, barrier - 1)
        slot = draft.open_slot(earliest, min(uses * i - least, latest))
        draft.put(
            max(earliest, latest) if slot is None else slot,
            fragment_read(shape, i, ring[i], following=False),
        )
    return ahead


def _issue_order(atoms: list[Atom]) -> tuple[Atom, ...]:
    """Put what takes no vector port behind the first vector work, which hides its issue."""
    waits = [atom for atom in atoms if atom.call in ("wait_lds", "block_barrier")]
    vector = [atom for atom in atoms if atom.clk]
    rest = [atom for atom in atoms if atom not in waits and atom not in vector]
    made = {atom.result.split()[-1] for atom in vector if atom.result}
    late = [atom for atom in rest if made & set(atom.arguments)]
    # NOTE: which unit a row is of must not change before it is found.
    if any("w.turns." in argument for atom in vector for argument in atom.arguments):
        late += [atom for atom in rest if atom.call == "take_turn"]
    early = [atom for atom in rest if atom not in late]
    return (*waits, *vector[:1], *early, *vector[1:], *late)
