"""In-order simulation of the waves of one SIMD in their main loops.

Each wave issues its instructions in order, at most one every `issue_clk`. The waves share the
vector port, the matrix core, and a SIMD's share of the LDS. A matrix instruction takes the vector
port while it issues. Barriers join the waves. Nothing here depends on data.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fmhagen.model.listing import Loop, Operation
from fmhagen.targets.timing import Kind, Timing

_WARM_TURNS = 4
_TURNS = 16
_VECTOR = (Kind.VECTOR, Kind.TRANSCENDENTAL, Kind.REGISTER_MOVE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation gave.

    Attributes:
        clk_per_turn: clocks of a turn of all waves.
        matrix_utilisation: share of them in which the matrix core works.
        stalls: clocks a turn and wave that the waves waited, by what they waited for.
    """

    clk_per_turn: float
    matrix_utilisation: float
    stalls: tuple[tuple[str, float], ...]


@dataclass(slots=True)
class _Wave:
    operations: tuple[Operation, ...]
    place: int = 0
    turns: int = 0
    ready: int = 0
    priority: int = 0
    issued: int = 0
    at_barrier: bool = False
    loads: deque[int] = field(default_factory=deque)  # when each one under way is complete
    lds: deque[int] = field(default_factory=deque)
    stalls: dict[str, int] = field(default_factory=dict)


def simulate(loops: tuple[Loop, ...], timing: Timing) -> Simulated:
    """Simulate one wave for each loop given, all on one SIMD.

    The LDS serves all SIMDs alike: what one wave transfers is charged once for each of them.
    """
    waves = [_Wave(operations=loop.operations) for loop in loops]
    machine = _Machine(timing=timing, waves=waves)
    start = 0
    work_start = 0
    while min(wave.turns for wave in waves) < _WARM_TURNS + _TURNS:
        machine.step()
        if start == 0 and min(wave.turns for wave in waves) >= _WARM_TURNS:
            start, work_start = machine.now, machine.matrix_work
            for wave in waves:
                wave.stalls.clear()
    clk = machine.now - start
    totals: dict[str, float] = {}
    for wave in waves:
        for name, value in wave.stalls.items():
            totals[name] = totals.get(name, 0.0) + value / (_TURNS * len(waves))
    return Simulated(
        clk_per_turn=clk / _TURNS,
        matrix_utilisation=(machine.matrix_work - work_start) / clk,
        stalls=tuple(sorted(totals.items(), key=lambda item: -item[1])),
    )


@dataclass(slots=True)
class _Machine:
    timing: Timing
    waves: list[_Wave]
    now: int = 0
    vector_free: int = 0
    matrix_free: int = 0
    lds_free: int = 0
    matrix_work: int = 0
    issues: int = 0

    def step(self) -> None:
        """Issue the instruction that can go first."""
        waiting = [wave for wave in self.waves if not wave.at_barrier]
        wave = min(waiting, key=lambda w: (self._earliest(w)[0], -w.priority, w.issued))
        time, reason = self._earliest(wave)
        if time > wave.ready:
            wave.stalls[reason] = wave.stalls.get(reason, 0) + time - wave.ready
        self.now = max(self.now, time)
        self.issues += 1
        wave.issued = self.issues
        self._issue(wave, wave.operations[wave.place], time)
        wave.place += 1
        if wave.place == len(wave.operations):
            wave.place = 0
            wave.turns += 1

    def _earliest(self, wave: _Wave) -> tuple[int, str]:
        operation = wave.operations[wave.place]
        time, reason = wave.ready, ""
        if operation.kind in _VECTOR and self.vector_free > time:
            time, reason = self.vector_free, "vector port"
        if operation.kind == Kind.MATRIX:
            if self.matrix_free > time:
                time, reason = self.matrix_free, "matrix core"
            if self.vector_free > time:
                time, reason = self.vector_free, "vector port"
        if operation.kind == Kind.WAIT:
            for queue, left, name in (
                (wave.loads, operation.vmcnt, "vector memory"),
                (wave.lds, operation.lgkmcnt, "LDS"),
            ):
                if left is not None and len(queue) > left:
                    done = queue[len(queue) - left - 1]
                    if done > time:
                        time, reason = done, name
        return time, reason

    def _issue(self, wave: _Wave, operation: Operation, time: int) -> None:
        timing = self.timing
        wave.ready = time + timing.issue_clk
        kind = operation.kind
        if kind in _VECTOR:
            self.vector_free = time + operation.clk
        elif kind == Kind.MATRIX:
            self.vector_free = time + timing.issue_clk
            self.matrix_free = time + operation.clk
            self.matrix_work += operation.clk
        elif kind == Kind.LDS:
            busy = (operation.clk + operation.extra_lds) * timing.simds
            begin = max(time, self.lds_free)
            self.lds_free = begin + busy
            wave.lds.append(begin + timing.lds_latency_clk)
        elif kind == Kind.LOAD:
            wave.loads.append(time + timing.load_latency_clk)
        elif kind == Kind.WAIT:
            _drop(wave.loads, operation.vmcnt)
            _drop(wave.lds, operation.lgkmcnt)
        elif kind == Kind.IDLE:
            wave.ready = time + timing.issue_clk * (operation.count + 1)
        elif kind == Kind.PRIORITY:
            wave.priority = operation.count
        elif kind == Kind.BRANCH and operation.is_taken:
            wave.ready = time + timing.branch_clk
        elif kind == Kind.BARRIER:
            wave.at_barrier = True
            wave.ready = time
            if all(other.at_barrier for other in self.waves):
                for other in self.waves:
                    lost = time - other.ready
                    other.stalls["barrier"] = other.stalls.get("barrier", 0) + lost
                    other.at_barrier = False
                    other.ready = time + timing.barrier_clk


def _drop(queue: deque[int], left: int | None) -> None:
    if left is not None:
        while len(queue) > left:
            queue.popleft()
