"""What a main loop costs: clocks by class, the bound, the utilisation, the speed."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from fmhagen.model.listing import Loop
from fmhagen.model.simulation import Simulated, simulate
from fmhagen.targets.timing import Kind, Timing

_PORT = (Kind.VECTOR, Kind.TRANSCENDENTAL, Kind.REGISTER_MOVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """The main loop of one kernel.

    Attributes:
        waves: waves of one SIMD.
        counts: (class, instructions of one wave and turn), the most frequent first.
        busy: (what, clocks of one turn of all waves of a SIMD that it is busy).
        bound: what is busy the longest.
        simulated: the in-order simulation.
        clock_ghz: clock of the prediction.
        tflops: prediction for the whole chip in the main loop.
    """

    waves: int
    counts: tuple[tuple[str, int], ...]
    busy: tuple[tuple[str, int], ...]
    bound: str
    simulated: Simulated
    clock_ghz: float
    tflops: float

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready data."""
        return {
            **asdict(self),
            "counts": dict(self.counts),
            "busy": dict(self.busy),
            "simulated": {**asdict(self.simulated), "stalls": dict(self.simulated.stalls)},
        }


def report_loop(
    loops: tuple[Loop, ...], timing: Timing, *, waves: int, groups: int = 1
) -> LoopReport:
    """Report on a kernel's main loop, or on the loops of its groups of waves.

    Args:
        loops: one loop that all waves run, or one for each wave of a SIMD.
        timing: the chip.
        waves: waves of one SIMD.
        groups: groups of waves that run the same loop, each a barrier behind the one before.
    """
    chosen = tuple(loops[i % len(loops)].behind(i % groups) for i in range(waves))
    simulated = simulate(chosen, timing)
    operations = [operation for loop in chosen for operation in loop.operations]
    counts = Counter(str(operation.kind) for operation in chosen[0].operations)
    clk: Counter[Kind] = Counter()
    for operation in operations:
        clk[operation.kind] += operation.clk + operation.extra_lds
    matrices = sum(loop.matrix_count for loop in chosen)
    busy = {
        "matrix core": clk[Kind.MATRIX],
        "vector port": sum(clk[kind] for kind in _PORT) + matrices * timing.issue_clk,
        "of it transcendental": clk[Kind.TRANSCENDENTAL],
        "of it register moves": clk[Kind.REGISTER_MOVE],
        "LDS": clk[Kind.LDS] * timing.simds,
        "vector memory, issue": clk[Kind.LOAD],
        "barriers": counts[str(Kind.BARRIER)] * timing.barrier_clk,
    }
    bounds = {name: value for name, value in busy.items() if not name.startswith("of it")}
    flops = matrices * timing.matrix_flops * timing.simds * timing.compute_units
    return LoopReport(
        waves=waves,
        counts=tuple(counts.most_common()),
        busy=tuple(busy.items()),
        bound=max(bounds, key=lambda name: bounds[name]),
        simulated=simulated,
        clock_ghz=timing.clock_ghz,
        tflops=flops / simulated.clk_per_turn * timing.clock_ghz / 1000,
    )
