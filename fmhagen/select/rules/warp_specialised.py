"""Rules for the warp-specialised main loop: how many warpgroups, how wide a step, which extras."""

from __future__ import annotations

import dataclasses

from fmhagen.expr.cap import cap_of
from fmhagen.expr.finite import may_hide
from fmhagen.formula import score_of
from fmhagen.schedule import MainLoop, Rescale, Schedule, Store
from fmhagen.select.choice import Choice
from fmhagen.select.rules.forced import NO_MAXIMUM, is_wider, with_direct_store, with_maximum
from fmhagen.select.rules.gathering import (
    gathering,
    gathers,
    less_keys_of_small,
    widening,
    widens,
)
from fmhagen.select.rules.narrowing import less_keys, narrowed
from fmhagen.select.rules.work import (
    has_short_tiles,
    is_banded,
    is_ordered,
    is_triangular,
    may_cluster,
)
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target


def choose_warp_specialised(spec: AttentionSpec, target: Target) -> Choice:
    """Return the schedule of a spec that a target supports, with the reasons."""
    depth = max(spec.d, spec.dv)
    if depth <= 96 and (gathers(spec) or widens(spec)):
        choice = _choose_gathered(depth, of_16_bits=not widens(spec))
    elif depth <= 64:
        choice = _choose_shallow(spec)
    elif depth <= 96:
        choice = _choose_three_groups(spec)
    elif depth <= 128:
        choice = _choose_square(spec)
    else:
        choice = _choose_deep(spec)
    if is_wider(spec):
        choice = with_direct_store(choice)
    if may_hide(score_of(spec)):
        choice = with_maximum(choice, "the score function may hide any key")
    elif spec.max_logit:
        choice = with_maximum(choice, "the largest score of a head is that of its rows")
    less = less_keys(spec, depth)
    choice = narrowed(choice, less) if less else choice
    if widens(spec):
        return widening(choice, spec)
    return gathering(choice, spec.page_size) if gathers(spec) and spec.page_size else choice


# (producer, consumer) registers a thread, by consumers: what the warpgroups enter with, dealt anew.
_REGISTERS = {2: (40, 232), 3: (32, 160), 4: (32, 112)}
_PING_PONG = (
    "ping-pong: a warp is held at its matrix instructions, so its softmax runs under the products"
    " of the other warpgroups"
)
_TWO_Q = "two Q buffers and a persistent grid hide the load of Q and the store of O"
_SKIP = "a warpgroup leaves out the key tiles that are hidden from all its rows"
_SOONER = (
    "O leaves from registers: there are many short tiles, and a Q buffer that waits for no store is"
    " loaded sooner"
)
_BANDED = (
    "O leaves by the copy engine: tiles of a band see few keys, and stores from registers take a"
    " third of the time between two of them"
)
_IN_STEP = "the warpgroups fall into step and wait for the tensor cores together"
_MAXIMUM = "a row maximum in every step"
_APART = (
    "tiles apart: with one Q buffer the last O += P V of a tile runs while the next Q loads, rather"
    " than after it"
)
_CAPPED = (
    "three consumer warpgroups of 80 keys: a soft cap doubles the work on a score, and more warps"
    " hide more of it"
)
_THREE_STAGES = "three stages fit, and O leaves from registers: nobody waits for a copy"
_SPLIT_Q = "each warpgroup's rows of Q are loaded as soon as it is done with the last ones"
_CLUSTER = "two blocks that load K and V for each other also wait for each other"


def _warp_specialised(
    consumers: int,
    tile_n: int,
    *,
    stages: int = 2,
    rescale: Rescale = Rescale.ON_OVERFLOW,
    store: Store = Store.STAGED,
    q_stages: int = 0,
    skip_hidden: bool = False,
    ping_pong: bool = True,
    cluster: int = 1,
    split_q: bool = False,
    overlap_tiles: bool = True,
) -> Schedule:
    producer, consumer = _REGISTERS[consumers]
    return Schedule(
        main_loop=MainLoop.WARP_SPECIALISED,
        tile_m=64 * consumers,
        tile_n=tile_n,
        consumers=consumers,
        stages=stages,
        q_stages=q_stages or (2 if store == Store.STAGED else 1),
        persistent=True,
        store=store,
        skip_hidden=skip_hidden,
        ping_pong=ping_pong,
        cluster=cluster,
        split_q=split_q,
        overlap_tiles=overlap_tiles,
        rescale=rescale,
        producer_registers=producer,
        consumer_registers=consumer,
    )


def _choose_shallow(spec: AttentionSpec) -> Choice:
    """Depths to 64, where the softmax bounds."""
    staged = _warp_specialised(4, 64, stages=4)
    direct = _warp_specialised(
        4, 64, stages=4, store=Store.DIRECT, q_stages=2, skip_hidden=is_triangular(spec)
    )
    reasons = (
        "four consumer warpgroups: to head_dim 64 the softmax bounds, and more warps hide more of"
        " its latency",
        "tile_n 64 is the widest whose S, P and O fit 112 registers a thread",
        "four stages fit, since a K or V tile is 8 KiB",
        NO_MAXIMUM,
        _PING_PONG,
    )
    rejected = (
        (_warp_specialised(3, 128, stages=4), "fewer warps to hide the softmax"),
        (_warp_specialised(4, 64, stages=4, ping_pong=False), _IN_STEP),
        (_warp_specialised(4, 64, stages=4, rescale=Rescale.ON_GROWTH), _MAXIMUM),
    )
    if has_short_tiles(spec):
        return Choice(
            schedule=direct,
            reasons=(*reasons, *((_SKIP,) if direct.skip_hidden else ()), _SOONER),
            rejected=((staged, "the next Q waits for the store of O"), *rejected),
        )
    return Choice(schedule=staged, reasons=(*reasons, _TWO_Q), rejected=rejected)


