"""The one place where values are refused: what means nothing, and what a target does not do yet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fmhagen.errors import InvalidSpecError, UnsupportedSpecError

if TYPE_CHECKING:
    from fmhagen.spec import AttentionSpec
    from fmhagen.targets import Target

SUPPORTED_DTYPES = ("bf16", "fp16")
SMALL_DTYPES = ("e4m3", "e5m2", "int8")
ROUNDINGS_OF_CACHES = ("auto", "rtne")


def check_meaning(spec: AttentionSpec) -> None:
    """Refuse values that mean nothing on any chip.

    Raises:
        InvalidSpecError: names the field, the value and the limit.
    """
    for name in ("head_dim", "head_dim_v", "page_size"):
        value = getattr(spec, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidSpecError(name, value, "must be an integer")
        if value is not None and value < 1:
            raise InvalidSpecError(name, value, "must be at least 1")
    for name in ("window_left", "window_right"):
        value = getattr(spec, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidSpecError(name, value, "must be an integer or None")
        if value is not None and value < 0:
            raise InvalidSpecError(name, value, "must be at least 0", "None or -1 means unlimited")
    for name in ("causal", "alibi", "sink", "varlen", "kv_cache", "batch_invariant", "max_logit"):
        value = getattr(spec, name)
        if not isinstance(value, bool):
            raise InvalidSpecError(name, value, "must be True or False")
    check_scale("scale", spec.scale)
    if spec.kv_dtype is not None and not spec.kv_cache:
        limit = "is of a cache, and the spec has none"
        raise InvalidSpecError("kv_dtype", str(spec.kv_dtype), limit, "use kv_cache=True")
    if spec.kv_scale != "none" and spec.cache_dtype not in SMALL_DTYPES:
        limit = "factors are of 8-bit caches, " + ", ".join(SMALL_DTYPES)
        raise InvalidSpecError("kv_scale", str(spec.kv_scale), limit, "use kv_scale='none'")
    if isinstance(spec.soft_cap, bool | str):
        raise InvalidSpecError("soft_cap", spec.soft_cap, "must be a number or None")
    if spec.soft_cap is not None and not (spec.soft_cap > 0 and math.isfinite(spec.soft_cap)):
        raise InvalidSpecError("soft_cap", spec.soft_cap, "must be a finite number above 0")


def check_scale(field: str, scale: float | None) -> None:
    """Refuse a softmax scale that is negative or not finite.

    Raises:
        InvalidSpecError: names the field, the value and what to do instead.
    """
    if scale is None:
        return
    if isinstance(scale, bool) or not isinstance(scale, int | float):
        raise InvalidSpecError(field, scale, "must be a number or None")
    if not (scale >= 0 and math.isfinite(scale)):
        limit = "must be finite and at least 0"
        raise InvalidSpecError(field, scale, limit, "for a negative scale negate Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One limit of the kernels that exist today.

    Attributes:
        field: the field of the spec that it judges.
        holds: whether a spec keeps within it on a target.
        limit: a target's limit as a sentence.
        suggestion: the nearest thing that works, given the spec and the target.
    """

    field: str
    holds: Callable[[AttentionSpec, Target], bool]
    limit: Callable[[Target], str]
    suggestion: Callable[[AttentionSpec, Target], str]


def _nearest_head_dim(spec: AttentionSpec, target: Target) -> str:
    larger = [d for d in target.head_dims if d >= max(spec.d, spec.dv)]
    if larger:
        return f"pad Q, K and V with zeros to head_dim={larger[0]} and give the scale"
    return f"the largest is head_dim={target.head_dims[-1]}"


def _head_dims(target: Target) -> str:
    dims = target.head_dims
    if len(dims) <= 4:
        return "supported are " + " and ".join(map(str, dims))
    return f"must be a multiple of {dims[0]} up to {dims[-1]}"


def _feature_rules(
    field: str, feature: str, unused: object, what: str, suggestion: str
) -> tuple[Rule, Rule]:
    """Return the rules that a field stays unused where a target lacks a feature.

    The second one is for specs over a key/value cache, whose kernels have features of their own.
    """

    def rule(*, over_cache: bool) -> Rule:
        return Rule(
            field=field,
            holds=lambda spec, target: (
                getattr(spec, field) == unused
                or spec.kv_cache != over_cache
                or feature in (target.cache_features if over_cache else target.features)
            ),
            limit=lambda target: (
                f"{what} not generated yet" + (" over a key/value cache" if over_cache else "")
            ),
            suggestion=lambda spec, target: suggestion,
        )

    return rule(over_cache=False), rule(over_cache=True)


