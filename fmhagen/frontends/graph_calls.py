"""Calls of the attention operators: with tensors by name, and from compiled regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fmhagen import dispatch
from fmhagen.errors import InvalidSpecError
from fmhagen.expr.mods import Mod
from fmhagen.frontends.graph_mods import tensors_of, text_of
from fmhagen.frontends.torch_graphs import attention_body, values_of
from fmhagen.spec import Anchor, CacheLayout, Layout

_OWN = (
    *("alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"),
    *("cache_seqlens", "block_table"),
)
_KIND = ("causal", "window", "anchor", "soft_cap", "scale", "mask_mod", "score_mod", "params")
_IN_GRAPH = (*_OWN, *_KIND, "max_seqlen_q", "max_seqlen_k", "layout", "cache_layout", "return_lse")
UNLIMITED = -1


def kind_of(
    mask: str,
    score: str,
    causal: bool,
    window: dispatch.Window | None,
    anchor: str,
    soft_cap: float | None,
    scale: float | None,
) -> tuple[Any, ...]:
    """Return what an operator takes behind its names: functions as texts, causal, and so on."""
    left, right = window if window is not None else (None, None)
    return (
        mask,
        score,
        causal,
        UNLIMITED if left is None else left,
        UNLIMITED if right is None else right,
        str(anchor),
        float(soft_cap or 0.0),
        None if scale is None else float(scale),
    )


def call_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: tuple[Any, ...],
    layout: str,
    params: Mapping[str, Any],
    own: Mapping[str, torch.Tensor | None],
    lengths: tuple[int | None, int | None],
    return_lse: bool,
) -> Any:
    """Call the operator that gives O, or (O, LSE), with parameters and tensors by name."""
    tensors, numbers, tensor_names, number_names = [], [], [], []
    for name, tensor in own.items():
        if name not in _OWN:
            raise InvalidSpecError("argument", name, f"must be one of {', '.join(_OWN)}")
        if tensor is not None:
            tensors.append(tensor)
            tensor_names.append(name)
    for name, value in params.items():
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            tensor_names.append(f"params.{name}")
        else:
            numbers.append(value)
            number_names.append(f"params.{name}")
    longest = (UNLIMITED if length is None else length for length in lengths)
    names = ",".join([*tensor_names, *number_names])
    operator = torch.ops.fmhagen.attention_with_lse if return_lse else torch.ops.fmhagen.attention
    return operator(q, k, v, tensors, numbers, names, *options, *longest, layout)


def attention_in_graph(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Compute `fmhagen.attention` where PyTorch traces a graph."""
    for name, value in options.items():
        if name not in _IN_GRAPH and value is not None and value is not False:
            # NOTE: of an exception of our own the compiler would show another message.
            raise TypeError(f"{name} is not given in a compiled region: call attention outside it")
    if options.get("cache_layout") == CacheLayout.HND:
        k, v = k.transpose(1, 2), v.transpose(1, 2)  # which is only a name for strides
    names = ("causal", "window", "anchor", "soft_cap", "scale")
    mods = [options.get(name) for name in ("mask_mod", "score_mod")]
    params, captured = options.get("params") or {}, {}
    texts, functions = ["", ""], [None, None]
    for index, mod in enumerate(mods):
        if isinstance(mod, str):
            texts[index] = mod
        elif isinstance(mod, Mod) and not any(name in captured for name in mod.bound):
            texts[index] = text_of(mod)
            captured.update(tensors_of(mod, q.device))
        else:
            functions[index] = mod
    params = {**captured, **params}
    for function in functions:
        if function is not None and attention_body is None:
            raise TypeError(
                f"a {type(function).__name__} is not traced in a compiled region by this PyTorch:"
                " make a fmhagen.frontends.torch_ops.Attention outside it"
            )
    plain = {name: options.get(name) for name in names}
    kind = kind_of(
        texts[0],
        texts[1],
        bool(plain["causal"]),
        plain["window"],
        str(plain["anchor"] or Anchor.BOTTOM_RIGHT),
        plain["soft_cap"],
        plain["scale"],
    )
    own = {name: options.get(name) for name in _OWN}
    lengths = options.get("max_seqlen_q"), options.get("max_seqlen_k")
    layout = str(options.get("layout") or Layout.BSHD)
    return_lse = bool(options.get("return_lse"))
    if functions == [None, None]:
        return call_operator(q, k, v, kind, layout, params, own, lengths, return_lse)

    def body() -> Any:
        values = values_of(q, *functions)
        return call_operator(q, k, v, kind, layout, {**params, **values}, own, lengths, return_lse)

    return attention_body(body)
