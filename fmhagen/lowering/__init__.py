"""Lowering: spec + schedule + target -> Plan, with every capacity and divisibility check."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.lowering.split_kv import lower_split_kv
from fmhagen.lowering.split_kv_waves import lower_split_kv_waves
from fmhagen.lowering.warp_specialised import lower_warp_specialised
from fmhagen.lowering.wave_interleaved import lower_wave_interleaved
from fmhagen.lowering.wave_pipelined import lower_wave_pipelined
from fmhagen.plan.attention import Plan
from fmhagen.schedule import Copy, MainLoop, Matrix, Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target
from fmhagen.validate import check_support

_WITH_MATRIX_FORMS = (MainLoop.WAVE_PIPELINED, MainLoop.WAVE_PING_PONG)


def lower(spec: AttentionSpec, schedule: Schedule, target: Target) -> Plan:
    """Decide everything that a template may print.

    Args:
        spec: what to compute.
        schedule: how to tile it.
        target: the chip.

    Returns:
        The plan; the same inputs give an equal plan.

    Raises:
        UnsupportedSpecError: the target does not support the spec.
        ScheduleError: the schedule does not fit the spec or the chip.
    """
    check_support(spec, target)
    if schedule.main_loop not in target.main_loops:
        limit = f"{target.name} has the main loops {', '.join(target.main_loops)}"
        raise ScheduleError("main_loop", str(schedule.main_loop), limit)
    if schedule.matrix != Matrix.WIDE and schedule.main_loop not in _WITH_MATRIX_FORMS:
        limit = f"is a choice of {', '.join(_WITH_MATRIX_FORMS)} alone"
        raise ScheduleError("matrix", str(schedule.matrix), limit, "leave matrix out")
    if schedule.pack_heads and schedule.main_loop != MainLoop.WARP_SPECIALISED:
        limit = "is a choice of warp_specialised alone"
        raise ScheduleError("pack_heads", True, limit, "use pack_heads=False")
    _check_cache(spec, schedule, target)
    splits = lower_split_kv_waves if schedule.copy == Copy.DIRECT else lower_split_kv
    table = {
        MainLoop.WARP_SPECIALISED: lower_warp_specialised,
        MainLoop.WAVE_INTERLEAVED: lower_wave_interleaved,
        MainLoop.WAVE_PIPELINED: lower_wave_pipelined,
        MainLoop.WAVE_PING_PONG: lower_wave_pipelined,
        MainLoop.SPLIT_KV: splits,
    }
    return table[schedule.main_loop](spec, schedule, target)


def _check_cache(spec: AttentionSpec, schedule: Schedule, target: Target) -> None:
    """Refuse a main loop, or copies, that do not read what the spec's keys and values lie in.

    Raises:
        ScheduleError: says which does.
    """
    if not spec.kv_cache:
        if schedule.main_loop == MainLoop.SPLIT_KV:
            limit = "split_kv is for specs with kv_cache=True"
            raise ScheduleError("main_loop", str(schedule.main_loop), limit)
        return
    loops = [MainLoop.SPLIT_KV, MainLoop(target.main_loops[0])]
    if spec.varlen:
        loops = loops[1:]
    if spec.kv_dtype is not None and "kv_dtype_many" not in target.cache_features:
        loops = loops[:1]
    if schedule.main_loop not in loops:
        limit = f"a spec with kv_cache=True has the main loops {', '.join(loops)}"
        raise ScheduleError("main_loop", str(schedule.main_loop), limit)
    if schedule.main_loop == MainLoop.SPLIT_KV and schedule.copy not in target.cache_copies:
        limit = f"on {target.name} it must be {' or '.join(target.cache_copies)}"
        hint = f"use copy={target.cache_copies[0]!r}"
        raise ScheduleError("copy", str(schedule.copy), limit, hint)


__all__ = ["lower"]