RULES: tuple[Rule, ...] = (
    Rule(
        field="direction",
        holds=lambda spec, target: spec.direction == "forward",
        limit=lambda target: "the backward pass is not generated yet",
        suggestion=lambda spec, target: "use direction='forward'",
    ),
    Rule(
        field="dtype",
        holds=lambda spec, target: spec.dtype in SUPPORTED_DTYPES,
        limit=lambda target: "supported are " + " and ".join(SUPPORTED_DTYPES),
        suggestion=lambda spec, target: "convert Q, K and V to bf16",
    ),
    Rule(
        field="head_dim",
        holds=lambda spec, target: spec.d in target.head_dims,
        limit=_head_dims,
        suggestion=_nearest_head_dim,
    ),
    Rule(
        field="head_dim_v",
        holds=lambda spec, target: (
            spec.dv in target.head_dims if target.head_dims_differ else spec.dv == spec.d
        ),
        limit=lambda target: (
            _head_dims(target) if target.head_dims_differ else "must equal head_dim for now"
        ),
        suggestion=_nearest_head_dim,
    ),
    *(
        rule
        for field, feature, unused, what, suggestion in (
            ("window_left", "window", None, "sliding windows are", "use window_left=None"),
            (
                "window_right",
                "window",
                None,
                "sliding windows are",
                "use causal=True for window_right=0, else None",
            ),
            ("soft_cap", "score_mod", None, "score functions are", "use soft_cap=None"),
            ("alibi", "score_mod", False, "score functions are", "use alibi=False"),
            ("score_mod", "score_mod", None, "score functions are", "use score_mod=None"),
            ("mask_mod", "mask_mod", None, "mask functions are", "use mask_mod=None"),
            ("sink", "sink", False, "attention sinks are", "use sink=False"),
            ("max_logit", "max_logit", False, "largest scores are", "use max_logit=False"),
            ("varlen", "varlen", False, "packed sequences are", "call once for each sequence"),
            (
                "page_size",
                "paged",
                None,
                "paged caches are",
                "gather the pages into contiguous K and V",
            ),
            (
                "kv_cache",
                "kv_cache",
                False,
                "kernels over a key/value cache are",
                "pass K and V of each sequence's own length",
            ),
        )
        for rule in _feature_rules(field, feature, unused, what, suggestion)
    ),
    Rule(
        field="kv_dtype",
        holds=lambda spec, target: (
            spec.kv_dtype is None
            or (spec.kv_dtype in SMALL_DTYPES and "kv_dtype" in target.cache_features)
        ),
        limit=lambda target: (
            "must be None or one of " + ", ".join(SMALL_DTYPES)
            if "kv_dtype" in target.cache_features
            else "8-bit caches are not generated yet"
        ),
        suggestion=lambda spec, target: "use kv_dtype=None: the element type of Q",
    ),
    Rule(
        field="kv_dtype",
        holds=lambda spec, target: (
            spec.kv_dtype is None or not spec.varlen or "kv_dtype_many" in target.cache_features
        ),
        limit=lambda target: "packed queries over 8-bit caches are not generated yet",
        suggestion=lambda spec, target: "use varlen=False, with as many query rows a sequence",
    ),
    Rule(
        field="p_rounding",
        holds=lambda spec, target: (
            spec.p_rounding in (ROUNDINGS_OF_CACHES if spec.kv_cache else target.p_roundings)
            and (spec.dtype != "fp16" or spec.p_rounding != "rtna")
        ),
        limit=lambda target: (
            "supported are "
            + " and ".join(target.p_roundings)
            + "; rtna for bf16 alone, auto and rtne alone for a cache"
        ),
        suggestion=lambda spec, target: "use p_rounding='auto'",
    ),
)


def check_support(spec: AttentionSpec, target: Target) -> None:
    """Refuse what a target's kernels do not do yet.

    Raises:
        UnsupportedSpecError: names the field, the value, the limit and what works.
    """
    for rule in RULES:
        if not rule.holds(spec, target):
            value = getattr(spec, rule.field)
            if rule.field == "head_dim_v":
                value = spec.dv
            plain = value if isinstance(value, bool | int | float) else str(value)
            limit = f"{rule.limit(target)} on {target.name}"
            raise UnsupportedSpecError(rule.field, plain, limit, rule.suggestion(spec, target))


def is_supported(spec: AttentionSpec, target: Target) -> bool:
    """Return whether a target's kernels can compute a spec."""
    return all(rule.holds(spec, target) for rule in RULES)
