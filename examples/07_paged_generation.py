"""Generate with a paged key/value cache: eight continuations of one prompt that share its pages.

Run with `python examples/07_paged_generation.py`. The model is a small Llama of random weights
where PyTorch and transformers are installed, else a toy of a few lines of NumPy; on a machine
without a GPU the attention runs on the emulator. Every continuation is compared with the same model
on contiguous keys and values, and the memory with what contiguous caches would take.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import fmhagen

LAYERS, HEADS, HEADS_KV, DEPTH, VOCABULARY = 2, 4, 2, 64, 97
PAGE_SIZE, MAX_LENGTH = 16, 256
SAMPLES, NEW_TOKENS = 8, 8
TOLERANCE = 5e-2  # of the largest logit: two layers in bf16
CONTIGUOUS = fmhagen.AttentionSpec(dtype="bf16", head_dim=DEPTH, causal=True)
PAGED = dataclasses.replace(CONTIGUOUS, page_size=PAGE_SIZE)

# What a model calls in each layer, on new tokens of a batch of sequences, (B, rows, heads, depth).
Attend = Callable[[int, Any, Any, Any], Any]


class PagedAttention:
    """Attention of new tokens over all tokens of their sequences, whose pages it writes first."""

    def __init__(self, allocate: Callable[[tuple[int, ...]], Any], num_pages: int) -> None:
        """Make pages for every layer, with the caller's function for tensors."""
        self.storage = fmhagen.PageStorage.allocate(
            allocate,
            num_pages=num_pages,
            page_size=PAGE_SIZE,
            heads_kv=HEADS_KV,
            head_dim=DEPTH,
            layers=LAYERS,
        )
        self.cache = fmhagen.PagedKVCache(storage=self.storage)
        self.kernel = fmhagen.compile_kernel(PAGED)
        self.tables = self.cache.tables(())
        self.places = self.storage.places(np.empty(0, np.int64))

    def step(self, sequences: Sequence[int], slots: np.ndarray) -> Attend:
        """Return the attention of a step whose new tokens go to these slots."""
        # Once for all layers, and on the device of the pages.
        self.tables = self.cache.tables(sequences, like=self.storage.k())
        self.places = self.storage.places(slots)
        return self.attend

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Write the new keys and values, then attend."""
        self.storage.write(
            layer, self.places, k.reshape(-1, *k.shape[2:]), v.reshape(-1, *v.shape[2:])
        )
        keys, values = self.storage.k(layer), self.storage.v(layer)
        return self.kernel(
            q,
            keys,
            values,
            block_table=self.tables.block_table,
            cache_seqlens=self.tables.cache_seqlens,
        )


class ToyModel:
    """A decoder of random weights in NumPy."""

    def __init__(self) -> None:
        """Draw the weights."""
        generator = np.random.default_rng(0)
        width = HEADS * DEPTH

        def weights(*shape: int) -> np.ndarray:
            return generator.standard_normal(shape, np.float32) * shape[0] ** -0.5

        self.embedding = generator.standard_normal((VOCABULARY, width), np.float32)
        self.output = weights(width, VOCABULARY)
        self.positions = generator.standard_normal((MAX_LENGTH, width), np.float32)
        kv = HEADS_KV * DEPTH
        self.layers = [
            (
                weights(width, width + 2 * kv),
                weights(width, width),
                weights(width, width),
                weights(width, width),
            )
            for _ in range(LAYERS)
        ]

    @staticmethod
    def allocate(shape: tuple[int, ...]) -> np.ndarray:
        """Return a tensor for pages: whatever is in it has no effect."""
        import ml_dtypes

        return np.full(shape, np.nan, ml_dtypes.bfloat16)

    def logits(self, tokens: np.ndarray, first: int, attend: Attend) -> np.ndarray:
        """Return the logits behind the last of `tokens`, (B, rows), at positions from `first`."""
        import ml_dtypes

        def norm(x: np.ndarray) -> np.ndarray:
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)

        x = self.embedding[tokens] + self.positions[first : first + tokens.shape[1]]
        for layer, (qkv, out, up, down) in enumerate(self.layers):
            heads = (norm(x) @ qkv).reshape(*tokens.shape, -1, DEPTH).astype(ml_dtypes.bfloat16)
            q, k, v = np.split(heads, (HEADS, HEADS + HEADS_KV), axis=2)
            x = x + attend(layer, q, k, v).astype(np.float32).reshape(x.shape) @ out
            x = x + np.maximum(norm(x) @ up, 0) @ down
        return norm(x[:, -1]) @ self.output


class LlamaModel:
    """A Llama of transformers with random weights, whose attention is handed in."""

    def __init__(self) -> None:
        """Register an attention function with transformers that calls ours."""
        import torch
        import transformers

        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.attend: Attend | None = None

        def attention(module: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> tuple[Any, None]:
            """Take (B, heads, rows, depth), give (B, rows, heads, depth)."""
            assert self.attend is not None
            return self.attend(module.layer_idx, *(t.transpose(1, 2) for t in (q, k, v))), None

        name = "fmhagen_paged"
        transformers.AttentionInterface.register(name, attention)
        transformers.AttentionMaskInterface.register(name, lambda *_, **__: None)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HEADS * DEPTH,
            intermediate_size=2 * HEADS * DEPTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS_KV,
            head_dim=DEPTH,
            initializer_range=0.2,
            attn_implementation=name,
        )
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
        self.model = model.to(device=self.device, dtype=torch.bfloat16).eval()

    def allocate(self, shape: tuple[int, ...]) -> Any:
        """Return a tensor for pages: whatever is in it has no effect."""
        dtype = self.torch.bfloat16
        return self.torch.full(shape, float("nan"), dtype=dtype, device=self.device)

    def logits(self, tokens: np.ndarray, first: int, attend: Attend) -> np.ndarray:
        """Return the logits behind the last of `tokens`, (B, rows), at positions from `first`."""
        self.attend = attend
        ids = self.torch.as_tensor(tokens, device=self.device)
        where = self.torch.arange(first, first + tokens.shape[1], device=self.device)
        with self.torch.no_grad():
            result = self.model(
                input_ids=ids, position_ids=where.expand(ids.shape), use_cache=False
            )
        return result.logits[:, -1].float().cpu().numpy()


def contiguous_attention(_layer: int, q: Any, k: Any, v: Any) -> Any:
    """Attend in float64 over the keys of the call: every sequence from its beginning."""
    o, _ = fmhagen.reference(CONTIGUOUS, q, k, v)
    if isinstance(q, np.ndarray):
        return o.astype(q.dtype)
    import torch

    return torch.as_tensor(o, device=q.device).to(q.dtype)


def main() -> None:
    """Sample eight continuations, check them, and count the memory."""
    found = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    model: Any = LlamaModel() if found else ToyModel()
    print(f"model: {type(model).__name__}, {LAYERS} layers, {HEADS}/{HEADS_KV} heads of {DEPTH}")
    generator = np.random.default_rng(1)
    prompt = generator.integers(VOCABULARY, size=75)
    paged = PagedAttention(model.allocate, num_pages=64)
    cache = paged.cache

    # The prompt once, then forks: they share its pages, and copy the last one when they write.
    new = cache.allocate(prompt)
    logits = model.logits(prompt[None], 0, paged.step((new.sequence,), new.slots))
    cache.commit()
    samples = (new.sequence, *cache.fork(new.sequence, SAMPLES - 1))
    logits = np.repeat(logits, SAMPLES, axis=0)
    texts = np.repeat(prompt[None], SAMPLES, axis=0)
    for _ in range(NEW_TOKENS):
        # Gumbel noise makes the largest logit a sample of the softmax.
        tokens = np.argmax(logits + generator.gumbel(size=logits.shape), axis=1)
        step = cache.append_batch(samples, tokens)
        first = texts.shape[1]
        texts = np.concatenate((texts, tokens[:, None]), axis=1)
        logits = model.logits(tokens[:, None], first, paged.step(samples, step.slots))
        cache.commit()

    print(f"{len(np.unique(texts, axis=0))} different continuations of {len(prompt)} tokens")
    wanted = model.logits(texts, 0, contiguous_attention)
    difference = np.abs(logits - wanted).max() / np.abs(wanted).max()
    print(f"last logits against contiguous attention: {difference:.1e} of the largest")
    assert difference < TOLERANCE

    usage = cache.usage()
    print(usage)
    rows = {
        f"contiguous, {MAX_LENGTH} slots reserved": usage.slots_contiguous(MAX_LENGTH),
        "contiguous, the exact length": usage.slots_contiguous(),
        f"paged, {usage.pages_held} pages": usage.slots_held,
    }
    for name, slots in rows.items():
        print(f"    {name:<32} {slots * paged.storage.bytes_per_slot / 1024:7.0f} KiB")

    # A later request that begins alike finds the full pages of the prompt.
    for sample in samples:
        cache.free(sample)
    question = np.concatenate((prompt[:70], generator.integers(VOCABULARY, size=9)))
    new = cache.allocate(question)
    logits = model.logits(
        question[None, new.cached :], new.cached, paged.step((new.sequence,), new.slots)
    )
    wanted = model.logits(question[None], 0, contiguous_attention)
    assert np.abs(logits - wanted).max() < TOLERANCE * np.abs(wanted).max()
    print(f"another prompt: {new.cached} of its {len(question)} tokens were in the cache")
    cache.free(new.sequence)
    assert cache.num_available == cache.num_pages


if __name__ == "__main__":
    main()
