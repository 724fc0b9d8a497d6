"""The slot table of the pipelined loop: what it holds for every shape, and what its check finds."""

import dataclasses
import itertools
from pathlib import Path

import pytest

from fmhagen.explaining.timeline import timeline
from fmhagen.lowering import lower
from fmhagen.lowering.slot_check import check_slot_table
from fmhagen.lowering.slot_draft import Shape
from fmhagen.lowering.slots import make_slot_table, ring_turns
from fmhagen.plan.slots import FORMS, Atom, Slot, SlotTable
from fmhagen.select import default_schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

SQUARE = Shape(
    form=FORMS["32x32x8"],
    unit=32,
    depth_steps=8,
    value_blocks=4,
    key_pieces=1,
    value_pieces=1,
    value_keys=4,
    round_clk=4,
    prefetch=7,
)
NARROW = dataclasses.replace(SQUARE, form=FORMS["16x16x16"], depth_steps=4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", [32, 64])
@pytest.mark.parametrize("prefetch", [2, 5, 7, 12])
@pytest.mark.parametrize(
    ("steps", "blocks"), list(itertools.product((1, 3, 4, 8, 11, 16), (1, 2, 5, 8)))
)
def test_every_shape_has_a_table(
    form: str, unit: int, prefetch: int, steps: int, blocks: int
) -> None:
    shape = dataclasses.replace(
        *(SQUARE,),
        form=FORMS[form],
        unit=unit,
        depth_steps=steps,
        value_blocks=blocks,
        prefetch=prefetch,
    )
    table = make_slot_table(shape)  # checks itself
    # A wave has 32 queries: a narrow instruction multiplies half of them with half of the rows.
    narrow = FORMS[form].lane_rows
    assert len(table.score_slots) == unit // 32 * steps * 2 * narrow**2
    assert len(table.value_slots) == unit // 16 * blocks * 2 * narrow
    assert table == make_slot_table(shape)


def test_the_square_table_is_even() -> None:
    table = make_slot_table(SQUARE)
    assert len(table.slots) == 32
    assert not table.overfull
    assert max(slot.vector_clk for slot in table.slots) <= table.slot_clk == 28
    assert all(sum(atom.is_memory for atom in slot.atoms) <= 1 for slot in table.slots)
    assert len(table.ahead) == 7
    calls = [atom.call for slot in table.slots for atom in slot.atoms]
    assert calls.count("lds_read_b128") == 16
    assert calls.count("raise") + calls.count("raise_and_scale") == 16
    assert calls.count("take_pair") == 8
    assert calls.count("track_maximum") == 8


def test_turns_of_the_ring_cover_a_step() -> None:
    for fragments, prefetch in itertools.product(range(2, 60), range(2, 13)):
        turns = ring_turns(fragments, prefetch)
        assert sum(turns) == fragments
        assert max(turns) - min(turns) <= 1


def test_the_plan_prints_its_table() -> None:
    spec = AttentionSpec()
    plan = lower(spec, default_schedule(spec, GFX942), GFX942)
    assert plan.slot_table == make_slot_table(SQUARE)


def test_the_documented_timeline_is_the_table() -> None:
    document = Path(__file__).parent.parent / "docs" / "gfx942.md"
    text = document.read_text(encoding="ascii")
    quoted = text.partition("<!-- timeline of head dim 128 -->\n```\n")[2].partition("```\n")[0]
    assert quoted == timeline(make_slot_table(SQUARE))


def moved(table: SlotTable, call: str, target: int) -> SlotTable:
    """Return a table with the first atom of a call in another slot."""
    slots = list(table.slots)
    place, atom = next(
        (i, atom) for i, slot in enumerate(slots) for atom in slot.atoms if atom.call == call
    )
    atoms = tuple(a for a in slots[place].atoms if a is not atom)
    slots[place] = Slot(matrix=slots[place].matrix, atoms=atoms)
    slots[target] = Slot(matrix=slots[target].matrix, atoms=(*slots[target].atoms, atom))
    count = len(table.score_slots)
    return dataclasses.replace(
        table, score_slots=tuple(slots[:count]), value_slots=tuple(slots[count:])
    )


@pytest.mark.parametrize(
    ("call", "slot", "message"),
    [
        ("lds_read_b128", 31, "does not find|wrong side|after the barrier"),
        ("lds_write_b128", 31, "after the barrier"),
        ("lds_write_b64", 31, "after the barrier"),
        ("take_pair", 31, "before"),
        ("raise", 31, "before its numbers are raised"),
        ("buffer_load_b128", 0, "before what it held is written"),
        ("wait_lds", 0, "no wait_lds"),
    ],
)
def test_the_check_finds_what_is_moved(call: str, slot: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_slot_table(SQUARE, moved(make_slot_table(SQUARE), call, slot))


def test_the_check_finds_what_is_missing() -> None:
    table = make_slot_table(SQUARE)
    with pytest.raises(ValueError, match="does not find"):
        check_slot_table(SQUARE, dataclasses.replace(table, ahead=table.ahead[:-1]))
    first = table.score_slots[0]
    second = Slot(matrix=first.matrix, atoms=(*first.atoms, Atom(call="block_barrier")))
    doubled = dataclasses.replace(table, score_slots=(second, *table.score_slots[1:]))
    with pytest.raises(ValueError, match="one barrier"):
        check_slot_table(SQUARE, doubled)
