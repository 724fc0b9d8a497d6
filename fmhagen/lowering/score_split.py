"""A score function in parts that stand between matrix instructions: cut where little is carried."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fmhagen.expr.cxx import wrapped
from fmhagen.lowering.slot_score import VECTOR_CLK
from fmhagen.plan.score_pair import Position, ScorePart

LEAST_CLK = 24  # of a part that is cut off: about a matrix instruction of 32 clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One `const` of a score function, and the clocks of the vector port that it takes."""

    ctype: str
    name: str
    text: str
    clk: int


def split_score(
    statements: tuple[Statement, ...], result: tuple[str, int], positions: tuple[Position, ...]
) -> tuple[ScorePart, ...]:
    """Cut a score function where one pair of numbers is carried on, and no position is read twice.

    Args:
        statements: in order.
        result: the expression that is returned, and its clocks.
        positions: what the function may read of the keys.
    """
    groups: list[list[Statement]] = [[]]
    for i, statement in enumerate(statements):
        groups[-1].append(statement)
        later = " ".join([*(s.text for s in statements[i + 1 :]), result[0]])
        carried = [s for s in statements[: i + 1] if _reads(later, s.name)]
        if (
            carried == [statement]
            and statement.ctype == "f32x2"
            and sum(s.clk for s in groups[-1]) >= LEAST_CLK
            and not _reads(later, "raw")
        ):
            groups.append([])
    texts = [" ".join([*(s.text for s in group)]) for group in groups]
    texts[-1] += " " + result[0]
    read = [[p for p in positions if p.name in text] for text in texts]
    if sum(map(len, read)) > len(positions):
        groups, read = [list(statements)], [list(positions)]
    parts = []
    for i, group in enumerate(groups):
        is_last = i == len(groups) - 1
        value = result[0] if is_last else group[-1].text
        inner = group if is_last else group[:-1]
        lines = [f"  const {s.ctype} {s.name} = {s.text};" for s in inner]
        if i:
            lines.insert(0, f"  const f32x2 {groups[i - 1][-1].name} = part;")
        lines.append(f"  return {value};")
        parts.append(
            ScorePart(
                name=f"score_part_{i}" if len(groups) > 1 else "score_pair",
                lines=tuple(part for line in lines for part in wrapped(line, " " * 6)),
                positions=tuple(read[i]),
                takes_part=i > 0,
                # NOTE: at least an instruction, since what takes no vector port is placed freely.
                clk=max(VECTOR_CLK, sum(s.clk for s in group) + (result[1] if is_last else 0)),
            )
        )
    return tuple(parts)


def _reads(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None
