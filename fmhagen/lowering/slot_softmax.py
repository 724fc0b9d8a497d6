"""Vector work of a slot table: exponentials of this unit, the row maximum of the next one."""

from __future__ import annotations

from fmhagen.lowering.slot_draft import Draft, Shape
from fmhagen.lowering.slot_score import RAISE_CLK, VECTOR_CLK, modify_atoms
from fmhagen.slots import Atom

MATRIX_LATENCY_CLK = 2 * 32  # from the last matrix instruction of S to the first use of S


def place_vector_work(shape: Shape, draft: Draft, second: int) -> None:
    """Place the exponentials of this unit, the score function and the maximum of the next one."""
    total = len(draft.atoms)
    maxima = []
    for i in range(shape.unit // 4):
        maxima += modify_atoms(shape, i, total - 1) if shape.modify_clk else []
        maxima.append(
            Atom(
                call="track_maximum",
                arguments=(f"largest[{row_of(shape, i)}]", *score_of(shape, "s_next", i)),
                clk=VECTOR_CLK,
                latest=total - 1,
            )
        )
    maxima.append(
        Atom(
            call="any_outgrows",
            arguments=("w", "largest", "scale"),
            result="bool grown" if shape.modify_clk else "const bool grown",
            clk=3 * VECTOR_CLK * shape.form.lane_rows,
            latest=total - 1,
        )
    )
    raises = _raise_atoms(shape, second)
    # NOTE: the maxima first, since they can stand in the second phase alone.
    _pace(shape, draft, maxima, second + MATRIX_LATENCY_CLK // shape.form.clk, total - 1)
    _pace(shape, draft, raises, 0, max(atom.latest for atom in raises))


def row_of(shape: Shape, pair: int) -> int:
    """Return the lane's query row that a pair of scores is of."""
    return pair // 4 % shape.form.lane_rows


def score_of(shape: Shape, scores: str, pair: int) -> tuple[str, str]:
    """Return the accumulator block of a pair of scores, and its place there."""
    block, element = divmod(2 * pair, shape.form.rows**2 // 64)
    return f"{scores}[{block}]", str(element)


def _raise_atoms(shape: Shape, second: int) -> list[Atom]:
    """Return P = exp2(..) of one unit, pair by pair, and the rounding.

    NOTE: a pair is taken after the next pair's first number is raised: v_exp has a latency.
    """
    pairs = shape.unit // 4
    group = shape.form.uses * shape.form.lane_rows * shape.value_blocks  # slots of its P V
    latest = [second + i // 4 // shape.form.lane_rows * group - 1 for i in range(pairs)]

    def scores(i: int) -> tuple[str, ...]:
        return f"w.row[{row_of(shape, i)}]", "scale", *score_of(shape, "s_now", i)

    ordered = [Atom(call="scale_pair", arguments=scores(0), result="f32x2 pair_0", clk=VECTOR_CLK)]
    pending: list[Atom] = []
    for i in range(pairs):
        pair = f"pair_{i}"
        if i + 1 < pairs:
            first = Atom(
                call="raise_and_scale",
                arguments=(pair, *scores(i + 1)),
                result=f"f32x2 pair_{i + 1}",
                clk=RAISE_CLK + VECTOR_CLK,
                latest=latest[i] - 1,
            )
        else:
            arguments = (pair, "0")
            first = Atom(call="raise", arguments=arguments, clk=RAISE_CLK, latest=latest[i] - 1)
        ordered += [first, *pending]
        ordered.append(Atom(call="raise", arguments=(pair, "1"), clk=RAISE_CLK, latest=latest[i]))
        pending = [
            Atom(
                call="take_pair",
                arguments=(f"p[{i // 4}]", str(i % 4), f"w.row[{row_of(shape, i)}]", pair),
                clk=VECTOR_CLK + shape.round_clk,
                latest=latest[i],
            )
        ]
    return ordered + pending


def _pace(shape: Shape, draft: Draft, atoms: list[Atom], first: int, last: int) -> None:
    """Place atoms in order at an even pace; one that would be late is placed whatever it costs."""
    slot_clk = shape.form.slot_clk
    work = sum(atom.clk for atom in atoms)
    room = [max(0, slot_clk - draft.vector_clk[slot]) for slot in range(first, last + 1)]
    # NOTE: where vector work bounds the step, slots overflow evenly rather than in a late pile.
    is_tight = work > sum(room) * 0.85
    most = slot_clk + 2 * VECTOR_CLK if is_tight else slot_clk
    if work > sum(room):
        most = max(most, work // len(room) + max(atom.clk for atom in atoms))
    early = 0.5 if is_tight else 0.25  # of an atom, ahead of an even pace
    done = passed = 0
    queue = list(atoms)
    for slot in range(first, last + 1):
        passed += room[slot - first]
        while queue:
            atom = queue[0]
            is_due = (done + atom.clk * (1 - early)) * sum(room) <= work * passed
            fits = not draft.vector_clk[slot] or draft.vector_clk[slot] + atom.clk <= most
            if not ((is_due and fits) or any(other.latest <= slot for other in queue)):
                break
            draft.put(slot, queue.pop(0))
            done += atom.clk
    if queue:
        raise ValueError(f"no slot for {queue[0]}")
