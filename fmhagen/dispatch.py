"""Dispatch: one function that selects a kernel for tensors, compiles it once and launches it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fmhagen.cache_kind import Cache, Hints, cache_of, hints_of
from fmhagen.errors import InvalidSpecError, TensorError
from fmhagen.records import plain
from fmhagen.runtime.autocast import autocast, is_wide
from fmhagen.runtime.captures import captured_arrays
from fmhagen.runtime.checks import axes_of
from fmhagen.runtime.outputs import new_max_logit
from fmhagen.runtime.parameters import joined_captures
from fmhagen.runtime.tensors import view
from fmhagen.schedules import shipped_rows
from fmhagen.spec import Anchor, AttentionSpec, CacheLayout, DType, Layout

if TYPE_CHECKING:
    from fmhagen.api import Kernel
    from fmhagen.expr.mods import MaskMod, Mod, ScoreMod
    from fmhagen.tracing import TracedMods

Window = tuple[int | None, int | None]


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: Window | None = None,
    anchor: str = Anchor.BOTTOM_RIGHT,
    scale: float | None = None,
    soft_cap: float | None = None,
    mask_mod: MaskMod | str | Callable[..., Any] | None = None,
    score_mod: ScoreMod | str | Callable[..., Any] | None = None,
    params: Mapping[str, Any] | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    cache_seqlens: Any = None,
    block_table: Any = None,
    cache_layout: str = CacheLayout.NHD,
    layout: str = Layout.BSHD,
    out: Any = None,
    return_lse: bool = False,
    return_max_logit: bool = False,
    validate: bool | None = None,
    block_map: Any = None,
    target: str | None = None,
) -> Any:
    """Compute O = softmax(scale * Q K^T + mask) V with the kernel for these tensors.

    The first call of a kind compiles; the process keeps the kernel, and the user's cache the
    binary. Functions are traced once for each code and captured constants; captured tensors may
    change from call to call, and so may `scale`, lengths and `params`, without a new kernel.

    Args:
        q: query, (B, Sq, H, d) in the layout bshd; packed sequences (total, H, d).
        k: key, (B, Sk, Hk, d).
        v: value, (B, Sk, Hk, dv).
        causal: hide the keys right of the diagonal.
        window: keys to the left and to the right of the diagonal that a query sees; None or -1
            means unlimited.
        anchor: where the diagonal ends when Sq differs from Sk: bottom_right or top_left.
        scale: softmax scale; None means 1 / sqrt(d).
        soft_cap: cap of the scaled scores; None means none.
        mask_mod: function of (b, h, q_idx, kv_idx) that gives whether a key is visible.
        score_mod: function of (score, b, h, q_idx, kv_idx) that gives the new score.
        params: tensors and numbers that the functions read, by name, besides what they captured.
        alibi_slopes: (H,) or (B, H): adds slope * (n - m - off) to the scores.
        sinks: (H,): a logit in the denominator of each query head.
        cu_seqlens_q, cu_seqlens_k: (B + 1,): where packed sequences begin, and the end.
        seqused_q, seqused_k: (B,): rows of each packed sequence that count.
        max_seqlen_q, max_seqlen_k: the most rows of a packed sequence.
        cache_seqlens: (B,): k and v are a cache, (B, S, Hk, d), of which each sequence has so many
            keys. Queries may be packed over it, by cu_seqlens_q alone.
        block_table: (B, max_pages): that cache has pages, (pages, page_size, Hk, d).
        cache_layout: order of its axes, nhd or hnd.
        layout: order of the axes, bshd or bhsd.
        out: where O is written.
        return_lse: also give LSE, (B, H, Sq) or packed (H, total), natural logarithm.
        return_max_logit: also give the largest score of each query head, (H,) fp32: scaled, after
            the score function, of visible keys, over batch and rows; -inf where there is none. To
            go on from call to call, give a kernel of a spec with max_logit=True its tensor.
        validate: read offsets and refuse what is wrong with them; see `Kernel`.
        block_map: what tiles a mask shows that reads tensors by position; see `Kernel.prepare`.
        target: the chip to emulate for tensors in host memory; None means the first.

    Returns:
        O, or a tuple of O and what else was asked for, LSE first.

    Raises:
        TensorError: a tensor does not fit; names it, its value and the limit.
        InvalidSpecError: an argument has no meaning.
        UnsupportedSpecError: the target does not support it; says what works.
        TraceError: a function does what no kernel can; names its line.
        CompileError: no compiler is here, or it refused the source.
    """
    if is_wide(q, k, v):
        q, k, v = autocast(q, k, v)
    mask = score = None
    if mask_mod is not None or score_mod is not None:
        mask, score, captured = trace_mods(mask_mod, score_mod)
        params = {**captured_arrays().all_beside(captured, q), **(params or {})} or None
    if not isinstance(causal, bool):
        # NOTE: 1 == True finds a kernel that was made before, and makes none.
        causal = plain(causal)
        if not isinstance(causal, bool):
            raise InvalidSpecError("causal", causal, "must be True or False")
    left, right = (None, None) if window is None else _window(window)
    varlen = cu_seqlens_q is not None or cu_seqlens_k is not None
    cache = None
    if cache_seqlens is not None or block_table is not None:
        cache = cache_of(k, block_table is not None, cache_layout)
    hints: Hints = (None, None, None)
    if cache is not None or (varlen and max_seqlen_q is not None):
        heads_first = cache is not None and cache_layout == CacheLayout.HND
        key_layout = str(layout) if cache is None else "bhsd" if heads_first else "bshd"
        functions = [mod.node for mod in (mask, score) if mod is not None]
        share = alibi_slopes is None and not return_max_logit
        share = share and not any(node.reads("h") for node in functions)
        most = max_seqlen_q if varlen else None
        hints = hints_of(q, k, str(layout), key_layout, varlen, most, share)
    kernel = _kernel(
        q.dtype if hasattr(q, "dtype") else view("q", q).dtype,
        _last_size("q", q),
        _last_size("v", v),
        (causal, left, right, str(anchor), soft_cap),
        None if mask is None else mask.node,
        None if score is None else score.node,
        (alibi_slopes is not None, sinks is not None, varlen, return_max_logit),
        str(layout),
        _length_bucket(k, layout) if shipped_rows() and cache is None else None,
        target,
        cache,
        hints,
    )
    extras: dict[str, Any] = {}
    if params:
        extras["params"] = params
    if alibi_slopes is not None:
        extras["alibi_slopes"] = alibi_slopes
    if sinks is not None:
        extras["sinks"] = sinks
    has_lengths = max_seqlen_q is not None or max_seqlen_k is not None
    if varlen or has_lengths or seqused_q is not None or seqused_k is not None:
        packed = {
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "seqused_q": seqused_q,
            "seqused_k": seqused_k,
            "max_seqlen_q": max_seqlen_q,
            "max_seqlen_k": max_seqlen_k,
        }
        extras |= {name: value for name, value in packed.items() if value is not None}
    if cache is not None:
        cached = {"cache_seqlens": cache_seqlens, "block_table": block_table}
        extras |= {name: value for name, value in cached.items() if value is not None}
    if validate is not None:
        extras["validate"] = validate
    if block_map is not None:
        extras["block_map"] = block_map
    if not return_max_logit:
        return kernel(q, k, v, scale=scale, out=out, return_lse=return_lse, **extras)
    q_view = view("q", q)
    axis = axes_of(kernel.spec).head
    if axis >= len(q_view.shape):
        raise TensorError("q", q_view.shape, "must have an axis of heads")
    max_logit = extras["max_logit"] = new_max_logit(q_view, q_view.shape[axis])
    found = kernel(q, k, v, scale=scale, out=out, return_lse=return_lse, **extras)
    return (*found, max_logit) if return_lse else (found, max_logit)


@functools.lru_cache(maxsize=512)
def _kernel(
    dtype: Any,
    d: int,
    dv: int,
    mask: tuple[bool, int | None, int | None, str, float | None],
    mask_node: Any,
    score_node: Any,
    flags: tuple[bool, bool, bool, bool],
    layout: str,
    seqlen_hint: int | None,
    target: str | None,
    cache: Cache | None = None,
    hints: Hints = (None, None, None),
) -> Kernel:
    """Return the kernel of a kind; one a process, so that its layouts are prepared once."""
    from fmhagen.api import compile_kernel
    from fmhagen.expr.mods import MaskMod, ScoreMod

    causal, left, right, anchor, soft_cap = mask
    alibi, sink, varlen, max_logit = flags
    more: dict[str, Any] = {"anchor": anchor, "layout": layout}  # words, which the spec checks
    if cache is not None:
        kv_dtype, page_size, cache_layout = cache
        more |= {
            "kv_cache": True,
            "kv_dtype": _dtype_of(kv_dtype),
            "page_size": page_size,
            "cache_layout": cache_layout,
        }
    spec = AttentionSpec(
        dtype=_dtype_of(dtype),
        head_dim=d,
        head_dim_v=dv,
        causal=causal,
        window_left=left,
        window_right=right,
        soft_cap=soft_cap,
        alibi=alibi,
        sink=sink,
        varlen=varlen,
        max_logit=max_logit,
        mask_mod=None if mask_node is None else MaskMod(mask_node),
        score_mod=None if score_node is None else ScoreMod(score_node),
        **more,
    )
    return compile_kernel(
        spec,
        target=target,
        seqlen_hint=seqlen_hint,
        query_hint=hints[0],
        group_hint=hints[1],
        heads_hint=hints[2],
    )


@functools.cache
def _mods() -> TracedMods:
    from fmhagen.tracing import TracedMods

    return TracedMods()


def trace_mods(mask_mod: Any, score_mod: Any) -> tuple[Mod | None, Mod | None, dict[str, Any]]:
    """Return the functions as mods without tensors, and the tensors that they captured by name."""
    from fmhagen.expr.mods import MaskMod, ScoreMod

    mask = score = None
    captured: list[dict[str, Any]] = []
    if mask_mod is not None:
        mask, bound = _mods()(MaskMod, mask_mod)
        captured.append(bound)
    if score_mod is not None:
        score, bound = _mods()(ScoreMod, score_mod)
        captured.append(bound)
    return mask, score, joined_captures(*captured)


def _dtype_of(dtype: Any) -> DType:
    from fmhagen.runtime.tensors import dtype_name

    name = dtype_name(str(getattr(dtype, "name", dtype)).removeprefix("torch."))
    if name not in tuple(DType):
        limit = f"Q, K and V must be one of {', '.join(DType)}"
        raise InvalidSpecError("dtype", name, limit, "convert them to bf16")
    return DType(name)


def _last_size(name: str, tensor: Any) -> int:
    shape = tensor.shape if hasattr(tensor, "shape") else view(name, tensor).shape
    if len(shape) == 0:
        raise InvalidSpecError(name, tuple(shape), "must have a dimension of depth")
    return int(shape[-1])


def _window(window: Window) -> Window:
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise InvalidSpecError("window", window, "must be (left, right)", "None is unlimited")
    left, right = (None if side == -1 else side for side in window)
    return left, right


def _length_bucket(k: Any, layout: str) -> int | None:
    """Return the most keys that a row of the table of schedules covers these with."""
    shape = k.shape if hasattr(k, "shape") else view("k", k).shape
    keys = shape[0] if len(shape) == 3 else shape[str(layout).index("s")]
    lengths = sorted({row.max_seqlen for row in shipped_rows()})
    return next((length for length in lengths if length >= keys), None)
