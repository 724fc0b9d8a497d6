"""Rules for the split main loop whose waves load K and V straight into registers."""

from __future__ import annotations

from fmhagen.lowering.split_kv_waves import tile_registers
from fmhagen.schedule import Copy, MainLoop, Schedule
from fmhagen.select.choice import Choice, fits
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target

BLOCKS = ((4, 2), (8, 1), (4, 1), (4, 3))  # waves of a block, blocks a compute unit
TILE_REGISTERS = 64  # of a lane, for K and V: 16 KB a wave
_WHY_NOT = {
    (8, 1): "fewer blocks that wait for one another's merges",
    (4, 1): "half as many bytes in flight",
    (4, 3): "more parts of sequences to add up",
}


def choose_split_kv_waves(spec: AttentionSpec, target: Target) -> Choice:
    """Return the schedule of a spec over a key/value cache that a target supports."""
    widths = [n for n in (64, 32) if tile_registers(spec, n) <= TILE_REGISTERS]
    weighed = [
        Schedule(
            main_loop=MainLoop.SPLIT_KV,
            tile_m=16,
            tile_n=tile_n,
            consumers=waves,
            stages=1,
            copy=Copy.DIRECT,
            blocks_per_unit=blocks,
        )
        for tile_n in (*widths, 16)
        for waves, blocks in BLOCKS
    ]
    chosen = [schedule for schedule in weighed if fits(spec, schedule, target)] or [weighed[0]]
    best = chosen[0]
    flight = tile_registers(spec, best.tile_n) * 4 * target.lanes_per_warp
    rest = [schedule for schedule in chosen[1:] if schedule.tile_n == best.tile_n]
    return Choice(
        schedule=best,
        reasons=(
            "a wave has 16 rows, the queries of a group of heads: decoding has few, and a wave that"
            " loads for itself waits for nobody",
            f"tiles of {best.tile_n} keys: {flight} bytes of K and V on their way to a wave's"
            " registers",
            f"{best.blocks_per_unit} blocks of {best.consumers} waves a compute unit: while waves"
            " wait or multiply, others load",
        ),
        rejected=tuple((s, _WHY_NOT[s.consumers, s.blocks_per_unit]) for s in rest),
    )
