"""A slot table drawn as a timeline: one row a slot, one column for what each unit does."""

from __future__ import annotations

from fmhagen.plan.slots import Atom, SlotTable

# What an atom is called in the drawing, and its column.
_VECTOR = {
    "scale_pair": "fma",
    "raise_and_scale": "exp fma",
    "raise": "exp",
    "take_pair": "sum round",
    "track_maximum": "max",
    "any_outgrows": "vote",
}
_MEMORY = {
    "lds_read_b128": "read",
    "lds_write_b128": "write K",
    "lds_write_b64": "write V",
    "buffer_load_b128": "load K",
    "buffer_load_b32": "load V",
    "block_barrier": "barrier",
}


def timeline(table: SlotTable) -> str:
    """Return a table of the slots, in text."""
    rows = [f"{'slot':>4}  {'matrix':<12} {'clk':>3}  {'vector':<34} memory"]
    for number, slot in enumerate(table.slots):
        vector = ", ".join(name for atom in slot.atoms if (name := _vector_name(atom)))
        memory = ", ".join(_MEMORY[a.call] for a in slot.atoms if a.call in _MEMORY)
        product = (
            f"S{_index(slot.matrix)}"
            if number < len(table.score_slots)
            else (f"O{_index(slot.matrix)}")
        )
        product += " = K Q" if product[0] == "S" else " += V P"
        rows.append(
            f"{number:>4}  {product:<12} {slot.vector_clk:>3}  {vector:<34} {memory}".rstrip()
        )
    if table.softmax:
        rows.append(f"then {'':<12} {sum(atom.clk for atom in table.softmax):>3}  softmax")
    return "\n".join(rows) + "\n"


def _vector_name(atom: Atom) -> str:
    return "transpose" if atom.call.startswith("transpose") else _VECTOR.get(atom.call, "")


def _index(matrix: Atom) -> str:
    """Return the block of the accumulator, such as "[2]"."""
    return matrix.arguments[0].partition("[")[1] + matrix.arguments[0].partition("[")[2]
