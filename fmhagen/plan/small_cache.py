"""What a plan says of a cache of 8-bit numbers that a loop widens to 16 bits on its way."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.spec import AttentionSpec, CacheScale, DType


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallCache:
    """The numbers of a cache of 8 bits, and the factors that belong to them.

    Attributes:
        is_used: whether there is such a cache.
        is_e4m3, is_e5m2: which floats they are; neither: int8.
        scales_heads: K and V of a head, or all of them, have one factor each.
        is_bf16: they are multiplied as bf16, else as fp16.
        needs_floats: some are multiplied by factors before they are rounded.
        round_call: function that rounds two products of values and factors.
        scales_tokens: every key and every value has one of its own.
    """

    is_used: bool
    is_bf16: bool
    needs_floats: bool
    round_call: str
    is_e4m3: bool
    is_e5m2: bool
    scales_heads: bool
    scales_tokens: bool


NO_SMALL_CACHE = SmallCache(
    is_used=False,
    is_bf16=False,
    needs_floats=False,
    round_call="",
    is_e4m3=False,
    is_e5m2=False,
    scales_heads=False,
    scales_tokens=False,
)


def small_cache_of(spec: AttentionSpec) -> SmallCache:
    """Return what a spec's cache is."""
    return SmallCache(
        is_used=spec.kv_dtype is not None,
        is_bf16=spec.dtype == DType.BF16,
        needs_floats=spec.kv_scale == CacheScale.TOKEN,
        round_call="pack_f16x2" if spec.dtype == DType.FP16 else "pack_bf16x2_away",
        is_e4m3=spec.kv_dtype == DType.E4M3,
        is_e5m2=spec.kv_dtype == DType.E5M2,
        scales_heads=spec.kv_scale in (CacheScale.TENSOR, CacheScale.HEAD),
        scales_tokens=spec.kv_scale == CacheScale.TOKEN,
    )


def scale_fields(spec: AttentionSpec) -> tuple[tuple[str, str, str], ...]:
    """Return the parameter fields of the factors: (ctype, name, comment) of each."""
    if spec.kv_scale == CacheScale.NONE:
        return ()
    of_tokens = spec.kv_scale == CacheScale.TOKEN
    outer = "pages" if of_tokens and spec.page_size is not None else "batch entries"
    return tuple(
        field
        for name in ("k_scale", "v_scale")
        for field in (
            ("const f32*", name, f"factors of {name[0].upper()} by {spec.kv_scale}"),
            ("i64", f"{name}_stride_b", f"elements, between {outer}"),
            ("i64", f"{name}_stride_h", "elements"),
            *((("i64", f"{name}_stride_n", "elements"),) if of_tokens else ()),
        )
    )
