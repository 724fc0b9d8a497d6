"""transformers with attn_implementation="fmhagen": the logits of eager attention, emulated."""

from __future__ import annotations

import functools
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import torch
import transformers
from emulated import TARGET_NAMES
from transformers import masking_utils

import fmhagen.frontends.transformers as front_end
from fmhagen import dispatch
from fmhagen.errors import UnsupportedArgumentError
from fmhagen.targets import find_target

pytestmark = pytest.mark.filterwarnings("default")  # the libraries' own are their matter
TOLERANCE = 0.03  # of logits of order 1, after bf16 layers in another order of rounding


@pytest.fixture(params=TARGET_NAMES)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Emulate this target wherever the operators call `attention`."""
    name: str = request.param
    function = functools.partial(dispatch.attention, target=name)
    monkeypatch.setattr(dispatch, "attention", function)
    front_end.register()
    return name


def needs(target: str, *features: str) -> None:
    missing = [name for name in features if name not in find_target(target).features]
    if missing:
        pytest.skip(f"{target} has no {', '.join(missing)} yet")


def model_of(kind: str, **changes: Any) -> Any:
    """A small model of random weights."""
    torch.manual_seed(0)
    shape = {
        "hidden_size": 128,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 101,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "eos_token_id": None,
        "bos_token_id": None,
    }
    if kind == "gpt_oss":
        shape |= {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8}
        config = transformers.GptOssConfig(**{**shape, **changes})
        model = transformers.GptOssForCausalLM(config)
        for layer in model.model.layers:  # so that sinks matter, and differ
            torch.nn.init.normal_(layer.self_attn.sinks, mean=1.0)
    elif kind == "gemma2":
        shape |= {"sliding_window": 8, "attn_logit_softcapping": 2.0}
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**{**shape, **changes}))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**shape, **changes}))
    return model.to(torch.bfloat16).eval()


def tokens(batch: int = 2, length: int = 19) -> torch.Tensor:
    return torch.randint(1, 101, (batch, length), generator=torch.Generator().manual_seed(1))


def both(model: Any, **inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of eager attention and of fmhagen."""
    logits = []
    for name in ("eager", front_end.NAME):
        model.set_attn_implementation(name)
        with torch.no_grad():
            logits.append(model(**inputs).logits.float())
    return logits[0], logits[1]


KINDS = {
    "llama": (),
    "gpt_oss": ("mask_mod", "sink"),
    "gemma2": ("mask_mod", "score_mod"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_gives_the_logits_of_eager_attention(target: str, kind: str) -> None:
    needs(target, *KINDS[kind])
    eager, ours = both(model_of(kind), input_ids=tokens())
    assert eager.abs().max() > 0.1
    assert (eager - ours).abs().max() < TOLERANCE * max(1, eager.abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_gives_the_tokens_of_eager_attention(target: str, kind: str, cache: str) -> None:
    needs(target, *KINDS[kind])
    model = model_of(kind)
    options = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    options["cache_implementation"] = cache
    scores = []
    for name in ("eager", front_end.NAME):
        model.set_attn_implementation(name)
        with torch.no_grad():
            made = model.generate(tokens(), output_logits=True, **options)
        scores.append(torch.stack(made.logits, 1).float())
    eager, ours = scores
    # Random weights leave near ties: a token may differ only where two logits are that close, and
    # what follows it is another text.
    for b in range(2):
        for step in range(6):
            difference = (eager[b, step] - ours[b, step]).abs().max()
            assert difference < TOLERANCE * max(1, eager.abs().max()), (b, step)
            if eager[b, step].argmax() != ours[b, step].argmax():
                break


def test_left_padding_is_hidden_and_the_diagonal_stays(target: str) -> None:
    needs(target, "mask_mod")
    model, ids = model_of("llama"), tokens()
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    eager, ours = both(model, input_ids=ids, attention_mask=mask)
    real = mask.bool()
    assert (eager - ours)[real].abs().max() < TOLERANCE
    alone, _ = both(model, input_ids=ids[:1, 7:])
    assert (ours[0, 7:] - alone[0]).abs().max() < 2 * TOLERANCE


def test_a_dense_mask_of_four_dimensions(target: str) -> None:
    needs(target, "mask_mod", "score_mod")
    model, ids = model_of("llama"), tokens(1, 5)
    visible = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    visible[..., 3, 1] = False
    floats = torch.zeros(1, 1, 5, 5, dtype=torch.bfloat16).masked_fill(~visible, -1e4)
    for mask in (visible, floats):
        model.set_attn_implementation(front_end.NAME)
        with torch.no_grad():
            ours = model(input_ids=ids, attention_mask=mask).logits
        model.set_attn_implementation("eager")
        with torch.no_grad():
            eager = model(input_ids=ids, attention_mask=floats).logits
        assert (eager - ours).abs().max() < TOLERANCE


def test_masks_are_made_as_functions() -> None:
    causal = masking_utils.causal_mask_function
    for q_length, kv_length, first in ((5, 5, 0), (1, 9, 8), (4, 9, 5)):
        mask = front_end.make_mask(2, q_length, kv_length, first, 0, causal)
        assert (mask.causal, mask.text, mask.params) == (True, "", {})
    window = masking_utils.sliding_window_causal_mask_function(4)
    texts = set()
    for first in (5, 6, 7):  # generation: nothing but numbers changes
        mask = front_end.make_mask(2, 1, 4, first, first - 3, window)
        texts.add(mask.text)
        assert mask.params == {"first_query": first, "first_key": first - 3}
    assert len(texts) == 1
    everything = masking_utils.bidirectional_mask_function
    assert front_end.make_mask(2, 5, 5, 0, 0, everything).text == ""
    padding = torch.ones(2, 9, dtype=torch.bool)
    assert front_end.make_mask(2, 9, 9, 0, 0, causal, padding).causal
    padding[1, :2] = False
    padded = front_end.make_mask(2, 9, 9, 0, 0, causal, padding)
    assert not padded.causal
    assert any(value is padding for value in padded.params.values())


def test_what_the_kernels_do_not_do_is_refused_by_name(target: str) -> None:
    assert target
    model = model_of("llama", attention_dropout=0.1)
    model.set_attn_implementation(front_end.NAME)
    model.train()
    with pytest.raises(UnsupportedArgumentError, match=r"dropout=0.1: .* set attention_dropout=0"):
        model(input_ids=tokens())
