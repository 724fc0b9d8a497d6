"""Registers that the warp-specialised loop has to spare, and what it does with them."""

from __future__ import annotations

from fmhagen.expr.nodes import walk
from fmhagen.lowering.language import operations
from fmhagen.plan.language import Language
from fmhagen.plan.small_cache import SmallCache
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec

SHORT_MASK = 8  # operations of a mask for one key
WIDE_DEPTHS = (96, 128)  # whose schedules leave a thread registers for the keys of a step


def keys_at_once(spec: AttentionSpec, language: Language) -> int:
    """Return about how many keys the rest of a mask is asked together, where registers allow it.

    0 means that a loop asks about a few at a time.
    """
    rest = language.bounds.rest
    if rest is None or not is_wide(spec):
        return 0
    if sum(count for _, count in operations(rest)) > SHORT_MASK:
        return 0
    # What is read for row and key is read twice.
    reads_both = any(n.op == "load" and n.reads("q_idx") and n.reads("kv_idx") for n in walk(rest))
    return 8 if reads_both else 16


def is_wide(spec: AttentionSpec) -> bool:
    """Return whether a head's depth is one that leaves a thread registers to spare."""
    return WIDE_DEPTHS[0] < max(spec.d, spec.dv) <= WIDE_DEPTHS[1]


def has_spare_registers(spec: AttentionSpec, schedule: Schedule, small: SmallCache) -> bool:
    """Return whether consumers have registers for ranges of rows and products of single warps."""
    is_lean = schedule.consumers == 2 and schedule.p_buffers == 1 and not small.scales_tokens
    return is_wide(spec) and is_lean
