"""The loop nest of a plan as pseudo-code, before any C++ exists."""

from __future__ import annotations

from collections.abc import Callable

from fmhagen.plan.attention import Plan
from fmhagen.schedule import MainLoop, Rescale

_INDENT = "  "


def loop_nest(plan: Plan) -> tuple[str, ...]:
    """Return the lines of a kernel's loop nest, with tile sizes and where each tile lives."""
    table: dict[MainLoop, Callable[[Plan], tuple[str, ...]]] = {
        MainLoop.WARP_SPECIALISED: _warp_specialised,
        MainLoop.WAVE_INTERLEAVED: _wave_interleaved,
        MainLoop.WAVE_PIPELINED: _wave_pipelined,
        MainLoop.WAVE_PING_PONG: _wave_ping_pong,
        MainLoop.SPLIT_KV: _split_kv,
    }
    return table[plan.schedule.main_loop](plan)


def _warp_specialised(plan: Plan) -> tuple[str, ...]:
    s, d, dv = plan.schedule, plan.spec.d, plan.spec.dv
    groups = "warpgroup" if s.consumers == 1 else "warpgroups"
    registers = f"{s.producer_registers} registers a thread"
    values = "by a warp of its own, cleared" if plan.cached else "one step behind K"
    how = "copied and widened" if plan.small.is_used else "gathered"
    values = f"{how} by lanes of two warps, as K" if plan.gathers else values
    return _flat(
        *_tiles(plan),
        (1, "producer warps" if plan.cached else "producer warp", registers),
        (2, f"load Q[{s.tile_m}, {d}] -> SMEM_Q[{s.q_stages}]", "when O of that buffer has left"),
        (2, f"for key tile of {s.tile_n} keys, right to left:", _skipped(plan)),
        (3, f"load K[{s.tile_n}, {d}] -> SMEM_K[{s.stages}]", "when S of that buffer is complete"),
        (3, f"load V[{s.tile_n}, {dv}] -> SMEM_V[{s.stages}]", values),
        (
            1,
            f"{s.consumers} consumer {groups} of {s.tile_m // s.consumers} rows",
            f"{s.consumer_registers} registers a thread",
        ),
        (2, f"S[{s.tile_n}] = Q K^T, mask, softmax", "of the rightmost key tile"),
        *_steps(plan, right_to_left=True),
        (3, "S = Q K^T", f"{_products(plan, d)}, under the P V before it"),
        (3, "O = O + P V", f"{_products(plan, s.tile_n, value=True)}, P stays in registers"),
        *_softmax(plan),
        (2, "O = O + P V", "of the leftmost key tile"),
        *_max_logit(plan, "warp"),
        (2, "O = O / l -> SMEM_Q -> O, LSE", "a store warp sends O while the next tile runs"),
    )


def _wave_interleaved(plan: Plan) -> tuple[str, ...]:
    s, d, dv = plan.schedule, plan.spec.d, plan.spec.dv
    waves = "wave" if s.consumers == 1 else "waves"
    return _flat(
        *_tiles(plan),
        (1, f"{s.consumers} {waves} of {s.tile_m // s.consumers} rows", "each loads and computes"),
        (2, f"load Q[{s.tile_m // s.consumers}, {d}] -> registers", "of this wave's rows"),
        (2, f"load K[{s.tile_n}, {d}] -> SMEM_K[0]", "the first key tile, by all waves"),
        (2, f"load V[{s.tile_n}, {dv}] -> SMEM_V[0]", ""),
        *_steps(plan, right_to_left=False),
        (3, "load the next K, V -> registers", "runs under the products"),
        (3, "S^T = K Q^T", "P then needs no shuffle between the products"),
        *_softmax(plan),
        (3, "O^T = O^T + V^T P^T", "P stays in registers"),
        (3, f"K, V -> the other of SMEM_K[{s.stages}], SMEM_V[{s.stages}]", "then a block barrier"),
        (2, "O = O / l -> O, LSE", ""),
    )


def _wave_pipelined(plan: Plan) -> tuple[str, ...]:
    s, d, dv = plan.schedule, plan.spec.d, plan.spec.dv
    unit = s.tile_n // 2
    table = plan.slot_table
    first, second = (len(table.score_slots), len(table.value_slots)) if table else (0, 0)
    mask = ", with the mask" if plan.causal else ""
    return _flat(
        *_tiles(plan),
        (1, f"{s.consumers} waves of {s.tile_m // s.consumers} rows", "each loads and computes"),
        (2, f"load Q[{s.tile_m // s.consumers}, {d}] -> registers", "of this wave's rows"),
        (2, f"K, V[{unit}, {d}, {dv}] -> SMEM_K, SMEM_V", "of the first units, by all waves"),
        (2, f"S[{unit}] = Q K^T", "of the first unit"),
        (2, f"for key tile of {s.tile_n} keys, left to right:", _skipped(plan)),
        (3, f"for unit of {unit} keys:", "two a tile"),
        (4, f"{first} slots: S = Q K^T of the next unit", f"P, l of this one beside{mask}"),
        (4, f"{second} slots: O = O + P V of this unit", "row maximum of the next one beside"),
        (4, "K of unit + 2, V of unit + 1 -> SMEM_K, SMEM_V", "one block barrier a unit"),
        (4, "O, l = alpha * (O, l)", "only when a row maximum grew by more than 2^8"),
        *_max_logit(plan, "wave"),
        (2, "O = O / l -> O, LSE", ""),
    )