def _choose_three_groups(spec: AttentionSpec) -> Choice:
    """Depths above 64 to 96, where three warpgroups fit."""
    direct = _warp_specialised(3, 96, store=Store.DIRECT, q_stages=2)
    return Choice(
        schedule=direct if is_ordered(spec) else _warp_specialised(3, 96),
        reasons=(
            "three consumer warpgroups: O of 64 rows takes at most 48 registers a thread",
            "tile_n 96 leaves S, P and O within 160 registers a thread",
            NO_MAXIMUM,
            _PING_PONG,
            _TWO_Q,
        ),
        rejected=((_warp_specialised(2, 128), "fewer warps to hide the softmax"),),
    )


def _choose_gathered(depth: int, *, of_16_bits: bool) -> Choice:
    """Depths to 96 of a cache whose rows lanes copy."""
    wide = _warp_specialised(
        2, 176 if of_16_bits else 128, stages=4, store=Store.DIRECT, q_stages=2
    )
    square = _warp_specialised(2, 128, store=Store.DIRECT, q_stages=2)
    best, other = (wide, square) if depth <= 64 else (square, _warp_specialised(2, 112))
    return Choice(
        schedule=best,
        reasons=(
            "two consumer warpgroups: more would leave the warps that copy too few registers, and"
            " copies that are waited for want wide steps",
            NO_MAXIMUM,
            _PING_PONG,
            _TWO_Q,
        ),
        rejected=((dataclasses.replace(other, store=Store.DIRECT, q_stages=2), "narrower steps"),),
    )


def _choose_square(spec: AttentionSpec) -> Choice:
    """Depths above 96 to 128: square tiles of two warpgroups."""
    reasons = (
        "two consumer warpgroups of 64 rows: S (64), O (64) and P (32) fit 232 registers",
        "tile_n 128 equals tile_m, so a causal tile has at most two partly visible steps",
        NO_MAXIMUM,
        _PING_PONG,
        _TWO_Q,
    )
    staged = _warp_specialised(2, 128)
    direct = _warp_specialised(2, 128, store=Store.DIRECT, q_stages=2)
    growth = _warp_specialised(2, 128, rescale=Rescale.ON_GROWTH)
    growth_direct = _warp_specialised(
        2, 128, rescale=Rescale.ON_GROWTH, store=Store.DIRECT, q_stages=2
    )
    if is_banded(spec) and score_of(spec) is None:
        return Choice(
            schedule=staged,
            reasons=(*reasons, _BANDED),
            rejected=(
                (direct, "stores of 16 bytes a lane in place of the copy engine's"),
                (growth, _MAXIMUM),
            ),
        )
    if has_short_tiles(spec):
        return Choice(
            schedule=direct,
            reasons=(*reasons, _SOONER),
            rejected=(
                (growth_direct, _MAXIMUM),
                (staged, "the next Q waits for the store of O"),
                (growth, _MAXIMUM),
            ),
        )
    if cap_of(score_of(spec)) is not None:
        return Choice(
            schedule=_warp_specialised(3, 80, stages=3, store=Store.DIRECT, q_stages=2),
            reasons=(_CAPPED, _THREE_STAGES, NO_MAXIMUM, _PING_PONG, _TWO_Q),
            rejected=(
                (_warp_specialised(3, 80), "two stages: 2 to 4 % slower"),
                (staged, "fewer warps to hide the cap: 2 to 6 % slower"),
            ),
        )
    return Choice(
        schedule=staged,
        reasons=reasons,
        rejected=(
            (direct, "stores of 16 bytes a lane in place of the copy engine's"),
            (growth, _MAXIMUM),
            (_warp_specialised(3, 80), "slower below 4096 keys"),
            (_warp_specialised(2, 128, ping_pong=False), _IN_STEP),
            (_warp_specialised(2, 128, cluster=2), _CLUSTER),
        ),
    )


def _choose_deep(spec: AttentionSpec) -> Choice:
    """Depths above 128, where shared memory holds one Q buffer."""
    tile_n = 64 if max(spec.d, spec.dv) > 192 else 128 if spec.dv <= 128 else 96
    tile_n -= less_keys_of_small(spec) if widens(spec) else 0
    skip = is_triangular(spec) and tile_n < 128
    growth, overflow, cluster = (
        _warp_specialised(
            2,
            tile_n,
            store=Store.DIRECT,
            skip_hidden=skip,
            rescale=rescale,
            split_q=True,
            overlap_tiles=False,
            cluster=blocks,
        )
        for rescale, blocks in (
            (Rescale.ON_GROWTH, 1),
            (Rescale.ON_OVERFLOW, 1),
            (Rescale.ON_GROWTH, 2),
        )
    )
    overlapped = _warp_specialised(
        2, tile_n, store=Store.DIRECT, skip_hidden=skip, rescale=Rescale.ON_GROWTH
    )
    narrow = _warp_specialised(2, tile_n - 16, store=Store.DIRECT)
    return Choice(
        schedule=growth,
        reasons=(
            f"two stages of K and V tiles of {tile_n} keys leave room for one Q buffer, so O leaves"
            " from registers and Q is loaded again as soon as S is complete",
            "rescale on_growth: deep products hide the row maximum, and no vote is taken",
            _PING_PONG,
            _APART,
            _SPLIT_Q,
            *((_SKIP,) if skip else ()),
        ),
        rejected=(
            (overflow, "within a few percent of it"),
            (overlapped, "the next tile's Q is waited for before this one's O is done"),
            *(((cluster, _CLUSTER),) if may_cluster(spec) else ()),
            (narrow, "more steps of less work"),
        ),
    )
