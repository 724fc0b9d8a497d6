"""The mask and the score function of a spec, built-in parts and the user's, as expressions."""

from __future__ import annotations

from fmhagen.expr import build
from fmhagen.expr.bands import bounds_of
from fmhagen.expr.nodes import Node, Parameter, parameters_of
from fmhagen.expr.substitution import substitute
from fmhagen.expr.tiles import is_unknown
from fmhagen.spec import Anchor, AttentionSpec

ALIBI_SLOPES = Parameter(name="alibi_slopes", dtype="f32", ndim=2, finite=True)
"""Slope of each batch and query head."""


def diagonal_of(spec: AttentionSpec) -> Node:
    """Return the key that stands at query q_idx: q_idx + off."""
    q_idx = build.leaf("q_idx")
    if spec.anchor == Anchor.TOP_LEFT:
        return q_idx
    return build.add(q_idx, build.sub(build.leaf("seqlen_k"), build.leaf("seqlen_q")))


def mask_of(spec: AttentionSpec) -> Node | None:
    """Return which keys a query sees, or None if it sees all: causal, window and mask_mod."""
    kv_idx, diagonal = build.leaf("kv_idx"), diagonal_of(spec)
    parts: list[Node] = []
    right = 0 if spec.causal else spec.window_right
    if right is not None:
        parts.append(build.le(kv_idx, build.add(diagonal, build.const(right))))
    if spec.window_left is not None:
        parts.append(build.le(build.sub(diagonal, build.const(spec.window_left)), kv_idx))
    if spec.mask_mod is not None:
        parts.append(spec.mask_mod.node)
    mask = build.TRUE
    for part in parts:
        mask = build.and_(mask, part)
    return None if mask is build.TRUE else mask


def is_mapped(spec: AttentionSpec) -> bool:
    """Return whether a kernel of the spec follows a block map: no bounds of its mask are known.

    Packed sequences and caches have no map; their masks are asked in every tile of the bands.
    """
    if spec.varlen or spec.kv_cache:
        return False
    rest = bounds_of(mask_of(spec)).rest
    return rest is not None and is_unknown(rest)


def score_of(spec: AttentionSpec) -> Node | None:
    """Return what becomes of a scaled score, or None if it stays: soft cap, ALiBi, score_mod."""
    score = build.leaf("score")
    if spec.soft_cap is not None:
        cap = build.const(float(spec.soft_cap))
        score = build.mul(cap, build.unary("tanh", build.div(score, cap)))
    if spec.alibi:
        slope = build.load(ALIBI_SLOPES, build.leaf("b"), build.leaf("h"))
        distance = build.sub(build.leaf("kv_idx"), diagonal_of(spec))
        score = build.add(score, build.mul(slope, distance))
    if spec.score_mod is not None:
        score = substitute(spec.score_mod.node, {build.leaf("score"): score})
    return None if score is build.leaf("score") else score


def spec_parameters(spec: AttentionSpec) -> tuple[Parameter, ...]:
    """Return what the mask and the score function of a spec read at run time, by name.

    Raises:
        InvalidSpecError: two that differ share one name.
    """
    roots = [node for node in (mask_of(spec), score_of(spec)) if node is not None]
    return parameters_of(*roots)
