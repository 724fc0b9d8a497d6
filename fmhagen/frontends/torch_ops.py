"""Custom operators of PyTorch: attention under torch.compile, autocast and vmap.

    import fmhagen.frontends.torch_ops          # once; registers the operators
    attend = Attention(causal=True, mask_mod=my_function)
    compiled = torch.compile(lambda q, k, v: attend(q, k, v), fullgraph=True)

The operators are `fmhagen::attention` and `fmhagen::attention_with_lse`. Functions enter as text,
so a graph holds all that the kernel depends on. Once this module is imported, `fmhagen.attention`,
and with it the front ends, may stand in a compiled region, too, functions included, and what
`fmhagen.masks` and `fmhagen.scores` give. The front ends import it themselves there.
There is no backward pass: asking for one is an error of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fmhagen import dispatch
from fmhagen.frontends.graph_calls import UNLIMITED, attention_in_graph, call_operator, kind_of
from fmhagen.frontends.torch_rules import (
    autocast_rule,
    fake,
    fake_with_lse,
    fold,
    stand_in_graphs,
)
from fmhagen.spec import Anchor, Layout

_DEVICES = ("cpu", "cuda")  # ROCm's name is cuda, too


def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[float],
    names: str,
    mask_mod: str,
    score_mod: str,
    causal: bool,
    window_left: int,
    window_right: int,
    anchor: str,
    soft_cap: float,
    scale: float | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    layout: str,
) -> torch.Tensor:
    o: torch.Tensor = _run(q, k, v, False, locals())[0]
    return o


def _attention_with_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tensors: Sequence[torch.Tensor],
    numbers: Sequence[float],
    names: str,
    mask_mod: str,
    score_mod: str,
    causal: bool,
    window_left: int,
    window_right: int,
    anchor: str,
    soft_cap: float,
    scale: float | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    layout: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    found: tuple[torch.Tensor, torch.Tensor] = _run(q, k, v, True, locals())
    return found


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, return_lse: bool, given: Mapping[str, Any]
) -> Any:
    """Launch a kernel with the arguments of an operator."""
    own: dict[str, Any] = {}
    params: dict[str, Any] = {}
    # NOTE: an operator takes numbers as floats; one that is whole serves both kinds of parameters.
    numbers = (int(x) if float(x).is_integer() else x for x in given["numbers"])
    values = (*given["tensors"], *numbers)
    for name, value in zip(filter(None, given["names"].split(",")), values, strict=True):
        if name.startswith("params."):
            params[name.removeprefix("params.")] = value
        else:
            own[name] = value
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    result = dispatch.attention(
        *(q, k, v),
        causal=given["causal"],
        window=(given["window_left"], given["window_right"]),
        anchor=given["anchor"],
        scale=given["scale"],
        soft_cap=given["soft_cap"] or None,
        mask_mod=given["mask_mod"] or None,
        score_mod=given["score_mod"] or None,
        params=params or None,
        max_seqlen_q=_length(given["max_seqlen_q"]),
        max_seqlen_k=_length(given["max_seqlen_k"]),
        layout=given["layout"],
        out=out,
        return_lse=return_lse,
        **own,
    )
    return result if return_lse else (result,)


def _length(value: int) -> int | None:
    return None if value == UNLIMITED else value


class Attention:
    """One kind of attention, with its functions traced, that a compiled region may call."""

    def __init__(
        self,
        *,
        causal: bool = False,
        window: dispatch.Window | None = None,
        anchor: str = Anchor.BOTTOM_RIGHT,
        scale: float | None = None,
        soft_cap: float | None = None,
        mask_mod: str | Callable[..., Any] | None = None,
        score_mod: str | Callable[..., Any] | None = None,
        layout: str = Layout.BSHD,
    ) -> None:
        """Trace the functions; the parameters are those of `fmhagen.attention`."""
        mask, score, captured = dispatch.trace_mods(mask_mod, score_mod)
        # NOTE: an operator takes tensors of PyTorch alone, so captured NumPy arrays become such.
        arrays = {x: array for x, array in captured.items() if isinstance(array, np.ndarray)}
        self.captured = captured | {x: torch.tensor(array) for x, array in arrays.items()}
        self._arrays = tuple(arrays)
        self.options: tuple[Any, ...] = kind_of(
            "" if mask is None else str(mask),
            "" if score is None else str(score),
            causal,
            window,
            anchor,
            soft_cap,
            scale,
        )
        self.layout = str(layout)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        params: Mapping[str, Any] | None = None,
        return_lse: bool = False,
        max_seqlen_q: int | None = None,
        max_seqlen_k: int | None = None,
        **own: torch.Tensor | None,
    ) -> Any:
        """Compute O, or (O, LSE); `own` are alibi_slopes, sinks, cu_seqlens_q and the like."""
        arrays = {name: self.captured[name].to(q.device) for name in self._arrays}
        merged = {**self.captured, **arrays, **(params or {})}
        lengths = max_seqlen_q, max_seqlen_k
        return call_operator(q, k, v, self.options, self.layout, merged, own, lengths, return_lse)


def _register() -> None:
    """Give the operators their rules for autocast and vmap, and `attention` one for graphs."""
    define: Any = torch.library.custom_op
    define("fmhagen::attention", _attention, mutates_args=()).register_fake(fake)
    with_lse = define("fmhagen::attention_with_lse", _attention_with_lse, mutates_args=())
    with_lse.register_fake(fake_with_lse)
    library = torch.library.Library("fmhagen", "IMPL")
    _register.library = library  # type: ignore[attr-defined]  # its end would take the rules back
    for name in ("attention", "attention_with_lse"):
        operator = getattr(torch.ops.fmhagen, name)
        for device in _DEVICES:
            library.impl(name, autocast_rule(device, operator), f"Autocast{device.upper()}")

        def rule(
            info: Any, in_dims: tuple[Any, ...], *arguments: Any, operator: Any = operator
        ) -> Any:
            return fold(info, in_dims, *arguments, operator=operator)

        torch.library.register_vmap(f"fmhagen::{name}", rule)
    stand_in_graphs(dispatch.attention, attention_in_graph)


_register()
