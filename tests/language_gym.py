"""The functions of attn-gym with the smallest arguments that show what they do."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

S = 64


def _module(name: str) -> Any:
    return import_module(f"attn_gym.{name}")


def _torch() -> Any:
    return import_module("torch")


def _offsets() -> Any:
    return _torch().tensor([0, 10, 30, S], dtype=_torch().int32)


def _random(*shape: int) -> Any:
    torch = _torch()
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def _integers(high: int, *shape: int) -> Any:
    torch = _torch()
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(2))


def _causal() -> Any:
    return _module("masks.causal").causal_mask


MASKS: dict[str, Callable[[], Any]] = {
    "causal_mask": _causal,
    "batchify_mask_mod": lambda: _module("masks.batchify").batchify_mask_mod(_causal(), 16),
    "generate_block_diffusion_mask": lambda: _module(
        "masks.block_diffusion"
    ).generate_block_diffusion_mask(32, 8),
    "generate_dilated_sliding_window": lambda: _module(
        "masks.dilated_sliding_window"
    ).generate_dilated_sliding_window(9, 3),
    "generate_doc_mask_mod": lambda: _module("masks.document_mask").generate_doc_mask_mod(
        _causal(), _offsets()
    ),
    "generate_packed_causal_doc_mask_mod": lambda: _module(
        "masks.document_mask"
    ).generate_packed_causal_doc_mask_mod(_offsets()),
    "generate_vision_cross_attention_mask_mod": lambda: _module(
        "masks.flamingo"
    ).generate_vision_cross_attention_mask_mod(_torch().tensor([[0, 10], [10, 60]]), 32),
    "generate_global_sliding_window": lambda: _module(
        "masks.global_sliding_window"
    ).generate_global_sliding_window(8, _random(S) > 0.9),
    "generate_jetspec_tree_causal_mask_mod": lambda: _module(
        "masks.jetspec"
    ).generate_jetspec_tree_causal_mask_mod(10, _random(S, S) > 0.5),
    "generate_jetspec_training_mask_mod": lambda: _module(
        "masks.jetspec"
    ).generate_jetspec_training_mask_mod(10, 16),
    "generate_natten": lambda: _module("masks.natten").generate_natten(8, 8, 3, 3),
    "generate_tiled_natten": lambda: _module("masks.natten").generate_tiled_natten(
        8, 8, 3, 3, 4, 4
    ),
    "generate_morton_natten": lambda: _module("masks.natten").generate_morton_natten(8, 8, 3, 3),
    "generate_prefix_lm_mask": lambda: _module("masks.prefix_lm").generate_prefix_lm_mask(20),
    "generate_shared_prefix_mask_mod": lambda: _module(
        "masks.shared_prefix"
    ).generate_shared_prefix_mask_mod(_offsets(), _torch().tensor([0, 0, 2])),
    "generate_sliding_window": lambda: _module("masks.sliding_window").generate_sliding_window(9),
    "generate_sta_mask_mod_2d": lambda: _module("masks.sta").generate_sta_mask_mod_2d(
        (8, 6), (4, 6), (2, 2), 4
    ),
    "generate_sta_mask_mod_3d": lambda: _module("masks.sta").generate_sta_mask_mod_3d(
        (2, 4, 6), (2, 4, 2), (2, 2, 2), 4
    ),
    "generate_spatial_head_mask_mod": lambda: _module("masks.svg").generate_spatial_head_mask_mod(
        10, 4, 14, 2, True, 4
    ),
    "generate_temporal_head_mask_mod": lambda: _module("masks.svg").generate_temporal_head_mask_mod(
        10, 4, 14, 2
    ),
    "generate_vsa_mask_mod": lambda: _module("masks.vsa").generate_vsa_mask_mod(
        _integers(4, 2, 4, 4, 2), 16, _torch().tensor([16, 16, 9, 16])
    ),
    "generate_vsa_padding_mask_mod": lambda: _module("masks.vsa").generate_vsa_padding_mask_mod(
        _torch().tensor([16, 16, 9, 16]), 16
    ),
}

SCORES: dict[str, Callable[[], Any]] = {
    "generate_activation_score_mod (gelu)": lambda: _module(
        "mods.activation"
    ).generate_activation_score_mod(),
    "generate_activation_score_mod (relu)": lambda: _module(
        "mods.activation"
    ).generate_activation_score_mod(_torch().relu),
    "generate_activation_score_mod (silu)": lambda: _module(
        "mods.activation"
    ).generate_activation_score_mod(_torch().nn.functional.silu),
    "generate_alibi_bias": lambda: _module("mods.alibi").generate_alibi_bias(4),
    "generate_graphormer_spatial_bias": lambda: _module(
        "mods.graphormer"
    ).generate_graphormer_spatial_bias(_random(4, 5), _integers(5, 2, S, S)),
    "generate_graphormer_edge_bias": lambda: _module(
        "mods.graphormer"
    ).generate_graphormer_edge_bias(
        _random(4, 3, 4), _integers(4, 2, S, S, 3), _integers(4, 2, S, S)
    ),
    "generate_mla_rope_score_mod": lambda: _module(
        "mods.latent_attention"
    ).generate_mla_rope_score_mod(_random(2, 4, S, 16), _random(2, 1, S, 16), 4),
    "generate_sandwich_bias": lambda: _module("mods.sandwich").generate_sandwich_bias(4, S),
    "generate_tanh_softcap": lambda: _module("mods.softcapping").generate_tanh_softcap(20),
    "generate_tanh_softcap (approx)": lambda: _module("mods.softcapping").generate_tanh_softcap(
        20, approx=True
    ),
}
