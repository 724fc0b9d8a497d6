"""Use a kernel with PyTorch tensors: on a GPU if there is one, else on the emulator.

Run with `python examples/04_torch.py`; does nothing where PyTorch is not installed.
"""

from __future__ import annotations

import importlib.util

import fmhagen


def main() -> None:
    """Compare a kernel with PyTorch's own attention, and capture it in a graph on a GPU."""
    if importlib.util.find_spec("torch") is None:
        print("skipped: PyTorch is not installed (pip install torch)")
        return
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"  # ROCm's name is cuda, too
    rows = 4096 if device == "cuda" else 130
    spec = fmhagen.AttentionSpec(dtype="bf16", head_dim=128, causal=True, layout="bhsd")
    kernel = fmhagen.compile_kernel(spec)  # device="auto": the tensors decide

    torch.manual_seed(0)
    q = torch.randn(1, 4, rows, 128, dtype=torch.bfloat16, device=device)
    k, v = (torch.randn(1, 2, rows, 128, dtype=torch.bfloat16, device=device) for _ in range(2))
    o, lse = kernel(q, k, v, return_lse=True)
    print(f"{kernel!r}: O {tuple(o.shape)}, LSE {tuple(lse.shape)} on {o.device}")

    # PyTorch repeats the key/value heads; fmhagen reads them in place.
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1), is_causal=True
    )
    difference = (o.float() - wanted.float()).abs().max().item()
    print(f"largest difference from scaled_dot_product_attention: {difference:.1e}")
    assert difference < 3e-2

    if device == "cuda":  # the call above was the warm-up that a capture needs
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel(q, k, v, out=o)
        graph.replay()
        torch.cuda.synchronize()
        print("captured in a graph and replayed")


if __name__ == "__main__":
    main()
