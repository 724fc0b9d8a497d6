"""Instructions of the main loops of sm90 kernels with masks and score functions, by pipe.

    python -m scripts.sm90 [CASE ...]

Compiles with NVRTC and reads the disassembly; needs no GPU. A row counts what a warp executes for
one key tile on the shortest way round the loop: no wait fails, no row outgrows its reference. The
loop over fully visible key tiles is `full`, the one over partly visible tiles `partly`; `within` is
one turn of the loop that asks a mask key by key, which the shortest way leaves out.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass

import numpy as np

from fmhagen.compile import compile_source
from fmhagen.inspection import disassemble
from fmhagen.instance import Instance
from fmhagen.masks import document, documents
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

CASES: dict[str, AttentionSpec] = {
    "full": AttentionSpec(),
    "causal": AttentionSpec(causal=True),
    "ALiBi, full": AttentionSpec(alibi=True),
    "ALiBi, causal": AttentionSpec(alibi=True, causal=True),
    "soft cap, full": AttentionSpec(soft_cap=50.0),
    "soft cap, causal": AttentionSpec(soft_cap=50.0, causal=True),
    "window of 1024": AttentionSpec(causal=True, window_left=1023),
    "documents, full": AttentionSpec(mask_mod=documents([0, 700, 1024])),
    "documents, causal": AttentionSpec(causal=True, mask_mod=documents([0, 700, 1024])),
    "documents by id, causal": AttentionSpec(
        causal=True, mask_mod=document(np.zeros(1024, np.int32))
    ),
    "4 sink tokens and a window of 1024": AttentionSpec(
        mask_mod="((kv_idx < 4) | (q_idx - kv_idx < 1024)) & (kv_idx <= q_idx)"
    ),
}
SHORT_TURN = 24
EXPONENTIALS = 32
"""A step has more."""
PIPES = ("tensor", "MUFU", "FMA", "ALU", "uniform", "other")
# The first pattern that fits the mnemonic gives the pipe.
_PIPE = (
    (r"HGMMA", "tensor"),
    (r"MUFU", "MUFU"),
    (r"FFMA|FADD|FMUL|IMAD|HFMA2|HADD2", "FMA"),
    (r"U[A-Z]", "uniform"),
    (
        r"F2FP|FMNMX|FSEL|FSET|ISETP|SEL|IADD3|LOP3|SHF|LEA|PRMT|VI|MOV|I2FP|PLOP3|R2P|P2R|IABS",
        "ALU",
    ),
)
_LINE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?(U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?);")
_LABEL = re.compile(r"^(\.L\w+):")
_AIM = re.compile(r"`\((\.L\w+)\)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its mnemonic, whether it has a predicate, and where it may jump to."""

    mnemonic: str
    is_predicated: bool
    aim: str


def pipe_of(mnemonic: str) -> str:
    """Return which pipe issues an instruction."""
    return next((pipe for pattern, pipe in _PIPE if re.match(pattern, mnemonic)), "other")


def read(listing: str) -> tuple[list[Instruction], dict[str, int]]:
    """Return the instructions of a listing, and where its labels stand."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif found := _LINE.match(line):
            aim = _AIM.search(found[3]) if found[2].startswith("BRA") else None
            instructions.append(Instruction(found[2], bool(found[1]), aim[1] if aim else ""))
    return instructions, labels


def main_loops(instructions: list[Instruction], labels: dict[str, int]) -> list[tuple[int, int]]:
    """Return (first, last) of the innermost loops with matrix instructions of both products."""
    loops = [
        (labels[item.aim], i)
        for i, item in enumerate(instructions)
        if item.aim in labels and labels[item.aim] <= i
    ]
    loops = [
        (first, last)
        for first, last in loops
        if sum(
            item.mnemonic == "HGMMA" or item.mnemonic.startswith("HGMMA.")
            for item in instructions[first : last + 1]
        )
        > 1
    ]
    return [
        loop
        for loop in loops
        if not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops)
    ][:2]


def shortest(
    instructions: list[Instruction], labels: dict[str, int], first: int, last: int
) -> Counter[str]:
    """Count the pipes on the shortest way from the first instruction of a loop to its last.

    A way that leaves out the exponentials is none: two jumps that hang together allow it.
    """
    way: dict[tuple[int, int], tuple[int, tuple[int, int]]] = {(first, 0): (0, (-1, 0))}
    for i in range(first, last):  # jumps within a loop go forwards, or round a loop within it
        item = instructions[i]
        aims = [labels[item.aim]] if item.aim in labels else []
        if not aims or item.is_predicated:
            aims.append(i + 1)
        for seen in range(EXPONENTIALS + 1):
            if (i, seen) not in way:
                continue
            length = way[i, seen][0] + 1
            now = min(seen + (item.mnemonic == "MUFU.EX2"), EXPONENTIALS)
            for aim in aims:
                if i < aim <= last and ((aim, now) not in way or way[aim, now][0] > length):
                    way[aim, now] = (length, (i, seen))
    counts: Counter[str] = Counter()
    at = (last, EXPONENTIALS)
    while at[0] >= 0:
        counts[pipe_of(instructions[at[0]].mnemonic)] += 1
        at = way[at][1]
    return counts


def within(instructions: list[Instruction], labels: dict[str, int], first: int, last: int) -> int:
    """Count the instructions of one turn of the loops within a loop; those that wait are short."""
    turns = [
        i - labels[item.aim] + 1
        for i, item in enumerate(instructions[: last + 1])
        if item.aim in labels and first < labels[item.aim] <= i < last
    ]
    return sum(turn for turn in turns if turn > SHORT_TURN)


def main(names: list[str]) -> None:
    """Print a table row for each loop of each case."""
    target = find_target("sm90")
    print(f"| kernel | loop | all | {' | '.join(PIPES)} | within | spilled bytes |")
    print("|---|---|" + "---:|" * (len(PIPES) + 3))
    for name in names or CASES:
        source = Instance.of(CASES[name], target).source()
        binary = compile_source(source, allow_spills=True)
        instructions, labels = read(disassemble(binary, source, target).text)
        for kind, loop in zip(("partly", "full"), main_loops(instructions, labels), strict=True):
            counts = shortest(instructions, labels, *loop)
            numbers = " | ".join(str(counts[pipe]) for pipe in PIPES)
            turn = within(instructions, labels, *loop)
            spilled = binary.resources.spill_bytes
            print(
                f"| {name} | {kind} | {counts.total()} | {numbers} | {turn} | {spilled} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
