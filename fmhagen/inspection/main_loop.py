"""The main loop of a compiled kernel under the static model, where a target has one."""

from __future__ import annotations

import dataclasses

from fmhagen.compile.binary import Resources
from fmhagen.inspection.occupancy import occupancy
from fmhagen.model import Loop, LoopReport, find_loops, parse_listing, report_loop
from fmhagen.runtime.emulator_records import BankUse
from fmhagen.targets import Target
from fmhagen.targets.timing import timing_of


def main_loop_report(
    text: str,
    target: Target,
    resources: Resources,
    *,
    threads: int,
    groups: int = 1,
    banks: tuple[BankUse, ...] = (),
) -> LoopReport | None:
    """Model the main loop in a listing.

    Args:
        text: the listing, of a disassembler or of a compiler.
        target: the chip.
        resources: what the kernel uses, for the waves that a SIMD holds.
        threads: threads of a block.
        groups: groups of waves that run the loop half a step apart.
        banks: how accesses went through the banks on the emulator; conflicts cost their clocks.

    Returns:
        The report, or None where no model is written for the target or no loop is found.
    """
    timing = timing_of(target.name)
    if timing is None:
        return None
    loops = find_loops(parse_listing(text, timing))
    if not loops:
        return None
    waves = max(1, occupancy(target, resources, threads=threads).warps // timing.simds)
    return report_loop(
        tuple(_charged(loop, banks) for loop in loops), timing, waves=waves, groups=groups
    )


def snapshot(report: LoopReport) -> str:
    """Return a report as one line: instructions of a wave and turn by class, the prediction."""
    counts = ", ".join(f"{name} {count}" for name, count in sorted(report.counts))
    return f"{counts}; utilisation {report.simulated.matrix_utilisation:.3f}"


def _charged(loop: Loop, banks: tuple[BankUse, ...]) -> Loop:
    """Add the passes that bank conflicts cost, on average, to each access of their kind."""
    extra = {use.name: round(use.extra_wavefronts / use.accesses) for use in banks if use.accesses}
    operations = tuple(
        dataclasses.replace(operation, extra_lds=extra[operation.mnemonic])
        if extra.get(operation.mnemonic)
        else operation
        for operation in loop.operations
    )
    return Loop(operations=operations)
