"""What every lowering shares."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

from fmhagen.expr.mods import Mod
from fmhagen.plan.attention import Constant, SharedRegion
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec, CacheScale
from fmhagen.targets import Target

LN2 = Constant(ctype="f32", name="LN2", value=math.log(2.0), comment="ln(x) = LN2 * log2(x)")
LOG2E = Constant(
    ctype="f32", name="LOG2E", value=math.log2(math.e), comment="exp(x) = exp2(LOG2E * x)"
)

MAX_LOGIT = (("f32*", "max_logit", "[H], largest scores so far, or null"),)
"""The parameter field that the largest scores are raised in."""

NUM_PAGES = ("u32", "num_pages", "of the cache")
"""The parameter field that entries of a block table are below."""


def regions_of(
    rows: Iterable[tuple[str, int, str]], start: int = 0, alignment: int = 1
) -> tuple[tuple[SharedRegion, ...], int]:
    """Place regions of shared memory one behind the other.

    Args:
        rows: name, bytes and comment of each.
        start: the first one's offset, bytes.
        alignment: of each offset, bytes.

    Returns:
        The regions, and one past the last byte.
    """
    regions = []
    for name, size, comment in rows:
        start = -(-start // alignment) * alignment
        regions.append(
            SharedRegion(name=name, offset_bytes=start, size_bytes=size, comment=comment)
        )
        start += size
    return tuple(regions), start


def symbol_of(
    spec: AttentionSpec, schedule: Schedule, target: Target, traits: tuple[str, ...] = ()
) -> str:
    """Return a kernel's symbol: what it computes, then its tile and traits, then the chip."""
    words = ["fmha", "fwd", str(spec.dtype)]
    words += small_words(spec)
    if spec.causal:
        words.append("causal_top_left" if spec.anchor == "top_left" else "causal")
    words += words_of(spec)
    if spec.kv_cache:
        words.append("cache" if spec.page_size is None else f"page{spec.page_size}")
    if spec.p_rounding != "auto":
        words.append(str(spec.p_rounding))
    depth = f"d{spec.d}" if spec.d == spec.dv else f"d{spec.d}x{spec.dv}"
    tile = "_".join((f"m{schedule.tile_m}n{schedule.tile_n}{depth}", *traits))
    return "_".join(words) + f"__{tile}__{target.symbol_suffix}"


def small_words(spec: AttentionSpec) -> tuple[str, ...]:
    """Return what a symbol says of a cache of 8-bit numbers and its factors."""
    if spec.kv_dtype is None:
        return ()
    scale = () if spec.kv_scale == CacheScale.NONE else (f"scale_{spec.kv_scale}",)
    return (f"kv{spec.kv_dtype}", *scale)


def words_of(spec: AttentionSpec) -> tuple[str, ...]:
    """Return what a symbol says of the window, the mods, sinks and packing, in order."""
    words = []
    if spec.window_left is not None or spec.window_right is not None:
        sides = (spec.window_left,) if spec.causal else (spec.window_left, spec.window_right)
        words.append("window" + "x".join("inf" if n is None else str(n) for n in sides))
    if spec.mask_mod is not None:
        words.append(f"mask{_digest(spec.mask_mod)}")
    if spec.soft_cap is not None:
        words.append(f"softcap{spec.soft_cap:g}".replace(".", "p").replace("+", ""))
    if spec.alibi:
        words.append("alibi")
    if spec.score_mod is not None:
        words.append(f"score{_digest(spec.score_mod)}")
    last = (("sink", spec.sink), ("varlen", spec.varlen), ("maxlogit", spec.max_logit))
    words += [name for name, used in last if used]
    return tuple(words)


def _digest(mod: Mod) -> str:
    """Return a few characters that tell functions apart in names of files."""
    return hashlib.sha256(str(mod).encode()).hexdigest()[:6]
