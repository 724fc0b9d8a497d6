"""Rules of the custom operators of PyTorch: what autocast, vmap and the compiler do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fmhagen.runtime.autocast import cast_for
from fmhagen.spec import Layout


def fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Return O of an attention operator, of its shape alone."""
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def fake_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return O and LSE, of their shapes alone; the operator's last argument is the layout."""
    return fake(q, k, v), q.new_empty(_lse_shape(q, rest[-1]), dtype=torch.float32)


def _lse_shape(q: torch.Tensor, layout: str) -> tuple[Any, ...]:
    if q.dim() == 3:
        total, heads = q.shape[:2] if layout == Layout.BSHD else (q.shape[1], q.shape[0])
        return heads, total
    batch, rows, heads = q.shape[:3]
    return (batch, heads, rows) if layout == Layout.BSHD else (batch, rows, heads)


def autocast_rule(device: str, operator: Any) -> Callable[..., Any]:
    """Return an operator for autocast: what a norm left in fp32 goes back to 16 bits."""

    def cast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return operator(*cast_for(torch.get_autocast_dtype(device), q, k, v), *rest)

    return cast


def fold(info: Any, in_dims: tuple[Any, ...], *arguments: Any, operator: Any) -> Any:
    """Fold a mapped axis into the batch, or, where a batch has a meaning, call for each slice.

    Args:
        info: has `batch_size`, the size of the mapped axis.
        in_dims: the mapped axis of each argument, or None.
        arguments: of the operator.
        operator: the operator.

    Returns:
        What the operator gives, the mapped axis first, and which axis that is.
    """
    tensors, _, names, mask, score = arguments[3:8]
    q_dim, k_dim, v_dim = in_dims[:3]
    results: Any
    dense = arguments[0].dim() - (q_dim is not None) == 4
    if dense and not (tensors or names or mask or score):
        folded = [
            _leading(tensor, dim, info.batch_size)
            for tensor, dim in zip(arguments[:3], (q_dim, k_dim, v_dim), strict=True)
        ]
        batch = folded[0].shape[1]
        results = operator(*(x.flatten(0, 1) for x in folded), *arguments[3:])
        results = results if isinstance(results, tuple) else (results,)
        found = tuple(r.unflatten(0, (info.batch_size, batch)) for r in results)
    else:
        slices = []
        for index in range(info.batch_size):
            q, k, v = (
                _slice(tensor, dim, index)
                for tensor, dim in zip(arguments[:3], (q_dim, k_dim, v_dim), strict=True)
            )
            dims = in_dims[3] if isinstance(in_dims[3], list | tuple) else [None] * len(tensors)
            own = [_slice(tensor, dim, index) for tensor, dim in zip(tensors, dims, strict=True)]
            result = operator(q, k, v, own, *arguments[4:])
            slices.append(result if isinstance(result, tuple) else (result,))
        found = tuple(torch.stack(parts) for parts in zip(*slices, strict=True))
    if operator is torch.ops.fmhagen.attention:
        return found[0], 0
    return found, (0, 0)


def _leading(tensor: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else _dense(tensor.movedim(dim, 0))


def _slice(tensor: torch.Tensor, dim: int | None, index: int) -> torch.Tensor:
    return tensor if dim is None else _dense(tensor.select(dim, index))


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose rows are dense, which those of a mapped last axis are not."""
    return tensor if tensor.dim() == 0 or tensor.stride(-1) == 1 else tensor.contiguous()


def stand_in_graphs(function: Callable[..., Any], substitute: Callable[..., Any]) -> None:
    """Let a function stand in compiled regions as another; where it ends one it runs as it is."""
    register: Any = torch.compiler.substitute_in_graph
    register(function, skip_signature_check=True)(substitute)
    skip_outside_graphs(function)


def skip_outside_graphs(function: Callable[..., Any]) -> None:
    """Let PyTorch compile neither a function nor what it calls where it stands in no graph.

    NOTE: behind the end of a graph PyTorch compiles what runs then, too. It would compile the
    tracing of mask and score functions, gain nothing by it, and fail at their globals.
    """
    frames: Any = getattr(torch._C, "_dynamo", None)
    frames = getattr(frames, "eval_frame", None)
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        frames.set_code_exec_strategy(function.__code__, strategy)
