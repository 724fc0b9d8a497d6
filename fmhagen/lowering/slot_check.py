"""Checks of a slot table, whatever placed its atoms: order of data, sides of the barrier."""

from __future__ import annotations

from fmhagen.lowering.slot_draft import Shape
from fmhagen.lowering.slots import fragment_read
from fmhagen.plan.slots import Atom, SlotTable

_Line = tuple[int, Atom]
_LOADS = ("buffer_load", "load_eight", "load_global")
_USES = ("lds_write", "transpose", "page_at", "widen")


def check_slot_table(shape: Shape, table: SlotTable) -> None:
    """Check what the printed order must hold.

    Raises:
        ValueError: a fragment is used before it is read or overwritten before it is used, P is used
            before it is complete, LDS is written or read on the wrong side of the barrier.
    """
    lines = _lines(table)
    _check_barrier(lines)
    _check_fragments(shape, table, lines)
    _check_ahead(table, lines)
    _check_probabilities(lines)
    _check_scores(shape, lines)
    _check_staging(lines)


def check_turns_table(shape: Shape, table: SlotTable) -> None:
    """Check a phase of products alone, whose operands the other group then overwrites in LDS.

    Raises:
        ValueError: a fragment is used before it is read or overwritten before it is used, or LDS is
            read after the barrier.
    """
    lines = _lines(table)
    barrier = _find_barrier(lines)
    for slot, atom in lines[barrier:]:
        if atom.is_memory:
            raise ValueError(f"slot {slot}: {atom} after the barrier")
    _check_fragments(shape, table, [(0, atom) for atom in table.ahead] + lines)


def _lines(table: SlotTable) -> list[_Line]:
    return [(i, atom) for i, slot in enumerate(table.slots) for atom in (slot.matrix, *slot.atoms)]


def _find_barrier(lines: list[_Line]) -> int:
    calls = [atom.call for _, atom in lines]
    if calls.count("block_barrier") != 1:
        raise ValueError("a step has one barrier")
    barrier = calls.index("block_barrier")
    if calls[barrier - 1] != "wait_lds":
        raise ValueError("no wait_lds before the barrier")
    return barrier


def _check_barrier(lines: list[_Line]) -> None:
    barrier = _find_barrier(lines)
    for place, (slot, atom) in enumerate(lines):
        if atom.call.startswith("lds_write") and place > barrier:
            raise ValueError(f"slot {slot}: {atom} after the barrier")
        if atom.call != "lds_read_b128":
            continue
        region = atom.arguments[0].split(" + ")[1]
        # v_now and k_next are overwritten, k_following is written, by other waves.
        is_wrong = place < barrier if region == "k_following" else place > barrier
        if is_wrong and region != "k_next":
            raise ValueError(f"slot {slot}: {atom} on the wrong side of the barrier")
        if is_wrong:
            raise ValueError(f"slot {slot}: {atom} after the barrier")


def _check_fragments(shape: Shape, table: SlotTable, lines: list[_Line]) -> None:
    holds = {atom.result: atom.arguments[0] for atom in table.ahead}
    count = shape.key_fragments + shape.value_fragments
    uses = shape.form.uses
    wanted = [
        fragment_read(shape, i // uses, 0, following=False).arguments[0]
        for i in range(uses * count)
    ]
    used = 0
    for slot, atom in lines:
        if atom.call == "lds_read_b128":
            holds[atom.result] = atom.arguments[0].replace("k_following", "k_next")
        if atom.call.startswith("multiply"):
            if holds.get(atom.arguments[1]) != wanted[used]:
                raise ValueError(f"slot {slot}: {atom} does not find {wanted[used]}")
            used += 1


def _check_ahead(table: SlotTable, lines: list[_Line]) -> None:
    holds = {a.result: a.arguments[0] for _, a in lines if a.call == "lds_read_b128"}
    for atom in table.ahead:
        if holds.get(atom.result, "").replace("k_following", "k_next") != atom.arguments[0]:
            raise ValueError(f"the next step does not find {atom}")


def _check_probabilities(lines: list[_Line]) -> None:
    taken: set[str] = set()
    raised: dict[str, int] = {}
    for slot, atom in lines:
        if atom.call in ("scale_pair", "raise_and_scale"):
            raised[atom.result.split()[-1]] = 0
        if atom.call in ("raise", "raise_and_scale"):
            raised[atom.arguments[0]] += 1
        elif atom.call == "take_pair":
            if raised.get(atom.arguments[3]) != 2:
                raise ValueError(f"slot {slot}: {atom} before its numbers are raised")
            taken.add(f"{atom.arguments[0]}[{atom.arguments[1]}]")
        elif atom.call == "multiply" and atom.arguments[2].startswith("p["):
            missing = {f"{atom.arguments[2]}[{i}]" for i in range(4)} - taken
            if missing:
                raise ValueError(f"slot {slot}: {atom} before {sorted(missing)}")


def _check_scores(shape: Shape, lines: list[_Line]) -> None:
    """A score is whole before the score function begins, and through with it before its maximum."""
    parts = len(shape.score_clks)
    done: dict[tuple[str, ...], int] = {}
    fetched: set[tuple[str, ...]] = set()
    for place, (slot, atom) in enumerate(lines):
        if atom.call == "fetch":
            fetched.add(atom.arguments[3:])
        if atom.call == "modify" or atom.call.startswith("begin_score"):
            pair = atom.arguments[:2]
            part = parts - 1 if atom.call == "modify" else int(atom.call.rpartition("_")[2])
            if done.get(pair, 0) != part:
                raise ValueError(f"slot {slot}: {atom} out of order")
            done[pair] = part + 1
            if shape.fetched_loads and atom.arguments[5:7] not in fetched:
                raise ValueError(f"slot {slot}: {atom} before what it reads is fetched")
            if place < _last_product(lines, pair[0]):
                raise ValueError(f"slot {slot}: {atom} before the scores are whole")
        if atom.call == "track_maximum" and done.get(atom.arguments[1:], 0) != parts:
            raise ValueError(f"slot {slot}: {atom} before the score function")


def _last_product(lines: list[_Line], block: str) -> int:
    """Return the place of the last matrix instruction that adds to a block."""
    return max(
        place
        for place, (_, atom) in enumerate(lines)
        if atom.call.startswith("multiply") and atom.arguments[0] == block
    )


def _check_staging(lines: list[_Line]) -> None:
    """A register is loaded anew only after its old contents were written to LDS, or used."""
    written: set[str] = set()
    calls = [atom.call for _, atom in lines]
    turned = calls.index("take_turn") if "take_turn" in calls else len(lines)
    for slot, atom in lines[turned + 1 :]:
        if any("w.turns." in argument for argument in atom.arguments):
            raise ValueError(f"slot {slot}: {atom} after the turn is taken")
    for slot, atom in lines:
        if atom.call.startswith(_USES):
            written |= {argument for argument in atom.arguments if argument.startswith("w.")}
        if atom.call.startswith(_LOADS):
            source = atom.result[:-3] if atom.result.startswith("w.v[") else atom.result
            if source not in written:
                raise ValueError(f"slot {slot}: {atom} before what it held is written")
