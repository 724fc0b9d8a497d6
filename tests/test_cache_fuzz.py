"""Drawn calls over a key/value cache: any features together, poison everywhere, right."""

from __future__ import annotations

from typing import Any

import numpy as np
from cache_cases import aligned, assert_right, cache_arguments, make_cache
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fmhagen import AttentionSpec, compile_kernel
from fmhagen.errors import UnsupportedSpecError
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.select import candidates
from fmhagen.targets import TARGETS, find_target
from fmhagen.validate import is_supported

CACHE_TARGETS = [target.name for target in TARGETS if target.cache_template]
MASKS = (
    "kv_idx % 3 != 1",
    "(kv_idx < 5) | (q_idx + seqlen_k - seqlen_q - kv_idx < 30)",
    "kv_idx <= 40 * (h + 1)",
    "(kv_idx // 24) % 2 == b % 2",
)
SCORES = ("score * 0.5 + 0.01 * h", "where(kv_idx % 2 == 0, score, score - 1.0)", "-abs(score)")


@st.composite
def drawn_specs(draw: st.DrawFn) -> AttentionSpec:
    """Draw features that mean something together."""

    def maybe(values: Any, odds: int = 3) -> Any:
        return draw(st.sampled_from([None] * odds + list(values)))

    kv_dtype = maybe(["e4m3", "e5m2", "int8"])
    score = maybe(["alibi", "soft_cap", *SCORES], 5)
    spec: dict[str, Any] = {
        "kv_cache": True,
        "dtype": draw(st.sampled_from(["bf16", "fp16"])),
        "head_dim": draw(st.sampled_from([64, 64, 128, 80, 192])),
        "page_size": draw(st.sampled_from([None, 1, 5, 8, 16, 48])),
        "causal": draw(st.booleans()),
        "window_left": maybe([0, 17, 100], 4),
        "window_right": maybe([3], 6),
        "sink": draw(st.booleans()),
        "layout": draw(st.sampled_from(["bshd", "bhsd"])),
        "cache_layout": draw(st.sampled_from(["nhd", "hnd"])),
        "max_logit": draw(st.booleans()),
        "batch_invariant": draw(st.sampled_from([False, False, True])),
        "mask_mod": maybe(MASKS, 5),
    }
    if kv_dtype is not None:
        spec["kv_dtype"] = kv_dtype
        spec["kv_scale"] = draw(st.sampled_from(["none", "tensor", "head", "token"]))
    if score == "alibi":
        spec["alibi"] = True
    elif score == "soft_cap":
        spec["soft_cap"] = 4.0
    elif score is not None:
        spec["score_mod"] = score
    return AttentionSpec.from_dict({name: v for name, v in spec.items() if v is not None})


def arguments_of(spec: AttentionSpec, heads: int, heads_kv: int, cache: Any) -> dict[str, Any]:
    """Return what the spec asks for besides; factors of 2^-7 to 1, and garbage where no key is."""
    rng = np.random.default_rng(3)
    found: dict[str, Any] = {}
    if spec.sink:
        found["sinks"] = rng.standard_normal(heads).astype(np.float32)
    if spec.alibi:
        found["alibi_slopes"] = (2.0 ** -rng.uniform(1, 6, heads)).astype(np.float32)
    if spec.max_logit:
        found["max_logit"] = np.full(heads, -np.inf, np.float32)
    batch = len(cache.lengths)
    shapes = {"tensor": (1,), "head": (batch, heads_kv), "token": cache.k.shape[:3]}
    if spec.kv_scale != "none":
        for name in ("k_scale", "v_scale"):
            scale = 2.0 ** rng.uniform(-7, 0, shapes[spec.kv_scale])
            found[name] = scale.astype(np.float32)
    return found


@given(
    spec=drawn_specs(),
    target=st.sampled_from(CACHE_TARGETS),
    lengths=st.lists(
        st.one_of(st.integers(0, 40), st.sampled_from([0, 1, 63, 64, 65, 128, 300])),
        min_size=1,
        max_size=6,
    ),
    seqlen_q=st.sampled_from([1, 1, 2, 5, 16]),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 2), (8, 1), (3, 3), (20, 1)]),
    num_splits=st.sampled_from([None, None, 1, 3]),
    units=st.integers(1, 20),
    room=st.sampled_from([0, 7, 100]),
    which=st.integers(0, 7),
    seed=st.integers(0, 2**16),
)
# NOTE: not shrunk: each example compiles a kernel.
@settings(max_examples=6, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
def test_a_drawn_call(
    spec: AttentionSpec,
    target: str,
    lengths: list[int],
    seqlen_q: int,
    heads: tuple[int, int],
    num_splits: int | None,
    units: int,
    room: int,
    which: int,
    seed: int,
) -> None:
    chip = find_target(target)
    if not is_supported(spec, chip):
        return
    try:
        schedules = candidates(spec, chip)
    except UnsupportedSpecError:
        return
    cache = make_cache(
        spec,
        lengths=tuple(lengths),
        seqlen_q=seqlen_q,
        heads=heads[0],
        heads_kv=heads[1],
        seed=seed,
        spread=0.02 if spec.kv_dtype == "int8" else 1.0,
        room=room,
        target=target,
    )
    more = arguments_of(spec, *heads, cache)
    options = EmulatorOptions(seed=seed, compute_units=units)
    kernel = compile_kernel(
        spec,
        device="emulator",
        target=target,
        emulator=options,
        schedule=schedules[which % len(schedules)],
    )
    given = {**cache_arguments(cache), **more}
    if not spec.batch_invariant:
        given["num_splits"] = num_splits
    o, lse = kernel(cache.q, cache.k, cache.v, return_lse=True, **given)
    largest = more.get("max_logit")
    if largest is not None:
        more["max_logit"] = np.full(heads[0], -np.inf)
    assert_right(spec, cache, o, lse, **more)
    if largest is not None:
        np.testing.assert_allclose(largest, more["max_logit"], rtol=2e-5, atol=2e-5)

    # A sequence alone, on another chip: the same bits, if the cut follows from its length.
    reads_batch = spec.mask_mod is not None and "b %" in str(spec.mask_mod)
    if not spec.batch_invariant or cache.table is None or spec.kv_scale == "head" or reads_batch:
        return
    last = len(lengths) - 1
    given["block_table"], given["cache_seqlens"] = cache.table[last:], cache.lengths[last:]
    other = compile_kernel(
        spec,
        device="emulator",
        target=target,
        emulator=EmulatorOptions(seed=seed + 1, compute_units=25 - units),
        schedule=schedules[which % len(schedules)],
    )
    alone, lse_alone = other(aligned(cache.q[last:]), cache.k, cache.v, return_lse=True, **given)
    assert np.array_equal(alone[0].view(np.uint16), o[last].view(np.uint16))
    assert np.array_equal(lse_alone[0], lse[last])
