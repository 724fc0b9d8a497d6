"""AttentionSpec: what is computed, with no word of hardware."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fmhagen.expr.mods import MaskMod, ScoreMod
from fmhagen.records import Record


class DType(StrEnum):
    """Element type of Q, K and V."""

    BF16 = "bf16"
    FP16 = "fp16"
    E4M3 = "e4m3"
    E5M2 = "e5m2"
    INT8 = "int8"


class Direction(StrEnum):
    """Which pass is computed."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Anchor(StrEnum):
    """Where the diagonal of a causal mask or window is fixed when Sq differs from Sk."""

    BOTTOM_RIGHT = "bottom_right"
    TOP_LEFT = "top_left"


class Layout(StrEnum):
    """Order of a four-dimensional tensor's axes: a name for strides, not for storage."""

    BSHD = "bshd"
    BHSD = "bhsd"


class CacheLayout(StrEnum):
    """Order of a cache's axes: (pages, keys, heads, depth) or (pages, heads, keys, depth)."""

    NHD = "nhd"
    HND = "hnd"


class CacheScale(StrEnum):
    """What the numbers of an 8-bit cache are multiplied by: nothing, or fp32 factors of K and of V.

    One factor for the `tensor`, one for each key `head` (and perhaps each sequence), or one for
    each `token` and head.
    """

    NONE = "none"
    TENSOR = "tensor"
    HEAD = "head"
    TOKEN = "token"


class Rounding(StrEnum):
    """How P = exp2(..) is rounded to 16 bits before it is multiplied by V.

    `auto`: what the target does best. `rtne`: to nearest even. `rtna`: to nearest, ties away from
    zero. `rtz_corrected`: truncated, with the mean error of truncation taken out of O.
    """

    AUTO = "auto"
    RTNE = "rtne"
    RTNA = "rtna"
    RTZ_CORRECTED = "rtz_corrected"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AttentionSpec(Record):
    """What one attention operator computes: O = softmax(scale * Q K^T + mask) V.

    Attributes:
        direction: forward or backward pass.
        dtype: element type of Q, K, V and O; products and softmax are fp32.
        head_dim: depth `d` of Q and K.
        head_dim_v: depth `dv` of V and O; None means `head_dim`.
        causal: hide key n from query m unless n <= m + off, off = Sk - Sq (or 0, see `anchor`).
        anchor: bottom_right (off = Sk - Sq) or top_left (off = 0).
        window_left: keys further left than this of the diagonal are hidden; None means unlimited.
        window_right: the same to the right.
        scale: softmax scale; None means 1 / sqrt(head_dim).
        layout: axis order of the tensors that a call takes and gives.
        soft_cap: cap * tanh(score / cap) applied after the scale; None means no cap.
        alibi: add slope[h] * (n - m - off) to the score.
        sink: one learned logit a query head in the denominator.
        max_logit: a call may give `max_logit`, a number a query head, which is raised to the
            largest score that its softmax takes: scaled, after the score function, of visible
            keys, without the sink.
        varlen: sequences packed along one axis, with cumulative lengths; over a cache the queries
            alone.
        mask_mod: which keys a query sees, besides causal and window: a function of
            (b, h, q_idx, kv_idx), or its text form.
        score_mod: what becomes of a score after the scale, the cap and ALiBi: a function of
            (score, b, h, q_idx, kv_idx), or its text form.
        kv_cache: K and V are a cache of which each sequence has the first `cache_seqlens[b]` keys;
            the queries of a call are the newest tokens.
        page_size: keys a page of a paged key/value cache; None means contiguous. Implies kv_cache.
        kv_dtype: element type of K and V in a cache; None means `dtype`. 8-bit ones (e4m3, e5m2,
            int8) are widened to fp16 in registers, and so are Q and P.
        kv_scale: what the numbers of an 8-bit cache are multiplied by.
        batch_invariant: the bits of a row of O do not depend on what else is in the batch: the cut
            of a sequence of a cache follows from its own length. (Without a cache they never do.)
        cache_layout: axis order of a cache; a contiguous one has a batch in place of the pages.
        p_rounding: how P is rounded for its product with V; `auto` lets the target choose.

    Raises:
        InvalidSpecError: a value means nothing on any chip.
        TraceError: a mask or score function does what no kernel can.
    """

    direction: Direction = Direction.FORWARD
    dtype: DType = DType.BF16
    head_dim: int = 128
    head_dim_v: int | None = None
    causal: bool = False
    anchor: Anchor = Anchor.BOTTOM_RIGHT
    window_left: int | None = None
    window_right: int | None = None
    scale: float | None = None
    layout: Layout = Layout.BSHD
    soft_cap: float | None = None
    alibi: bool = False
    sink: bool = False
    varlen: bool = False
    mask_mod: MaskMod | None = None
    score_mod: ScoreMod | None = None
    kv_cache: bool = False
    page_size: int | None = None
    kv_dtype: DType | None = None
    kv_scale: CacheScale = CacheScale.NONE
    cache_layout: CacheLayout = CacheLayout.NHD
    batch_invariant: bool = False
    p_rounding: Rounding = Rounding.AUTO
    max_logit: bool = False

    def __post_init__(self) -> None:
        """Normalise equal spellings to one value, then refuse values without a meaning."""
        from fmhagen.validate import check_meaning

        Record.__post_init__(self)
        object.__setattr__(self, "mask_mod", MaskMod.of(self.mask_mod))
        object.__setattr__(self, "score_mod", ScoreMod.of(self.score_mod))
        if self.head_dim_v == self.head_dim:
            object.__setattr__(self, "head_dim_v", None)
        for name in ("window_left", "window_right"):
            if getattr(self, name) == -1:
                object.__setattr__(self, name, None)
        if self.page_size is not None:
            object.__setattr__(self, "kv_cache", True)
        if self.kv_dtype == self.dtype:
            object.__setattr__(self, "kv_dtype", None)
        check_meaning(self)

    @property
    def d(self) -> int:
        """Depth of Q and K."""
        return self.head_dim

    @property
    def dv(self) -> int:
        """Depth of V and O."""
        return self.head_dim if self.head_dim_v is None else self.head_dim_v

    @property
    def cache_dtype(self) -> DType:
        """Element type of K and V in a cache."""
        return self.dtype if self.kv_dtype is None else self.kv_dtype

    @property
    def scale_value(self) -> float:
        """The softmax scale that applies: the given one, else 1 / sqrt(head_dim)."""
        return self.head_dim**-0.5 if self.scale is None else self.scale
