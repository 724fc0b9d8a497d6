"""Hugging Face's transformers: `attn_implementation="fmhagen"`.

    import fmhagen.frontends.transformers as fmhagen_transformers
    fmhagen_transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="fmhagen")

A model's mask, whatever it is made of (causal, sliding window, chunks, padding, packed sequences),
is traced as the function that transformers describes it by, and runs in the kernel without a mask
in memory. Where queries and keys begin are numbers of a call, so generation compiles nothing new.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from fmhagen.errors import TensorError, UnsupportedArgumentError
from fmhagen.expr import build
from fmhagen.expr.mods import MaskMod
from fmhagen.expr.nodes import Node, Parameter
from fmhagen.expr.substitution import substitute
from fmhagen.formula import mask_of
from fmhagen.frontends.sdpa import mask_options
from fmhagen.frontends.torch_ops import Attention
from fmhagen.spec import Anchor, AttentionSpec
from fmhagen.tracing import TracedMods

NAME = "fmhagen"
_PADDING = "padding: bool[2]; padding[b, kv_idx]"
_Q_FIRST = Parameter(name="first_query", dtype="i32")
_K_FIRST = Parameter(name="first_key", dtype="i32")


@dataclass(kw_only=True, eq=False)
class Mask(BlockMask):  # type: ignore[misc]
    """The mask of one forward pass, as the layers get it.

    NOTE: a BlockMask of four dimensions is what transformers passes on as it is, when generation
    with a static cache has made the mask before the model asks for it.

    Attributes:
        sizes: (B, 1, Sq, Sk).
        causal: it hides what lies right of the diagonal, which ends bottom-right, and no more.
        text: else the mask function, "" where it hides nothing.
        params: tensors and numbers that the function reads.
    """

    sizes: tuple[int, ...]
    causal: bool
    text: str
    params: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, as of a tensor."""
        return self.sizes


def register(name: str = NAME) -> None:
    """Make `attn_implementation=name` known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, make_mask)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    **others: Any,
) -> Mask:
    """Return the mask that a function of absolute positions describes.

    Args:
        batch_size: sequences.
        q_length: queries of this pass.
        kv_length: keys that the layers will get.
        q_offset: position of the first query.
        kv_offset: position of the first key.
        mask_function: function of (batch, head, query position, key position).
        attention_mask: (batch, keys from position 0 on), true where a token is no padding.
        others: further arguments of transformers' mask functions, which have no effect here.
    """
    from transformers import masking_utils

    function = mask_function or masking_utils.causal_mask_function
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None and not bool(padding.all()):
        function = masking_utils.and_masks(function, masking_utils.padding_mask_function(padding))
    mod, captured = _mods()(MaskMod, function)
    first_query, first_key = int(q_offset), int(kv_offset)
    sizes = batch_size, 1, q_length, kv_length
    if mod.node is build.TRUE or str(mod) == "0 <= q_idx":
        return Mask(sizes=sizes, causal=False, text="", params={})
    ends_together = first_query + q_length == first_key + kv_length
    if ends_together and mod.node is _causal():
        return Mask(sizes=sizes, causal=True, text="", params={})
    text, numbers = _moved(mod.node)
    given = {_Q_FIRST.name: first_query, _K_FIRST.name: first_key}
    params = {**captured, **{name: given[name] for name in numbers}}
    return Mask(sizes=sizes, causal=False, text=text, params=params)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Mask | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute the attention of a layer.

    Args:
        module: the layer.
        query: (B, H, Sq, d).
        key: (B, Hk, Sk, d).
        value: (B, Hk, Sk, dv).
        attention_mask: what `make_mask` gave; or a tensor: (B, 1 or H, Sq, Sk), bool or added to
            the scores, or (B, Sk), true where a key is no padding; or None: what is_causal and
            sliding_window say.
        dropout: must be 0.
        scaling: softmax scale; None means 1 / sqrt(d).
        sliding_window: keys that a query sees, itself included, where there is no mask yet.
        softcap: cap of the scaled scores.
        is_causal: whether keys right of the diagonal are hidden, where there is no mask yet; None
            means what the layer says.
        s_aux: (H,): a logit in the denominator of each head.
        others: further arguments of transformers' attention functions.

    Returns:
        O as (B, Sq, H, dv), and None: there are no attention weights.

    Raises:
        UnsupportedArgumentError: dropout, or weights are asked for.
        TensorError: a tensor does not fit.
    """
    if dropout:
        limit = "the kernels have no dropout"
        raise UnsupportedArgumentError("dropout", dropout, limit, "set attention_dropout=0")
    if others.get("output_attentions"):
        limit = "the kernels keep no attention weights"
        hint = "use attn_implementation='eager' for them"
        raise UnsupportedArgumentError("output_attentions", True, limit, hint)
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options, params = _mask_options(attention_mask, causal, sliding_window)
    attend = _attention(softcap, scaling, **options)
    o = attend(*(x.transpose(1, 2) for x in (query, key, value)), params=params, sinks=s_aux)
    return o, None


@functools.lru_cache(maxsize=256)
def _attention(softcap: float | None, scaling: float | None, **options: Any) -> Attention:
    return Attention(soft_cap=softcap, scale=scaling, **options)


def _mask_options(
    mask: Mask | torch.Tensor | None, causal: bool, sliding_window: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a mask, and the tensors and numbers that it reads."""
    if isinstance(mask, Mask):
        return {"causal": mask.causal, "mask_mod": mask.text or None}, mask.params
    options: dict[str, Any] = {"causal": causal}
    if sliding_window is not None:
        options["window"] = sliding_window - 1, None if causal else sliding_window - 1
    if mask is None:
        return options, {}
    if mask.dim() == 2:
        return {**options, "mask_mod": _PADDING}, {"padding": mask.bool()}
    if mask.dim() != 4:
        limit = "must have two or four dimensions"
        raise TensorError("attention_mask", tuple(mask.shape), limit)
    found = mask_options(mask)  # it holds the whole mask, the diagonal included
    return {name: x for name, x in found.items() if name != "params"}, found["params"]


@functools.lru_cache(maxsize=256)
def _moved(node: Node) -> tuple[str, tuple[str, ...]]:
    """Return a function of absolute positions as one of positions in this pass, and its numbers."""
    q_idx, kv_idx = build.leaf("q_idx"), build.leaf("kv_idx")
    moved = MaskMod(
        substitute(
            node,
            {
                q_idx: build.add(q_idx, build.param(_Q_FIRST)),
                kv_idx: build.add(kv_idx, build.param(_K_FIRST)),
            },
        )
    )
    names = {parameter.name for parameter in moved.parameters}
    return str(moved), tuple(p.name for p in (_Q_FIRST, _K_FIRST) if p.name in names)


@functools.cache
def _causal() -> Node | None:
    return mask_of(AttentionSpec(causal=True, anchor=Anchor.TOP_LEFT))


@functools.cache
def _mods() -> TracedMods:
    return TracedMods()
