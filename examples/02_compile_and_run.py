"""Run a kernel on NumPy arrays and compare it with float64; no GPU is needed.

Run with `python examples/02_compile_and_run.py`. Arrays in host memory run on the emulator, which
executes the emitted file lane by lane.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import fmhagen
from fmhagen.oracle.comparison import compare, tolerance_of


def main() -> None:
    """Run grouped-head causal attention of awkward sizes on both targets."""
    spec = fmhagen.AttentionSpec(dtype="bf16", head_dim=64, causal=True)
    generator = np.random.default_rng(0)

    def tensor(rows: int, heads: int) -> np.ndarray:
        values = generator.standard_normal((2, rows, heads, 64), np.float32)  # b, m, h, d
        return values.astype(ml_dtypes.bfloat16)

    q, k, v = tensor(101, 4), tensor(150, 2), tensor(150, 2)
    o_ref, lse_ref = fmhagen.reference(spec, q, k, v)  # float64, written from the definition

    for target in ("sm90", "gfx942"):
        kernel = fmhagen.compile_kernel(spec, target=target)
        o, lse = kernel(q, k, v, return_lse=True)
        result = compare(o, lse, o_ref, lse_ref)
        print(f"{target}: {kernel.source.symbol}")
        print("    " + str(result).replace("\n", "\n    "))
        assert result.within(tolerance_of("bf16"))

        # A slice is read in place; the output can be yours.
        out = np.empty_like(q[:, :50])
        assert kernel(q[:, :50], k[:, 25:], v[:, 25:], out=out) is out


if __name__ == "__main__":
    main()
