"""A listing of machine code -> operations -> the main loop, along its usual path."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fmhagen.targets.timing import Kind, Timing

_LABEL = re.compile(r"^(?:[0-9a-f]+ )?<?([.\w$]+)>?:")
_INSTRUCTION = re.compile(r"^\s+([a-z]\w+)\s*([^;/]*)")
_TARGET = re.compile(r"<[^>+]*\+0x([0-9a-f]+)>\s*$")
_ADDRESS = re.compile(r"//\s*([0-9A-Fa-f]+):")
_COUNT = re.compile(r"(vmcnt|lgkmcnt)\((\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One instruction.

    Attributes:
        mnemonic: its name.
        kind: what it keeps busy.
        clk: for how long.
        vmcnt, lgkmcnt: operations that a wait leaves under way; None where it does not wait.
        count: idle issues of s_nop, or the level of s_setprio.
        is_taken: a branch that the usual path takes.
        extra_lds: passes through the LDS that bank conflicts add.
    """

    mnemonic: str
    kind: Kind
    clk: int
    vmcnt: int | None = None
    lgkmcnt: int | None = None
    count: int = 0
    is_taken: bool = False
    extra_lds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One turn of a loop, along the path with the most matrix instructions and the least else."""

    operations: tuple[Operation, ...]

    @property
    def matrix_count(self) -> int:
        """Matrix instructions of a turn."""
        return sum(operation.kind == Kind.MATRIX for operation in self.operations)

    def behind(self, barriers: int) -> Loop:
        """Return the loop as it is run by waves that have passed some more of its barriers."""
        places = [i for i, op in enumerate(self.operations) if op.kind == Kind.BARRIER]
        if not places or not barriers:
            return self
        start = places[(barriers - 1) % len(places)] + 1
        return Loop(operations=self.operations[start:] + self.operations[:start])


@dataclass(slots=True)
class _Block:
    operations: list[Operation] = field(default_factory=list)
    branch: str | None = None  # label of the branch at its end
    falls_through: bool = True


@dataclass(slots=True)
class Listing:
    """Blocks of straight-line code in order of address, and the labels on them."""

    blocks: list[_Block]
    labels: dict[str, int]


def parse_listing(text: str, timing: Timing) -> Listing:
    """Split the text of a disassembler, or of a compiler, into blocks.

    Branch targets are labels, or offsets from the first symbol as llvm-objdump prints them.
    """
    patterns = [(re.compile(p), kind, clk) for p, kind, clk in timing.instructions]
    blocks = [_Block()]
    labels: dict[str, int] = {}
    starts: dict[int, tuple[int, int]] = {}  # address -> (block, operation)
    wanted: set[int] = set()
    base: int | None = None
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label:
            if blocks[-1].operations:
                blocks.append(_Block())
            labels[label[1]] = len(blocks) - 1
            continue
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        address = _ADDRESS.search(line)
        if address:
            at = int(address[1], 16)
            base = at if base is None else base
            starts[at - base] = (len(blocks) - 1, len(blocks[-1].operations))
        operation = _operation(match[1], match[2], patterns)
        block = blocks[-1]
        block.operations.append(operation)
        if operation.kind == Kind.BRANCH or operation.mnemonic == "s_endpgm":
            block.falls_through = operation.mnemonic not in ("s_branch", "s_endpgm")
            offset = _TARGET.search(line)
            if offset:
                wanted.add(int(offset[1], 16))
                block.branch = f"+{int(offset[1], 16)}"
            elif operation.kind == Kind.BRANCH:
                block.branch = match[2].strip().split()[0]
            blocks.append(_Block())
    return _split_at(blocks, labels, starts, wanted)


def _split_at(
    blocks: list[_Block],
    labels: dict[str, int],
    starts: dict[int, tuple[int, int]],
    wanted: set[int],
) -> Listing:
    """Cut blocks where a branch by offset leads into the middle of one."""
    cuts: dict[int, dict[int, str]] = {}
    for offset in wanted:
        if offset in starts:
            place, operation = starts[offset]
            cuts.setdefault(place, {})[operation] = f"+{offset}"
    result: list[_Block] = []
    moved: dict[int, int] = {}
    names: dict[str, int] = {}
    for i, block in enumerate(blocks):
        moved[i] = len(result)
        begin = 0
        for cut in sorted(cuts.get(i, {})):
            if cut > begin:
                result.append(_Block(operations=block.operations[begin:cut]))
                begin = cut
            names[cuts[i][cut]] = len(result)
        result.append(
            _Block(
                operations=block.operations[begin:],
                branch=block.branch,
                falls_through=block.falls_through,
            )
        )
    names.update({name: moved[i] for name, i in labels.items() if i < len(blocks)})
    return Listing(blocks=result, labels=names)


def _operation(
    mnemonic: str, operands: str, patterns: list[tuple[re.Pattern[str], Kind, int]]
) -> Operation:
    kind, clk = next(
        ((kind, clk) for pattern, kind, clk in patterns if pattern.match(mnemonic)),
        (Kind.SCALAR, 4),
    )
    counts = {name: int(value) for name, value in _COUNT.findall(operands)}
    number = re.match(r"\s*(\d+)", operands)
    return Operation(
        mnemonic=mnemonic,
        kind=kind,
        clk=clk,
        vmcnt=counts.get("vmcnt"),
        lgkmcnt=counts.get("lgkmcnt"),
        count=int(number[1]) if number and kind in (Kind.IDLE, Kind.PRIORITY) else 0,
    )


def find_loops(listing: Listing) -> tuple[Loop, ...]:
    """Return the loops with the most matrix instructions a turn, each along its usual path.

    Of the paths through a turn, the one with the most matrix instructions counts, and of these the
    shortest: what else stands in a loop is for rare cases. An outer loop that holds another with
    as many is left out.
    """
    found: list[tuple[int, int, Loop]] = []
    for end, block in enumerate(listing.blocks):
        head = listing.labels.get(block.branch or "")
        if head is None or head > end:
            continue
        path = _best_path(listing, head, end)
        if path is not None:
            found.append((head, end, Loop(operations=path)))
    inner = [
        (head, end, loop)
        for head, end, loop in found
        if not any(
            other is not loop
            and head <= h
            and e <= end
            and (h, e) != (head, end)
            and other.matrix_count * 2 >= loop.matrix_count
            for h, e, other in found
        )
    ]
    most = max((loop.matrix_count for _, _, loop in inner), default=0)
    best: dict[int, Loop] = {}
    for head, _, loop in inner:
        if most and loop.matrix_count == most:
            kept = best.get(head)
            if kept is None or len(loop.operations) < len(kept.operations):
                best[head] = loop
    return tuple(best.values())


def _best_path(listing: Listing, head: int, end: int) -> tuple[Operation, ...] | None:
    """Return the path from `head` to the branch that ends `end`, through higher blocks alone."""
    best: dict[int, tuple[int, int, tuple[Operation, ...]]] = {head: (0, 0, ())}
    for i in range(head, end + 1):
        if i not in best:
            continue
        block = listing.blocks[i]
        matrices = sum(operation.kind == Kind.MATRIX for operation in block.operations)
        score = (best[i][0] + matrices, best[i][1] - len(block.operations))
        target = listing.labels.get(block.branch or "")
        if i == end:
            return best[i][2] + _with_branch(block, taken=True)
        successors = [(target, True)] if target is not None and i < target <= end else []
        successors += [(i + 1, False)] if block.falls_through else []
        for successor, taken in successors:
            path = (*score, best[i][2] + _with_branch(block, taken=taken))
            if successor not in best or path[:2] > best[successor][:2]:
                best[successor] = path
    return None


def _with_branch(block: _Block, *, taken: bool) -> tuple[Operation, ...]:
    if not taken or not block.operations:
        return tuple(block.operations)
    last = block.operations[-1]
    branch = Operation(mnemonic=last.mnemonic, kind=last.kind, clk=last.clk, is_taken=True)
    return (*block.operations[:-1], branch)
