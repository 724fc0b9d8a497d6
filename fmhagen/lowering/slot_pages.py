"""Staging from the pages of a cache in a slot table: where rows of K and V lie is found on the way.

Pages are looked up a step before the loads that need them, and before the loads of that step, so
that waiting for a page is waiting for nothing else.
"""

from __future__ import annotations

from fmhagen.lowering.slot_draft import Draft, Pages, Shape
from fmhagen.lowering.slot_score import VECTOR_CLK
from fmhagen.plan.slots import Atom

PRODUCT_CLK = 16  # v_mad_u64_u32 and v_mul_hi_u32, at a quarter of the rate
SUM_CLK = 2 * VECTOR_CLK  # of 64 bits


def load_atoms(shape: Shape) -> tuple[list[Atom], list[Atom]]:
    """Return how each row is found and loaded: up to the look-up of the next pages, and the rest.

    The first part must not follow the second of its step.
    """
    pages = shape.pages
    assert pages is not None
    keys = range(shape.key_pieces)
    values = range(shape.value_pieces)
    lookups = range(pages.value_lookups)
    shared = shape.value_keys // pages.value_lookups
    first = [_page_at("k", f"{i}", f"w.k_first[{i}]", f"w.k_page[{i}]") for i in keys]
    first += [
        _page_at("v", f"{i}_{j}", f"w.v_first[{i}]", f"w.v_page[{i}][{j}]")
        for i in values
        for j in lookups
    ]
    for i in keys:
        n = f"w.turns.ahead * UNIT + w.k_key[{i}]"
        first += _look_up(pages, f"k_entry_{i}", n, f"w.k_page[{i}]")
    for i in values:
        for j in lookups:
            n = _value_key("key", i, j * shared)
            first += _look_up(pages, f"v_entry_{i}_{j}", n, f"w.v_page[{i}][{j}]")
    rest: list[Atom] = []
    for i in keys:
        n = f"w.turns.key * UNIT + w.k_key[{i}]"
        rest += _row_at(pages, "k", f"{i}", f"{i}", n)
        rest.append(_load("load_eight", f"k_at_{i}", f"w.k[{i}]"))
    for i in values:
        for j in range(shape.value_keys):
            if j % shared == 0:
                n = _value_key("value", i, j)
                rest += _row_at(pages, "v", f"{i}_{j}", f"{i}_{j // shared}", n)
            else:
                rest.append(_row_after(f"{i}_{j - 1}", f"{i}_{j}"))
            rest.append(
                _load(
                    "load_global_2" if shape.widen_clk else "load_global_4",
                    f"v_at_{i}_{j}",
                    f"w.v[{i}][{j}]",
                )
            )
    rest.append(Atom(call="take_turn", arguments=("w.turns", "params", "visible")))
    return first, rest


def place_paged_loads(shape: Shape, draft: Draft, written: int) -> None:
    """Place them where there is room; what was loaded is written to LDS up to slot `written`."""
    first, rest = load_atoms(shape)
    work = sum(draft.vector_clk) + sum(atom.clk for atom in (*first, *rest))
    for limit in range(shape.form.slot_clk, shape.form.slot_clk + work, VECTOR_CLK):
        places = _fit(draft, first, 0, limit)
        if places is None:
            continue
        others = _fit(draft, rest, max(written, places[-1]) + 1, limit)
        if others is not None:
            for atom, slot in zip((*first, *rest), (*places, *others), strict=True):
                draft.put(slot, atom)
            return
    raise ValueError("no slots for the loads of a paged cache")


def _fit(draft: Draft, atoms: list[Atom], begin: int, limit: int) -> list[int] | None:
    """Return slots for atoms in order, the first with room, or None if they do not fit."""
    most_memory = 1 + limit // 32
    if begin >= len(draft.atoms):
        return None
    clk = list(draft.vector_clk)
    memory = list(draft.memory)
    places = []
    slot = begin
    for atom in atoms:
        while (
            clk[slot] + atom.clk > max(limit, atom.clk)
            or memory[slot] + atom.is_memory > most_memory
        ):
            slot += 1
            if slot == len(clk):
                return None
        clk[slot] += atom.clk
        memory[slot] += atom.is_memory
        places.append(slot)
    return places


def _value_key(turn: str, piece: int, key: int) -> str:
    """Return a key of a piece of V."""
    return f"w.turns.{turn} * UNIT + w.v_key[{piece}]" + (f" + {key}" if key else "")


def _page_at(tensor: str, name: str, first: str, page: str) -> Atom:
    """Return the address of a page, in a lane's column."""
    return Atom(
        call="page_at",
        arguments=(first, f"w.{tensor}_rows", page),
        result=f"const u8* {tensor}_page_{name}",
        clk=PRODUCT_CLK + VECTOR_CLK,
    )


def _entry_clk(pages: Pages) -> int:
    """Return the vector work that finds the entry of a key's page."""
    return 2 * VECTOR_CLK + (VECTOR_CLK if pages.is_power else PRODUCT_CLK + VECTOR_CLK)


def _look_up(pages: Pages, name: str, n: str, page: str) -> list[Atom]:
    """Return the look-up of the page of a key."""
    entry = Atom(
        call="entry_of",
        arguments=(n,),
        result=f"const u32 {name}",
        clk=_entry_clk(pages),
    )
    load = Atom(call="buffer_load_b32", arguments=("w.table", name), result=page, is_memory=True)
    return [entry, load]


def _row_at(pages: Pages, tensor: str, name: str, page: str, n: str) -> list[Atom]:
    """Return the address of a key's row in a page."""
    rest = VECTOR_CLK if pages.is_power else 2 * PRODUCT_CLK + 2 * VECTOR_CLK
    has_rows = pages.size > 1
    row = Atom(
        call="row_of",
        arguments=(n,),
        result=f"const u32 {tensor}_row_of_{name}",
        clk=VECTOR_CLK + rest if has_rows else 0,
    )
    at = Atom(
        call="row_at",
        arguments=(f"{tensor}_page_{page}", f"w.{tensor}_rows", f"{tensor}_row_of_{name}"),
        result=f"const u8* {tensor}_at_{name}",
        clk=PRODUCT_CLK if has_rows else 0,
    )
    return [row, at]


def _row_after(before: str, name: str) -> Atom:
    """Return the address of the row of V behind another in its page."""
    result = f"const u8* v_at_{name}"
    return Atom(
        call="row_after", arguments=(f"v_at_{before}", "w.v_rows"), result=result, clk=SUM_CLK
    )


def _load(call: str, at: str, result: str) -> Atom:
    return Atom(call=call, arguments=(at,), result=result, is_memory=True)
