"""Custom operators of PyTorch: attention under torch.compile, autocast and vmap.

    import fmhagen.frontends.torch_ops          # once; registers the operators
    attend = Attention(causal=True, mask_mod=my_function)
    compiled = torch.compile(lambda q, k, v: attend(q, k, v), fullgraph=True)

The operators are `fmhagen::attention` and `fmhagen::attention_with_lse`. Functions enter as text,
so a graph holds all that the kernel depends on. Once this module is imported, `fmhagen.attention`,
and with it the front ends, may stand in a compiled region, too, functions included.
There is no backward pass: asking for one is an error of PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fmhagen import dispatch
from fmhagen.errors import InvalidSpecError
from fmhagen.expr.mods import Mod
from fmhagen.frontends.torch_graphs import attention_body, values_of
from fmhagen.frontends.torch_rules import (
    autocast_rule,
    fake,
    fake_with_lse,
    fold,
    stand_in_graphs,
)
from fmhagen.spec import Anchor, CacheLayout, Layout

_DEVICES = ("cpu", "cuda")  # ROCm's name is cuda, too
_OWN = (
    *("alibi_slopes", "sinks", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k"),
    *("cache_seqlens", "block_table"),
)
_KIND = ("causal", "window", "anchor", "soft_cap", "scale", "mask_mod", "score_mod", "params")
_IN_GRAPH = (*_OWN, *_KIND, "max_seqlen_q", "max_seqlen_k", "layout", "cache_layout", "return_lse")
_UNLIMITED = -1


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
    return None if value == _UNLIMITED else value


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
        self.options: tuple[Any, ...] = _options(
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
        return _call(q, k, v, self.options, self.layout, merged, own, lengths, return_lse)


def _options(
    mask: str,
    score: str,
    causal: bool,
    window: dispatch.Window | None,
    anchor: str,
    soft_cap: float | None,
    scale: float | None,
) -> tuple[Any, ...]:
    left, right = window if window is not None else (None, None)
    return (
        mask,
        score,
        causal,
        _UNLIMITED if left is None else left,
        _UNLIMITED if right is None else right,
        str(anchor),
        float(soft_cap or 0.0),
        None if scale is None else float(scale),
    )


def _call(
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
    longest = (_UNLIMITED if length is None else length for length in lengths)
    names = ",".join([*tensor_names, *number_names])
    operator = torch.ops.fmhagen.attention_with_lse if return_lse else torch.ops.fmhagen.attention
    return operator(q, k, v, tensors, numbers, names, *options, *longest, layout)


def _in_graph(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Compute `fmhagen.attention` where PyTorch traces a graph."""
    for name, value in options.items():
        if name not in _IN_GRAPH and value is not None and value is not False:
            # NOTE: of an exception of our own the compiler would show another message.
            raise TypeError(f"{name} is not given in a compiled region: call attention outside it")
    if options.get("cache_layout") == CacheLayout.HND:
        k, v = k.transpose(1, 2), v.transpose(1, 2)  # which is only a name for strides
    names = ("causal", "window", "anchor", "soft_cap", "scale")
    mods = [options.get(name) for name in ("mask_mod", "score_mod")]
    texts = [mod if isinstance(mod, str) else "" for mod in mods]
    functions = [None if isinstance(mod, str) else mod for mod in mods]
    for function in functions:
        if function is not None and (attention_body is None or isinstance(function, Mod)):
            raise TypeError(
                f"a {type(function).__name__} is not traced in a compiled region: make a"
                " fmhagen.frontends.torch_ops.Attention outside it"
            )
    plain = {name: options.get(name) for name in names}
    kind = _options(
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
    params = options.get("params") or {}
    return_lse = bool(options.get("return_lse"))
    if functions == [None, None]:
        return _call(q, k, v, kind, layout, params, own, lengths, return_lse)

    def body() -> Any:
        values = values_of(q, *functions)
        return _call(q, k, v, kind, layout, {**params, **values}, own, lengths, return_lse)

    return attention_body(body)


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
    stand_in_graphs(dispatch.attention, _in_graph)


_register()
