"""Write a mask and a score function from scratch, and run them on both targets.

Run with `python examples/08_custom_mods.py`. Arrays in host memory run on the emulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import fmhagen
from fmhagen.oracle.comparison import compare, tolerance_of


def prefix_and_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Let every query see the first keys of its sequence, and the 32 keys before itself."""
    prefix = fmhagen.tensor("prefix", "i32", 1)  # read at run time: params={"prefix": ...}
    recent = (kv_idx <= q_idx) & (q_idx - kv_idx < 32)
    return recent | (kv_idx < prefix[b])


def tempered(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Give each head its own temperature, then cap the score."""
    temperature = fmhagen.tensor("temperature", "f32", 1)
    return 15 * fmhagen.tanh(score * temperature[h] / 15)


def within(limit: np.ndarray) -> Callable[..., Any]:
    """Return a mask that ends each sequence early."""
    return lambda b, h, q_idx, kv_idx: kv_idx < limit[b]


def main() -> None:
    """Compare with float64, change what is read at run time, and see what is refused."""
    spec = fmhagen.AttentionSpec(head_dim=64, mask_mod=prefix_and_window, score_mod=tempered)
    print(spec)  # the functions as text; emit(eval(repr(spec))) is the same file

    generator = np.random.default_rng(0)

    def tensor(heads: int) -> np.ndarray:
        values = generator.standard_normal((2, 150, heads, 64), np.float32)  # b, m, h, d
        return values.astype(ml_dtypes.bfloat16)

    q, k, v = tensor(4), tensor(2), tensor(2)
    for target in ("sm90", "gfx942"):
        kernel = fmhagen.compile_kernel(spec, target=target)
        for prefix in ((0, 70), (5, 150)):  # the same kernel
            params = {
                "prefix": np.array(prefix, np.int32),
                "temperature": np.array([0.5, 1.0, 2.0, 4.0], np.float32),
            }
            o, lse = kernel(q, k, v, params=params, return_lse=True)
            result = compare(o, lse, *fmhagen.reference(spec, q, k, v, params=params))
            print(f"{target}, prefix {prefix}: {result}".replace("\n", "\n    "))
            assert result.within(tolerance_of("bf16"))

        # One call does all of it; what a function captures needs no params.
        limit = np.array([20, 100], np.int32)
        o = fmhagen.attention(q, k, v, mask_mod=within(limit), target=target)
        assert np.isfinite(o.astype(np.float32)).all()

        # Parameters are checked by name.
        try:
            kernel(q, k, v, params={"prefix": limit})
        except fmhagen.FmhagenError as error:
            print(f"refused: {error}")

    # So is what no kernel can do, with the line.
    try:
        fmhagen.AttentionSpec(mask_mod=lambda b, h, m, n: m if n > 3 else n)
    except fmhagen.FmhagenError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main()
