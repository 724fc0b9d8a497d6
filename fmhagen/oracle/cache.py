"""What the oracle reads of a key/value cache: the keys and values of each sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fmhagen.errors import TensorError
from fmhagen.oracle.inputs import as_float64, as_integers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fmhagen.spec import AttentionSpec

    Array = npt.NDArray[np.float64]


def gather_cache(
    spec: AttentionSpec,
    k: Any,
    v: Any,
    cache_seqlens: Any,
    block_table: Any,
    k_scale: Any = None,
    v_scale: Any = None,
) -> tuple[Array, Array, list[slice]]:
    """Gather the sequences of a cache.

    Args:
        spec: with kv_cache; its page_size and cache_layout say how the cache lies.
        k: cache of keys; any framework's tensor.
        v: cache of values.
        cache_seqlens: (B,) keys of each sequence, clamped to the room that there is; None means as
            many as there is room for.
        block_table: (B, max_pages), for a spec with a page_size.
        k_scale: factors of K, for a spec with a kv_scale.
        v_scale: factors of V.

    Returns:
        K and V of shape (B, Hk, n, d) with the longest sequence's n, and which keys each has.

    Raises:
        TensorError: lengths or a table are missing, or do not fit one another.
    """
    import numpy as np

    k64, v64 = (
        _scaled(spec, as_float64(cache), scale) for cache, scale in ((k, k_scale), (v, v_scale))
    )
    if spec.cache_layout == "nhd":
        k64, v64 = k64.swapaxes(1, 2), v64.swapaxes(1, 2)
    if spec.page_size is None:
        room = k64.shape[2]
        batch = k64.shape[0]
    else:
        if block_table is None or cache_seqlens is None:
            raise TensorError("block_table", None, "a paged cache needs lengths and a block table")
        table = as_integers(block_table)
        batch, room = table.shape[0], table.shape[1] * spec.page_size
    lengths = np.full(batch, room) if cache_seqlens is None else as_integers(cache_seqlens)
    if lengths.shape != (batch,):
        raise TensorError("cache_seqlens", lengths.shape, f"must have the shape (B,) = ({batch},)")
    lengths = np.clip(lengths, 0, room)
    keys = [slice(0, int(n)) for n in lengths]
    if spec.page_size is None:
        return _by_head(spec, k64, k_scale), _by_head(spec, v64, v_scale), keys
    most = int(lengths.max(initial=0))
    gathered = [np.zeros((batch, cache.shape[1], most, cache.shape[3])) for cache in (k64, v64)]
    for b, n in enumerate(lengths):
        pages = table[b, : -(-int(n) // spec.page_size)]
        for cache, rows in zip((k64, v64), gathered, strict=True):
            found = cache[pages].swapaxes(0, 1).reshape(cache.shape[1], -1, cache.shape[3])
            rows[b, :, :n] = found[:, :n]
    return _by_head(spec, gathered[0], k_scale), _by_head(spec, gathered[1], v_scale), keys


def _scaled(spec: AttentionSpec, cache: Array, scale: Any) -> Array:
    """Return a cache times factors of the tensor or of tokens; those of heads come later."""
    if spec.kv_scale not in ("tensor", "token"):
        return cache
    factors = as_float64(scale)
    return cache * (factors.reshape(()) if spec.kv_scale == "tensor" else factors[..., None])


def _by_head(spec: AttentionSpec, gathered: Array, scale: Any) -> Array:
    """Return (B, Hk, n, d) times factors of heads."""
    if spec.kv_scale != "head":
        return gathered
    factors = as_float64(scale)
    return gathered * (factors[None] if factors.ndim == 1 else factors)[:, :, None, None]
