"""What a spec says of the work of its tiles: how long they are, and whether they differ."""

from __future__ import annotations

from fmhagen.expr.bands import bounds_of
from fmhagen.formula import mask_of
from fmhagen.spec import AttentionSpec


def is_triangular(spec: AttentionSpec) -> bool:
    """Return whether the mask is causal alone, so that warpgroups may leave key tiles out."""
    return spec.causal and spec.window_left is None and spec.mask_mod is None


def has_short_tiles(spec: AttentionSpec) -> bool:
    """Return whether many tiles of work see few keys."""
    windowed = spec.window_left is not None or spec.window_right is not None
    return spec.causal or windowed or spec.mask_mod is not None or is_ordered(spec)


def is_banded(spec: AttentionSpec) -> bool:
    """Return whether bands say which keys are seen, and these do not begin with the first one."""
    bounds = bounds_of(mask_of(spec))
    return not is_ordered(spec) and not bounds.right_only and bounds.rest is None


def is_ordered(spec: AttentionSpec) -> bool:
    """Return whether sequences differ in length, so that blocks order them."""
    return spec.varlen or spec.kv_cache


def may_cluster(spec: AttentionSpec) -> bool:
    """Return whether neighbouring tiles visit the same keys, from the first one on."""
    return not is_ordered(spec) and (is_triangular(spec) or not has_short_tiles(spec))
