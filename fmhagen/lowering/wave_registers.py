"""How many registers a lane of the loops that go by units of keys needs, and how many waves fit."""

from __future__ import annotations

from fmhagen.errors import ScheduleError
from fmhagen.lowering.language import lower_language
from fmhagen.lowering.slot_draft import Pages
from fmhagen.lowering.wave_layout import Staging, lookup_keys
from fmhagen.plan.score_pair import ScorePair
from fmhagen.plan.slots import FORMS
from fmhagen.schedule import MainLoop, Matrix, Schedule
from fmhagen.spec import AttentionSpec, CacheScale
from fmhagen.targets import Target

SIMDS = 4
# Row statistics, loop state, and what a compiler keeps besides: read from the code objects of all
# compilers, for kernels that come close to the limit. By the keys of a unit.
SPARE_REGISTERS = {32: 45, 64: 26}
SPARE_REGISTERS_OF_GROUPS = {32: 36, 64: 42}
SPARE_REGISTERS_OF_SECOND_ROW = 24
SPARE_REGISTERS_OF_LANGUAGE = 4  # score functions, packed sequences
# Largest head dim of a cache whose tokens have factors: beyond, clang 19 spills; by whether it has
# pages, since resources of contiguous rows take scalar registers.
MOST_DEPTH_WITH_FACTORS = {True: 192, False: 128}
FACTOR_REGISTERS = {32: 14, 64: 44}  # where each key and value has a factor
PAGE_REGISTERS = 3  # for each page that is looked up: its number, its address
SPARE_REGISTERS_OF_DIVISION = 8
SPARE_REGISTERS_OF_PAGED_SCORES = 12
MOST_LOOKUPS = 8  # of pages that are no power of two, where O fills the registers of one wave
WIDEST_WITH_MORE = 192
SCORE_REGISTERS = 4  # for each number that the score function carries from key to key


def pages_of(spec: AttentionSpec, staging: Staging) -> Pages | None:
    """Return how rows are looked up in pages; None without pages."""
    if spec.page_size is None:
        return None
    lookups = staging.v_keys // lookup_keys(spec, staging)
    return Pages(size=spec.page_size, value_lookups=lookups)


def score_registers(pair: ScorePair, unit: int) -> int:
    """Return the registers that the score function keeps from key to key."""
    return SCORE_REGISTERS * len(pair.positions) + unit // 2 * len(pair.fetches)


def _spare_registers(spec: AttentionSpec, schedule: Schedule) -> int:
    largest = FORMS[schedule.matrix].lane_rows if spec.max_logit else 0
    if schedule.main_loop != MainLoop.WAVE_PING_PONG:
        return SPARE_REGISTERS[schedule.tile_n // 2] + largest
    spare = SPARE_REGISTERS_OF_GROUPS[schedule.tile_n // 2] + largest
    if schedule.matrix != Matrix.WIDE:
        spare += SPARE_REGISTERS_OF_SECOND_ROW
    if spec.varlen or lower_language(spec).score is not None:
        spare += SPARE_REGISTERS_OF_LANGUAGE
    return spare


def waves_per_simd_of(
    spec: AttentionSpec,
    schedule: Schedule,
    target: Target,
    staging: Staging,
    fragments: int,
    score_registers: int,
) -> int:
    """Return how many waves a SIMD holds, by the registers that they need.

    Raises:
        ScheduleError: the registers do not go up.
    """
    unit = schedule.tile_n // 2
    scores = unit // 2 if schedule.main_loop == MainLoop.WAVE_PING_PONG else unit
    operands = spec.d // 4 + 16 * -(-spec.dv // 32) + scores + unit // 4 + 4 * fragments
    staged = 4 * staging.k_pieces + staging.v_keys * staging.v_pieces
    places = 2 * staging.k_pieces + (staging.v_keys + 2) * staging.v_pieces + 4 + unit // 16
    need = operands + staged + places + _spare_registers(spec, schedule)
    pages = pages_of(spec, staging)
    if pages is not None:
        lookups = staging.k_pieces + pages.value_lookups * staging.v_pieces
        wide = max(spec.d, spec.dv) > WIDEST_WITH_MORE
        if lookups > MOST_LOOKUPS and wide and not pages.is_power:
            limit = (
                f"over pages of {pages.size} keys leaves no registers for O of {spec.dv} columns"
            )
            hint = "use page_size=16, or any that is a power of two or a multiple of 4"
            raise ScheduleError("main_loop", str(schedule.main_loop), limit, hint)
        need += PAGE_REGISTERS * lookups + (0 if pages.is_power else SPARE_REGISTERS_OF_DIVISION)
        need += SPARE_REGISTERS_OF_PAGED_SCORES if score_registers else 0
    need += score_registers
    if spec.kv_scale == CacheScale.TOKEN:
        _check_factors(spec, schedule)
        need += FACTOR_REGISTERS[unit]
    least = -(-schedule.consumers // SIMDS)
    waves = max(least, min(2, target.max_registers_per_thread // need))
    available = target.max_registers_per_thread // waves
    if need > available:
        raise ScheduleError(
            "consumers",
            schedule.consumers,
            f"S, P, O, Q and what is under way need about {need} registers a thread;"
            f" {waves} waves a SIMD have {available} each",
            "use fewer waves, a smaller tile_n or a smaller prefetch",
        )
    return waves


def _check_factors(spec: AttentionSpec, schedule: Schedule) -> None:
    """Refuse factors of tokens where O leaves them no registers.

    Raises:
        ScheduleError: says what works.
    """
    most = MOST_DEPTH_WITH_FACTORS[spec.page_size is not None]
    if max(spec.d, spec.dv) > most:
        limit = (
            f"has no registers for a factor of each token beyond head_dim={most} of such a cache"
        )
        hint = "use kv_scale='head', or queries that are not packed"
        raise ScheduleError("main_loop", str(schedule.main_loop), limit, hint)
