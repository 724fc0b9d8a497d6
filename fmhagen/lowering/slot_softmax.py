"""Vector work of a slot table: exponentials of this unit, the row maximum of the next one."""

from __future__ import annotations

import dataclasses

from fmhagen.lowering.slot_draft import Draft, Shape
from fmhagen.lowering.slot_factors import PAIRS_AHEAD, key_factors, scaling
from fmhagen.lowering.slot_score import (
    MATRIX_LATENCY_CLK,
    RAISE_CLK,
    VECTOR_CLK,
    score_atoms,
    scores_at,
)
from fmhagen.plan.slots import Atom


def place_vector_work(shape: Shape, draft: Draft, second: int) -> None:
    """Place the exponentials of this unit, the score function and the maximum of the next one."""
    total = len(draft.atoms)
    maxima = [
        Atom(
            call="track_maximum",
            arguments=(f"largest[{row_of(shape, i)}]", *score_of(shape, "s_next", i)),
            clk=VECTOR_CLK,
            latest=total - 1,
        )
        for i in range(shape.unit // 4)
    ]
    if shape.score_clks:
        maxima = [
            each
            for pair, atom in score_atoms(shape, total - 1)
            for each in ((atom, maxima[pair]) if atom.call == "modify" else (atom,))
        ]
    if shape.scales_tokens:
        maxima = _with_factors(shape, maxima, total - 1)
    maxima.append(
        Atom(
            call="any_outgrows",
            arguments=("w", "largest", "scale"),
            result="bool grown" if shape.hides_last else "const bool grown",
            clk=3 * VECTOR_CLK * shape.form.lane_rows,
            latest=total - 1,
        )
    )
    raises = _raise_atoms(shape, second)
    latency = MATRIX_LATENCY_CLK // shape.form.clk
    first = (second if not shape.score_clks else scores_at(shape, 0)) + latency
    # NOTE: the maxima first, since they can stand in the second phase alone.
    _pace(shape, draft, maxima, first, total - 1)
    _pace(shape, draft, raises, 0, max(atom.latest for atom in raises))


def _with_factors(shape: Shape, atoms: list[Atom], latest: int) -> list[Atom]:
    """Return what follows S with the products of scores and their keys' factors before it."""
    latency = MATRIX_LATENCY_CLK // shape.form.clk
    pairs = shape.unit // 4
    scalings = [scaling(shape, i, scores_at(shape, i) + latency, latest) for i in range(pairs)]
    asked = done = 0
    found = []
    for atom in atoms:
        if _begins_pair(shape, atom):
            while asked < min(pairs, done + 1 + PAIRS_AHEAD):
                found.append(key_factors(shape, asked, latest))
                asked += 1
            found.append(scalings[done])
            done += 1
        found.append(atom)
    return found


def _begins_pair(shape: Shape, atom: Atom) -> bool:
    """Return whether nothing of its pair of scores stands before an atom."""
    parts = len(shape.score_clks)
    firsts = {0: "track_maximum", 1: "modify"}
    return atom.call == firsts.get(parts, "begin_score_0")


def softmax_clk(shape: Shape) -> int:
    """Return the clocks of the vector port that the softmax of a unit takes."""
    a_pair = 2 * RAISE_CLK + 3 * VECTOR_CLK + shape.round_clk  # scaled, summed, part of a maximum
    modified = shape.unit // 4 * shape.score_clk
    return shape.unit // 4 * a_pair + 3 * VECTOR_CLK * shape.form.lane_rows + modified


def row_of(shape: Shape, pair: int) -> int:
    """Return the lane's query row that a pair of scores is of."""
    return pair // 4 % shape.form.lane_rows


def score_of(shape: Shape, scores: str, pair: int) -> tuple[str, str]:
    """Return the accumulator block of a pair of scores, and its place there."""
    block, element = divmod(2 * pair, shape.form.rows**2 // 64)
    return f"{scores}[{block}]", str(element)


def scale_atom(shape: Shape, pair: int, scores: str) -> Atom:
    """Return the scaling of a pair of scores, less the reference."""
    return Atom(
        call="scale_pair",
        arguments=(f"w.row[{row_of(shape, pair)}]", "scale", *score_of(shape, scores, pair)),
        result=f"f32x2 pair_{pair}",
        clk=VECTOR_CLK,
    )


def raise_atom(pair: int, half: int) -> Atom:
    """Return the exponential of one of a pair."""
    return Atom(call="raise", arguments=(f"pair_{pair}", str(half)), clk=RAISE_CLK)


def take_atom(shape: Shape, pair: int) -> Atom:
    """Return the sum and the rounding of a pair of P."""
    row = f"w.row[{row_of(shape, pair)}]"
    return Atom(
        call="take_pair",
        arguments=(f"p[{pair // 4}]", str(pair % 4), row, f"pair_{pair}"),
        clk=VECTOR_CLK + shape.round_clk,
    )


def _raise_atoms(shape: Shape, second: int) -> list[Atom]:
    """Return P = exp2(..) of one unit, pair by pair, and the rounding.

    NOTE: a pair is taken after the next pair's first number is raised: v_exp has a latency. Its
    scaling stands beside that exponential, where a slot has room for both.
    """
    pairs = shape.unit // 4
    group = shape.form.uses * shape.form.lane_rows * shape.value_blocks  # slots of its P V
    is_wide = shape.form.slot_clk >= RAISE_CLK + VECTOR_CLK
    ordered = [scale_atom(shape, 0, "s_now")]
    pending: list[Atom] = []
    for i in range(pairs):
        latest = second + i // 4 // shape.form.lane_rows * group - 1
        first, scale = raise_atom(i, 0), []
        if i + 1 < pairs:
            following = scale_atom(shape, i + 1, "s_now")
            scale = [dataclasses.replace(following, latest=latest)]
            if is_wide:
                first = dataclasses.replace(
                    following,
                    call="raise_and_scale",
                    arguments=(f"pair_{i}", *following.arguments),
                    clk=RAISE_CLK + VECTOR_CLK,
                )
                scale = []
        ordered += [dataclasses.replace(first, latest=latest - 1), *pending, *scale]
        ordered.append(dataclasses.replace(raise_atom(i, 1), latest=latest))
        pending = [dataclasses.replace(take_atom(shape, i), latest=latest)]
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
            if slot < atom.earliest:
                break
            fits = not draft.vector_clk[slot] or draft.vector_clk[slot] + atom.clk <= most
            if not ((is_due and fits) or any(other.latest <= slot for other in queue)):
                break
            draft.put(slot, queue.pop(0))
            done += atom.clk
    if queue:
        raise ValueError(f"no slot for {queue[0]}")
