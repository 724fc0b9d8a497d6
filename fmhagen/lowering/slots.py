"""The slot table of a software-pipelined step: what stands beside each matrix instruction.

A step computes S of the next unit of keys while it raises this unit's scores to P (first phase),
then adds P V of this unit while it takes the maximum of the next one's scores (second phase). A
slot is one matrix instruction and what a wave issues while the matrix core works on it: at most
`SLOT_CLK` of vector work and about one memory operation. The table is made here and printed by the
template as it is, since no compiler finds this order by itself.

Reads of LDS run `prefetch` fragments ahead of the matrix instructions that use them, through a ring
of registers, and over the end of a step: the first fragments of a step are read in the step before.
"""

from __future__ import annotations

from fmhagen.lowering.slot_draft import Draft, Shape
from fmhagen.lowering.slot_softmax import place_vector_work
from fmhagen.lowering.slot_staging import place_staging
from fmhagen.slots import Atom, Slot, SlotTable

BARRIER_LEAD = 7  # slots from the barrier to the first use of what it makes visible
READ_LEAD = 3  # least slots from a read of LDS to its use


def make_slot_table(shape: Shape) -> SlotTable:
    """Place every atom of a step; a pure function of the shape.

    Raises:
        ValueError: an atom found no slot within its bounds, or the table fails its check.
    """
    from fmhagen.lowering.slot_check import check_slot_table

    matrix, ring = matrix_atoms(shape)
    total = len(matrix)
    second = 2 * shape.key_fragments
    barrier = total - min(BARRIER_LEAD, (total - second) // 2, 2 * shape.prefetch - 1)
    draft = Draft(atoms=[[] for _ in range(total)])
    draft.put(barrier, Atom(call="wait_lds"))
    draft.put(barrier, Atom(call="block_barrier"))
    ahead = _place_reads(shape, draft, ring, barrier)
    place_staging(shape, draft, second, barrier)
    place_vector_work(shape, draft, second)
    slots = tuple(Slot(matrix=matrix[i], atoms=_issue_order(draft.atoms[i])) for i in range(total))
    table = SlotTable(
        score_slots=slots[:second],
        value_slots=slots[second:],
        fragments=max(ring) + 1,
        ahead=tuple(fragment_read(shape, i, ring[i], following=False) for i in range(ahead)),
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


def matrix_atoms(shape: Shape) -> tuple[list[Atom], list[int]]:
    """Return the matrix instructions of a step in order, and each fragment's place in the ring."""
    turns = ring_turns(shape.key_fragments + shape.value_fragments, shape.prefetch)
    ring = [place for length in turns for place in range(length)]
    atoms = []
    for i in range(shape.key_fragments):
        block, step = divmod(i, shape.depth_steps)
        operands = (f"s_next[{block}]", f"w.fragment[{ring[i]}]", f"w.q[{step}]")
        first = Atom(call="multiply_first", arguments=operands)
        atoms.append(first if step == 0 else Atom(call="multiply", arguments=(*operands, "0")))
        atoms.append(Atom(call="multiply", arguments=(*operands, "1")))
    for i in range(shape.value_fragments):
        group, block = divmod(i, shape.value_blocks)
        fragment = f"w.fragment[{ring[shape.key_fragments + i]}]"
        operands = (f"w.o[{block}]", fragment, f"p[{group}]")
        atoms += [Atom(call="multiply", arguments=(*operands, str(half))) for half in range(2)]
    return atoms, ring


def fragment_read(shape: Shape, fragment: int, register: int, *, following: bool) -> Atom:
    """Return the read of one fragment of K or V^T, of this step or of the following one."""
    if fragment < shape.key_fragments:
        block, step = divmod(fragment, shape.depth_steps)
        region = "k_following" if following else "k_next"
        address = f"w.k_read[{step % 4}] + {region} + k_place({block}, {step // 4})"
    else:
        group, block = divmod(fragment - shape.key_fragments, shape.value_blocks)
        address = f"w.v_read[{group}] + v_now + v_place({block})"
    return Atom(
        call="lds_read_b128",
        arguments=(address,),
        result=f"w.fragment[{register}]",
        is_memory=True,
    )


def _place_reads(shape: Shape, draft: Draft, ring: list[int], barrier: int) -> int:
    """Place the reads of LDS; return how many of the next step's stand in this one."""
    total, lead = len(draft.atoms), 2 * shape.prefetch
    last_use = {place: 2 * i + 1 for i, place in enumerate(ring)}  # in this step
    ahead = 0
    for i in range(min(shape.key_fragments, shape.prefetch)):
        earliest = max(barrier, total + 2 * i - lead, last_use[ring[i]])
        slot = draft.open_slot(earliest, total - 1)
        if slot is None:
            break
        draft.put(slot, fragment_read(shape, i, ring[i], following=True))
        ahead += 1
    for i in range(ahead, len(ring)):
        holders = [2 * j + 1 for j in range(i) if ring[j] == ring[i]]
        earliest = max([0, 2 * i - lead, *holders])
        latest = 2 * i - 1 if i < shape.key_fragments else min(2 * i - 1, barrier - 1)
        slot = draft.open_slot(earliest, min(2 * i - READ_LEAD, latest))
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
    early = [atom for atom in rest if atom not in late]
    return (*waits, *vector[:1], *early, *vector[1:], *late)
