"""Staging in a slot table: the next units of K and V on their way from global memory to LDS."""

from __future__ import annotations

from fmhagen.lowering.slot_draft import Draft, Shape
from fmhagen.lowering.slot_factors import SLOTS_AHEAD, value_factor
from fmhagen.lowering.slot_score import VECTOR_CLK
from fmhagen.plan.slots import Atom

WRITE_LEAD_CLK = 4 * 32  # from the last write to LDS to the barrier that waits for it


def place_staging(shape: Shape, draft: Draft, first: int, barrier: int) -> int:
    """Place the next units' way through registers: write what has come, load what follows.

    Returns:
        The slot of the last write. Where rows are looked up in pages, `slot_pages` places loads.
    """
    slot = _place_operands(shape, draft, first, barrier)
    key = "eight_of(k_wide_{0}_0, k_wide_{0}_1)" if shape.widen_clk else "w.k[{0}]"
    v_write = {4: "lds_write_b64", 8: "lds_write_b128"}[shape.value_keys]
    writes = [
        _memory("lds_write_b128", f"w.k_write[{i}] + k_following", key.format(i))
        for i in range(shape.key_pieces)
    ] + [
        _memory(v_write, f"w.v_write[{i}] + v_next", f"v_row_{i}")
        for i in range(2 * shape.value_pieces)
    ]
    end = _spread(draft, writes, slot, max(slot, barrier - WRITE_LEAD_CLK // shape.form.clk))
    if shape.pages is not None:
        return end
    k_load, v_load = "buffer_load_b128", "buffer_load_b32"
    if shape.widen_clk:
        k_load, v_load = "buffer_load_b64", "buffer_load_u16"
    loads = [
        _rows_of(shape, "k", "key"),
        *(
            _memory(k_load, "k_unit", f"w.k_offset[{i}]", result=f"w.k[{i}]")
            for i in range(shape.key_pieces)
        ),
        _rows_of(shape, "v", "value"),
        *(
            _memory(v_load, "v_unit", f"w.v_offset[{i}][{j}]", result=f"w.v[{i}][{j}]")
            for i in range(shape.value_pieces)
            for j in range(shape.value_keys)
        ),
    ]
    if shape.walks:
        loads.append(Atom(call="take_turn", arguments=("w.turns", "params", "visible")))
    _spread(draft, loads, end, len(draft.atoms) - 1)
    return end


def _place_operands(shape: Shape, draft: Draft, first: int, barrier: int) -> int:
    """Place what makes operands of K and V that have come; return the slot of the last atom.

    NOTE: what was loaded a step ago is there half a phase before it is written.
    """
    begin = first if shape.scales_tokens else first // 2
    atoms = [(begin, atom) for atom in _widening(shape)]
    atoms += [(first, atom) for atom in _transposing(shape)]
    work = sum(atom.clk for _, atom in atoms)
    for limit in range(shape.form.slot_clk, shape.form.slot_clk + work + 1, VECTOR_CLK):
        clk = list(draft.vector_clk)
        slot = 0
        places = []
        for earliest, atom in atoms:
            slot = max(slot, earliest)
            while slot < barrier and clk[slot] + atom.clk > max(atom.clk, limit):
                slot += 1
            if slot == barrier:
                break
            clk[slot] += atom.clk
            places.append(slot)
        if len(places) < len(atoms):
            continue
        for place, (_, atom) in zip(places, atoms, strict=True):
            if atom.call == "widen_two" and shape.scales_tokens:
                # NOTE: on one side of where what nobody sees is cleared: 0 * NaN is NaN.
                ahead = max(first if place >= first else 0, place - SLOTS_AHEAD)
                draft.put(ahead, value_factor(atom.arguments[1]))
            draft.put(place, atom)
        return slot
    raise ValueError("no slots to widen and transpose K and V in")


def _transposing(shape: Shape) -> list[Atom]:
    """Return how pieces of V become rows of V^T."""
    count, row_type = {4: ("four", "u32x2"), 8: ("eight", "u32x4")}[shape.value_keys]
    return [
        Atom(
            call=f"transpose_{count}",
            arguments=(f"w.v[{i}]", str(odd)),
            result=f"const {row_type} v_row_{2 * i + odd}",
            clk=shape.value_keys // 2 * VECTOR_CLK,
        )
        for i in range(shape.value_pieces)
        for odd in range(2)
    ]


def _widening(shape: Shape) -> list[Atom]:
    """Return how K and V of 8 bits become operands of 16."""
    if not shape.widen_clk:
        return []
    atoms = []
    for i in range(shape.value_pieces):
        for j in range(shape.value_keys):
            number, factor = f"w.v[{i}][{j}]", f"v_factor_{i}_{j}"
            atoms.append(
                Atom(
                    call="widen_two",
                    arguments=(number, factor) if shape.scales_tokens else (number,),
                    result=number,
                    clk=shape.value_widen_clk,
                )
            )
    # NOTE: K behind V, since it takes more registers then.
    atoms += [
        Atom(
            call="widen_four",
            arguments=(f"w.k[{i}]", str(last)),
            result=f"const u32x2 k_wide_{i}_{last}",
            clk=2 * shape.widen_clk,
        )
        for i in range(shape.key_pieces)
        for last in range(2)
    ]
    return atoms


def _rows_of(shape: Shape, tensor: str, turn: str) -> Atom:
    """Return the resource of the rows that are loaded next."""
    arguments = (f"w.{tensor}_rows", *((f"w.turns.{turn}",) if shape.walks else ()))
    call = "rows_of_unit" if shape.walks else "next_unit"
    return Atom(call=call, arguments=arguments, result=f"const BufferResource {tensor}_unit")


def _memory(call: str, *arguments: str, result: str = "") -> Atom:
    return Atom(call=call, arguments=arguments, result=result, is_memory=True)


def _spread(draft: Draft, atoms: list[Atom], first: int, last: int) -> int:
    """Place atoms in order, memory operations in the emptiest slots; return the last slot used."""
    slot = first
    for i, atom in enumerate(atoms):
        if atom.is_memory:
            left = sum(a.is_memory for a in atoms[i:])
            # The fewest operations a slot for which the rest still find room.
            for most in range(len(atoms) + 2):
                room = [s for s in range(slot, last + 1) if draft.memory[s] <= most]
                if sum(most + 1 - draft.memory[s] for s in room) >= left:
                    slot = room[0]
                    break
        draft.put(slot, atom)
    return slot