def _wave_ping_pong(plan: Plan) -> tuple[str, ...]:
    s, d, dv = plan.schedule, plan.spec.d, plan.spec.dv
    unit = s.tile_n // 2
    products = len(plan.slot_table.slots) if plan.slot_table else 0
    mask = ", with the mask" if plan.causal else ""
    return _flat(
        *_tiles(plan),
        (
            1,
            f"{s.consumers} waves of {s.tile_m // s.consumers} rows, in two groups",
            "all load and compute; the second group half a step late",
        ),
        (2, f"load Q[{s.tile_m // s.consumers}, {d}] -> registers", "of this wave's rows"),
        (2, f"K, V[{unit}, {d}, {dv}] -> SMEM_K, SMEM_V", "of the first units, by all waves"),
        (2, f"S[{unit}] = Q K^T, P, l", "of the first unit"),
        (2, f"for key tile of {s.tile_n} keys, left to right:", _skipped(plan)),
        (3, f"for unit of {unit} keys:", "two a tile"),
        (
            4,
            "S = Q K^T of the next unit, O = O + P V of this",
            f"{products} matrix instructions; the other group: its softmax",
        ),
        (4, f"P, l of the next unit{mask}", "the other group: its products"),
        (4, "K, V of units to come -> SMEM_K, SMEM_V", "two block barriers a unit"),
        (4, "O, l = alpha * (O, l)", "only when a row maximum grew by more than 2^8"),
        *_max_logit(plan, "wave"),
        (2, "O = O / l -> O, LSE", ""),
    )


def _split_kv(plan: Plan) -> tuple[str, ...]:
    s, d, dv, split = plan.schedule, plan.spec.d, plan.spec.dv, plan.split
    assert split is not None
    pages = f", pages of {plan.spec.page_size} keys" if split.is_paged else ""
    how = "copy engine" if split.uses_bulk_copies else "lanes"
    load = f"load K, V[{s.tile_n}, {d}, {dv}] -> ring[{s.stages}]", f"by the {how}{pages}"
    if split.uses_registers:
        load = f"load K, V[{s.tile_n}, {d}, {dv}] -> registers", f"of the tile after this{pages}"
    warps = "waves" if split.uses_registers else "warps"
    return _flat(
        (0, "cut the steps of all sequences", f"by cache_seqlens, {split.step_keys} keys a step"),
        (0, "for run of steps in this group's share:", "of one sequence"),
        (1, f"load Q[{s.tile_m}, {d}] -> registers", f"{s.tile_m} query rows: queries x heads"),
        (
            1,
            f"each of {s.consumers} {warps}, for key tile of {s.tile_n} keys:",
            "every step, one each",
        ),
        (2, *load),
        (2, "S = Q K^T", ""),
        (2, "O, l = alpha * (O, l)", "only when a row maximum grew by more than 2^8"),
        (2, "P = exp2(scale_log2 * S - reference)", "l = l + rowsum(P)"),
        (2, "O = O + P V", "P stays in registers"),
        (1, f"merge O, l of the {warps}", "through shared memory"),
        (1, "O, LSE", "if the run is all of its sequence"),
        (1, "else partial O, LSE -> workspace", ""),
        *_max_logit(plan, "row of a wave" if split.uses_registers else "row of a warp", indent=0),
        (0, "second kernel: add up the parts of each row", "of sequences that were cut"),
    )


def _tiles(plan: Plan) -> tuple[tuple[int, str, str], ...]:
    s = plan.schedule
    order = "longest first" if plan.causal else "of one head after another"
    loop = "for tile in block, block + blocks, ...:"
    return ((0, loop, f"{s.tile_m} query rows of one (b, h), {order}"),)


def _steps(plan: Plan, *, right_to_left: bool) -> tuple[tuple[int, str, str], ...]:
    s = plan.schedule
    order = "right to left" if right_to_left else "left to right"
    loop = (2, f"for key tile of {s.tile_n} keys, {order}:", _skipped(plan))
    if not plan.causal:
        return (loop,)
    partly = -(-s.tile_m // s.tile_n) + 1
    split = f"two loops: <= {partly} tiles with the mask, the rest without"
    return (loop, (3, "", split))


def _skipped(plan: Plan) -> str:
    if not plan.causal:
        return "all ceil(Sk / tile_n)"
    return f"those with a key n <= m{'' if plan.top_left else ' + Sk - Sq'}"


def _softmax(plan: Plan) -> tuple[tuple[int, str, str], ...]:
    probabilities = (
        (3, "P = exp2(scale_log2 * S - reference)", ""),
        (3, "l = l + rowsum(P)", ""),
    )
    rescale = "O, l = alpha * (O, l)"
    if plan.schedule.rescale == Rescale.ON_OVERFLOW:
        return (*probabilities, (3, rescale, "only when rowsum(P) is too large, which is rare"))
    always = plan.schedule.rescale == Rescale.ALWAYS
    when = "in every step" if always else "only when a row maximum grew by more than 2^8"
    return ((3, rescale, when), *probabilities)


def _max_logit(plan: Plan, by: str, indent: int = 2) -> tuple[tuple[int, str, str], ...]:
    if not plan.max_logit:
        return ()
    return ((indent, "max_logit[h] = max(max_logit[h], S)", f"one atomic operation a {by}"),)


def _products(plan: Plan, depth: int, *, value: bool = False) -> str:
    if not plan.matrix_shapes:
        return "matrix instructions"
    shape = plan.pv_shape if value else plan.qk_shape
    rows = plan.schedule.tile_m // plan.schedule.consumers
    return f"{depth // 16} x m{rows}n{shape.n}k16 {shape.dtype}"


def _flat(*rows: tuple[int, str, str]) -> tuple[str, ...]:
    """Indent the rows and put their notes into one column."""
    texts = [(_INDENT * level + text, note) for level, text, note in rows]
    width = max(len(text) for text, _ in texts)
    return tuple(f"{text:<{width}}  # {note}" if note else text for text, note in texts)
