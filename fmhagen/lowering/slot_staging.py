"""Staging in a slot table: the next units of K and V on their way from global memory to LDS."""

from __future__ import annotations

from fmhagen.lowering.slot_draft import Draft, Shape
from fmhagen.lowering.slot_score import VECTOR_CLK
from fmhagen.plan.slots import Atom

WRITE_LEAD_CLK = 4 * 32  # from the last write to LDS to the barrier that waits for it


def place_staging(shape: Shape, draft: Draft, first: int, barrier: int) -> int:
    """Place the next units' way through registers: write what has come, load what follows.

    Returns:
        The slot of the last write. Where rows are looked up in pages, `slot_pages` places loads.
    """
    row_type = {4: "u32x2", 8: "u32x4"}[shape.value_keys]
    slot = first
    for i in range(shape.value_pieces):
        for odd in range(2):
            clk = shape.value_keys // 2 * VECTOR_CLK
            while draft.vector_clk[slot] + clk > max(clk, shape.form.slot_clk):
                slot += 1
            call = f"transpose_{ {4: 'four', 8: 'eight'}[shape.value_keys] }"
            result = f"const {row_type} v_row_{2 * i + odd}"
            arguments = (f"w.v[{i}]", str(odd))
            draft.put(slot, Atom(call=call, arguments=arguments, result=result, clk=clk))
    v_write = {4: "lds_write_b64", 8: "lds_write_b128"}[shape.value_keys]
    writes = [
        _memory("lds_write_b128", f"w.k_write[{i}] + k_following", f"w.k[{i}]")
        for i in range(shape.key_pieces)
    ] + [
        _memory(v_write, f"w.v_write[{i}] + v_next", f"v_row_{i}")
        for i in range(2 * shape.value_pieces)
    ]
    end = _spread(draft, writes, slot, max(slot, barrier - WRITE_LEAD_CLK // shape.form.clk))
    if shape.pages is not None:
        return end
    loads = [
        _rows_of(shape, "k", "key"),
        *(
            _memory("buffer_load_b128", "k_unit", f"w.k_offset[{i}]", result=f"w.k[{i}]")
            for i in range(shape.key_pieces)
        ),
        _rows_of(shape, "v", "value"),
        *(
            _memory("buffer_load_b32", "v_unit", f"w.v_offset[{i}][{j}]", result=f"w.v[{i}][{j}]")
            for i in range(shape.value_pieces)
            for j in range(shape.value_keys)
        ),
    ]
    if shape.walks:
        loads.append(Atom(call="take_turn", arguments=("w.turns", "params", "visible")))
    _spread(draft, loads, end, len(draft.atoms) - 1)
    return end


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
