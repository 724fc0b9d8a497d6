"""The support matrix, made from the validator: nobody keeps it by hand."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.errors import UnsupportedSpecError
from fmhagen.expr.mods import MaskMod, ScoreMod
from fmhagen.spec import Anchor, AttentionSpec, Direction, DType, Rounding
from fmhagen.targets import TARGETS, Target
from fmhagen.validate import check_support


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One row of the matrix.

    Attributes:
        name: what a reader looks for.
        spec: the plainest spec that has it.
    """

    name: str
    spec: AttentionSpec


def _one(name: str, spec: AttentionSpec) -> Feature:
    return Feature(name=name, spec=spec)


FEATURES: tuple[Feature, ...] = (
    _one("forward", AttentionSpec()),
    _one("backward", AttentionSpec(direction=Direction.BACKWARD)),
    *(_one(f"dtype {dtype}", AttentionSpec(dtype=dtype)) for dtype in DType),
    *(_one(f"head_dim {d}", AttentionSpec(head_dim=d)) for d in (32, 64, 96, 128, 192, 256)),
    _one("head_dim 192, head_dim_v 128", AttentionSpec(head_dim=192, head_dim_v=128)),
    _one("causal, bottom-right", AttentionSpec(causal=True)),
    _one("causal, top-left", AttentionSpec(causal=True, anchor=Anchor.TOP_LEFT)),
    _one("sliding window", AttentionSpec(window_left=1023, window_right=0)),
    _one("soft cap", AttentionSpec(soft_cap=50.0)),
    _one("ALiBi", AttentionSpec(alibi=True)),
    _one("mask function", AttentionSpec(mask_mod=MaskMod("kv_idx <= q_idx"))),
    _one("score function", AttentionSpec(score_mod=ScoreMod("score + 1.0"))),
    _one("attention sinks", AttentionSpec(sink=True)),
    _one("largest score of each head", AttentionSpec(max_logit=True)),
    _one("packed sequences", AttentionSpec(varlen=True)),
    _one("key/value cache, contiguous", AttentionSpec(kv_cache=True)),
    _one("key/value cache, pages of any size", AttentionSpec(page_size=16)),
    _one("packed queries over a cache", AttentionSpec(page_size=16, varlen=True)),
    _one("largest score of each head, over a cache", AttentionSpec(page_size=16, max_logit=True)),
    *(
        _one(f"key/value cache of {dtype}", AttentionSpec(kv_cache=True, kv_dtype=dtype))
        for dtype in (DType.E4M3, DType.E5M2, DType.INT8)
    ),
    *(
        _one(f"rounding of P: {rounding}", AttentionSpec(p_rounding=rounding))
        for rounding in (Rounding.RTNE, Rounding.RTNA, Rounding.RTZ_CORRECTED)
    ),
)


def reason_against(feature: Feature, target: Target) -> str | None:
    """Return why a target does not support a feature, or None if it does."""
    try:
        check_support(feature.spec, target)
    except UnsupportedSpecError as error:
        return error.limit.removesuffix(f" on {target.name}")
    return None


def support_matrix() -> str:
    """Return the matrix as a Markdown table, a column a target.

    Grouped heads of any ratio, any sequence lengths and any strides with a unit last one are
    supported wherever a kernel is, so they have no row.
    """
    names = [target.name for target in TARGETS]
    lines = [
        "| feature | " + " | ".join(names) + " | otherwise |",
        "|---|" + "---|" * (len(names) + 1),
    ]
    for feature in FEATURES:
        reasons = [reason_against(feature, target) for target in TARGETS]
        cells = ["yes" if reason is None else "no" for reason in reasons]
        # Sorted and without repetition, because targets usually refuse for the same reason.
        why = "; ".join(sorted({reason for reason in reasons if reason is not None}))
        lines.append(f"| {feature.name} | " + " | ".join(cells) + f" | {why} |")
    return "\n".join(lines) + "\n"
