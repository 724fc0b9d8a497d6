"""Timing: what a static model of a main loop must know of a chip's instructions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What an instruction keeps busy."""

    MATRIX = "matrix"
    VECTOR = "vector"
    TRANSCENDENTAL = "transcendental"
    REGISTER_MOVE = "register move"
    LDS = "LDS"
    LOAD = "vector memory"
    WAIT = "wait"
    BARRIER = "barrier"
    IDLE = "idle"
    PRIORITY = "priority"
    BRANCH = "branch"
    SCALAR_LOAD = "scalar memory"
    SCALAR = "scalar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Clocks of one chip.

    Attributes:
        name: the target's name.
        simds: SIMDs of a compute unit, which share its LDS.
        compute_units: of the reference product.
        clock_ghz: clock at which a prediction is stated.
        matrix_flops: floating-point operations of the matrix instruction that kernels here use.
        instructions: (pattern of a mnemonic, kind, clocks of what it keeps busy), in order.
        issue_clk: clocks from one instruction of a wave to its next, and of the vector port that
            a matrix instruction takes.
        branch_clk: clocks of a branch that is taken.
        lds_latency_clk: from issue to data, with no one else in the LDS.
        load_latency_clk: the same for global memory, as L2 answers.
        barrier_clk: from the last wave's arrival to the next instruction.
        sources: for each group of facts, where it is stated.
    """

    name: str
    simds: int
    compute_units: int
    clock_ghz: float
    matrix_flops: int
    instructions: tuple[tuple[str, Kind, int], ...]
    issue_clk: int
    branch_clk: int
    lds_latency_clk: int
    load_latency_clk: int
    barrier_clk: int
    sources: tuple[tuple[str, str], ...]


def timing_of(target_name: str) -> Timing | None:
    """Return the timing of a target, or None where no model is written for it."""
    from fmhagen.targets.gfx942_timing import TIMING

    return TIMING if target_name == TIMING.name else None
