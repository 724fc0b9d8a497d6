"""Oracle: attention in float64 with NumPy, written from the conventions, not from the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmhagen.errors import TensorError, UnsupportedSpecError
from fmhagen.validate import check_scale

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fmhagen.spec import AttentionSpec

    Array = npt.NDArray[np.float64]

_SCORES_AT_A_TIME = 2**22  # elements of S in memory: 32 MiB


def reference(
    spec: AttentionSpec, q: Any, k: Any, v: Any, *, scale: float | None = None
) -> tuple[Array, Array]:
    """Compute attention in float64.

    Args:
        spec: what to compute; its dtype does not matter here.
        q: query, in the spec's layout; any framework's tensor.
        k: key.
        v: value.
        scale: softmax scale; None means the spec's.

    Returns:
        O in the spec's layout, and LSE (natural logarithm) of shape (B, H, Sq).

    Raises:
        UnsupportedSpecError: the spec needs more than q, k and v (a sink, slopes, pages).
        TensorError: the shapes do not fit one another.
    """
    import numpy as np

    _check_spec(spec)
    check_scale("scale", scale)
    factor = spec.scale_value if scale is None else float(scale)
    # (B, H, S, d) whatever the layout
    q64, k64, v64 = (_heads_first(spec, as_float64(tensor)) for tensor in (q, k, v))
    _check_shapes(spec, q64, k64, v64)
    batch, heads, rows, _ = q64.shape
    o = np.zeros((batch, heads, rows, spec.dv))
    lse = np.full((batch, heads, rows), -np.inf)
    keys = k64.shape[2]
    step = max(1, _SCORES_AT_A_TIME // max(1, keys))
    group = heads // max(1, k64.shape[1])
    for b in range(batch):
        for h in range(heads):
            for m in range(0, rows, step):
                m_range = np.arange(m, min(m + step, rows))
                visible = visible_keys(spec, m_range, rows, keys)
                o[b, h, m_range], lse[b, h, m_range] = _rows(
                    spec,
                    factor,
                    q64[b, h, m_range],
                    k64[b, h // group],
                    v64[b, h // group],
                    visible,
                )
    return _heads_first(spec, o), lse


def visible_keys(
    spec: AttentionSpec, m: npt.NDArray[np.int64], rows: int, keys: int
) -> npt.NDArray[np.bool_]:
    """Return which keys each query row of `m` sees, as a (len(m), keys) array.

    Key n is visible to query m iff m + off - left <= n <= m + off + right.
    """
    import numpy as np

    off = 0 if spec.anchor == "top_left" else keys - rows
    n = np.arange(keys)[None, :]
    diagonal = (m + off)[:, None]
    visible = np.ones((len(m), keys), bool)
    if spec.causal:
        visible &= n <= diagonal
    if spec.window_left is not None:
        visible &= n >= diagonal - spec.window_left
    if spec.window_right is not None:
        visible &= n <= diagonal + spec.window_right
    return visible


def as_float64(tensor: Any) -> Array:
    """Return any framework's tensor as a float64 NumPy array on the host."""
    import numpy as np

    if hasattr(tensor, "data_ptr"):  # torch; NumPy has no bf16 of its own
        import torch

        return np.asarray(tensor.detach().to("cpu", torch.float64).numpy())
    if type(tensor).__module__.partition(".")[0] == "cupy":
        tensor = tensor.get()
    return np.asarray(tensor).astype(np.float64)


def _rows(
    spec: AttentionSpec,
    scale: float,
    q: Array,
    k: Array,
    v: Array,
    visible: npt.NDArray[np.bool_],
) -> tuple[Array, Array]:
    """Return O and LSE of some query rows of one head."""
    import numpy as np

    o = np.zeros((len(q), v.shape[1]))
    lse = np.full(len(q), -np.inf)
    sees = visible.any(axis=1)
    if not sees.any():
        return o, lse
    score = scale * (q @ k.T)
    if spec.soft_cap is not None:
        score = spec.soft_cap * np.tanh(score / spec.soft_cap)
    score = np.where(visible, score, -np.inf)[sees]
    largest = score.max(axis=1, keepdims=True)
    p = np.exp(score - largest)
    total = p.sum(axis=1, keepdims=True)
    lse[sees] = (np.log(total) + largest)[:, 0]
    if np.isfinite(v).all():
        o[sees] = (p / total) @ v
    else:  # a hidden key has no effect, whatever its value: 0 * NaN would be NaN
        for row, seen, weights in zip(np.flatnonzero(sees), visible[sees], p / total, strict=True):
            o[row] = weights[seen] @ v[seen]
    return o, lse


def _heads_first(spec: AttentionSpec, tensor: Array) -> Array:
    """Swap between the spec's layout and (B, H, S, d); the swap is its own inverse."""
    return tensor if spec.layout == "bhsd" or tensor.ndim != 4 else tensor.transpose(0, 2, 1, 3)


def _check_spec(spec: AttentionSpec) -> None:
    for field, unused in (
        ("alibi", False),
        ("sink", False),
        ("varlen", False),
        ("page_size", None),
        ("direction", "forward"),
    ):
        value = getattr(spec, field)
        if value != unused:
            limit = "the reference takes dense q, k and v alone"
            raise UnsupportedSpecError(field, value, limit, f"use {field}={unused!r}")


def _check_shapes(spec: AttentionSpec, q: Array, k: Array, v: Array) -> None:
    for name, tensor, depth in (("q", q, spec.d), ("k", k, spec.d), ("v", v, spec.dv)):
        if tensor.ndim != 4 or tensor.shape[3] != depth:
            limit = f"must be {', '.join(str(spec.layout))} with a depth of {depth}"
            raise TensorError(name, tensor.shape, limit)
    if k.shape[:3] != v.shape[:3]:
        raise TensorError("v", v.shape, f"must have the batch, heads and rows of k, {k.shape}")
    if k.shape[0] != q.shape[0]:
        raise TensorError("k", k.shape, f"must have the batch of q, {q.shape[0]}")
    if q.shape[1] and (not k.shape[1] or q.shape[1] % k.shape[1]):
        raise TensorError("k", k.shape[1], f"key heads must divide the {q.shape[1]} query heads")
