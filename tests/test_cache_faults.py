"""Faults planted in kernels over a key/value cache: each is found, whatever the seed.

The table of faults is `cache_faults.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from cache_cases import Cache, assert_right, cache_arguments, make_cache
from cache_faults import BENIGN, FAULTS, CacheBenign, CacheFault
from emulated import kept_open, library, with_text
from faults import WRONG_RESULT, Change

from fmhagen.compile.binary import Binary
from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError
from fmhagen.lowering import lower
from fmhagen.plan.attention import Plan
from fmhagen.runtime.cache_calls import CacheCalls
from fmhagen.runtime.emulator_backend import EmulatorBackend, EmulatorOptions
from fmhagen.runtime.launcher import Launcher
from fmhagen.schedule import Copy, Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import find_target

SEEDS = 3
# Small blocks with short rings, so that each stage is used again several times.
BULK = Schedule(main_loop="split_kv", tile_m=16, tile_n=16, consumers=2, stages=2)
GATHER = dataclasses.replace(BULK, copy=Copy.GATHER)
SMALL = dataclasses.replace(BULK, tile_n=32)
LENGTHS = (0, 128, 1, 333, 85)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call: how its keys are cut follows from lengths, heads and compute units.

    Attributes:
        spec, schedule: the kernel.
        lengths: keys of each sequence.
        seqlen_q, heads, heads_kv, spread: see `make_cache`.
        told: lengths that the kernel is told instead; a cache holds no more than it has room for.
        units: of the emulated chip.
        num_splits: parts of every sequence; None lets the kernel choose.
    """

    spec: AttentionSpec
    schedule: Schedule = BULK
    lengths: tuple[int, ...] = LENGTHS
    told: tuple[int, ...] | None = None
    seqlen_q: int = 3
    heads: int = 6
    heads_kv: int = 2
    spread: float = 1.0
    units: int = 8
    num_splits: int | None = None

    @property
    def kernel(self) -> tuple[AttentionSpec, Schedule]:
        """What a library is compiled for."""
        return self.spec, self.schedule

    def cache(self) -> Cache:
        """Return the tensors."""
        made = make_cache(
            self.spec,
            lengths=self.lengths,
            seqlen_q=self.seqlen_q,
            heads=self.heads,
            heads_kv=self.heads_kv,
            spread=self.spread,
        )
        told = self.lengths if self.told is None else self.told
        return dataclasses.replace(made, lengths=np.array(told, np.int32))


PAGED = AttentionSpec(head_dim=64, kv_cache=True, page_size=16, causal=True)
PLAIN = AttentionSpec(head_dim=64, kv_cache=True, causal=True)
BANDS = "((kv_idx >= 10) & (kv_idx < 60)) | ((kv_idx >= 50) & (kv_idx < 90))"
CALLS = {
    "window": Call(spec=dataclasses.replace(PAGED, window_left=122)),
    "contiguous": Call(spec=PLAIN, num_splits=3, spread=10.0),
    "gather": Call(spec=dataclasses.replace(PAGED, page_size=3), schedule=GATHER),
    "beyond": Call(
        spec=dataclasses.replace(PAGED, page_size=8),
        lengths=(40, 40, 40),
        told=(-5, 1000, 2**31 - 1),
        heads=2,
        heads_kv=1,
        units=3,
    ),
    "long": Call(
        spec=PAGED,
        lengths=tuple((37 * b) % 90 for b in range(40)),
        seqlen_q=1,
        heads=2,
        heads_kv=1,
        units=6,
    ),
    "aligned": Call(spec=PAGED, lengths=(200, 90, 20, 20), heads=2, heads_kv=1, units=4),
    "few": Call(spec=PAGED, lengths=(600, 40, 3), units=6),
    "sequences": Call(spec=PAGED, lengths=(500, 90), units=14),
    "tiles": Call(spec=PAGED, seqlen_q=5, heads=8, units=16),
    "wide": Call(
        spec=dataclasses.replace(PAGED, head_dim=192),
        schedule=BULK,
        lengths=(70, 40),
        heads=2,
        heads_kv=1,
        units=2,
    ),
    "invariant": Call(
        spec=dataclasses.replace(PAGED, batch_invariant=True),
        lengths=(1300, 0, 600),
        heads=2,
        heads_kv=1,
        seqlen_q=1,
        units=4,
    ),
    "sink": Call(spec=dataclasses.replace(PAGED, sink=True)),
    "bands": Call(
        spec=AttentionSpec(head_dim=64, kv_cache=True, mask_mod=BANDS), lengths=(130, 40)
    ),
    "token": Call(
        spec=dataclasses.replace(PAGED, kv_dtype="e4m3", kv_scale="token"), schedule=SMALL
    ),
    "head": Call(
        spec=dataclasses.replace(PAGED, kv_dtype="int8", kv_scale="head"),
        schedule=SMALL,
        spread=0.02,
    ),
}


def extras_of(call: Call, cache: Cache) -> dict[str, Any]:
    """Return what the spec of a call asks for besides; scales differ from key to key and head."""
    rng = np.random.default_rng(1)
    found: dict[str, Any] = {}
    if call.spec.sink:
        found["sinks"] = np.linspace(-1.0, 4.0, call.heads).astype(np.float32)
    for name in ("k_scale", "v_scale") if call.spec.kv_scale != "none" else ():
        if call.spec.kv_scale == "token":
            pages = cache.k.shape[0]
            scale = 2.0 ** rng.uniform(-3, 0, cache.k.shape[:3])
            scale *= 2.0 ** rng.integers(-4, 3, (pages, 1, 1))
            # What belongs to no sequence has no scale either.
            scale[~np.isfinite(cache.k.astype(np.float64)).all(axis=3)] = np.nan
        else:
            scale = 2.0 ** rng.uniform(-9, -5, (len(call.lengths), call.heads_kv))
        found[name] = scale.astype(np.float32)
    return found


Kernel = tuple[AttentionSpec, Schedule]


@functools.cache
def emitted(kernel: Kernel) -> tuple[Plan, str]:
    """Return a kernel's plan and its text as it is."""
    plan = lower(*kernel, find_target("sm90"))
    return plan, emit_source(plan).text


@functools.cache
def problem(name: str) -> tuple[Cache, dict[str, Any]]:
    cache = CALLS[name].cache()
    return cache, extras_of(CALLS[name], cache)


CLEAN = Change(name="clean", edits=())


@functools.cache
def built(kernel: Kernel) -> tuple[Binary, dict[str, Plan]]:
    """Compile all faults of a kernel as one library; return it and the plan of each by name.

    Most of the time of a compilation goes into the emulator, which they share: each copy of the
    text stands in a namespace and has symbols of its own.
    """
    plan, text = emitted(kernel)
    assert plan.split is not None
    changes: list[Change] = [
        CLEAN,
        *(x for x in (*FAULTS, *BENIGN) if CALLS[x.call].kernel == kernel),
    ]
    texts, plans = [], {}
    for change in changes:
        symbol = f"{plan.symbol}_{change.name}"
        try:
            changed = change.apply(text)
        except AssertionError:
            continue  # that fault's own test fails and says why
        texts.append(f"namespace {change.name} {{{changed.replace(plan.symbol, symbol)}}}\n")
        split = dataclasses.replace(plan.split, combine_symbol=f"{symbol}_combine")
        plans[change.name] = dataclasses.replace(plan, symbol=symbol, split=split)
    return library(with_text(emit_source(plan), "".join(texts)), "O0"), plans


def diagnose(name: str, change: Change, seed: int) -> tuple[str, str]:
    """Return the kind of alarm that one call of a changed text raises, and its message; or ""."""
    call = CALLS[name]
    cache, extras = problem(name)
    binary, plans = built(call.kernel)
    plan = plans[change.name]
    assert binary.path is not None
    kept_open(binary.path, plan.symbol)
    backend = EmulatorBackend(EmulatorOptions(seed=seed, compute_units=call.units))
    launcher = Launcher(plan, backend, lambda: binary)
    given = {**cache_arguments(cache), **extras}
    given["num_splits"] = call.num_splits
    try:
        o, lse = CacheCalls(call.spec, lambda q: launcher)(
            cache.q, cache.k, cache.v, return_lse=True, extras=given
        )
    except EmulatorError as error:
        return error.kind, str(error)
    try:
        assert_right(call.spec, cache, o, lse, **extras)
    except AssertionError as error:
        return WRONG_RESULT, str(error)
    return "", ""


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_is_found_under_every_seed(fault: CacheFault) -> None:
    fault.apply(emitted(CALLS[fault.call].kernel)[1])
    for seed in range(SEEDS):
        kind, message = diagnose(fault.call, fault, seed)
        assert kind, f"seed {seed}: no alarm"
        assert kind in fault.kinds, f"seed {seed}: {message}"
        if kind != WRONG_RESULT:
            assert any(word in message for word in fault.words), f"seed {seed}: {message}"


@pytest.mark.parametrize("benign", BENIGN, ids=[benign.name for benign in BENIGN])
def test_what_is_no_fault_raises_no_alarm(benign: CacheBenign) -> None:
    benign.apply(emitted(CALLS[benign.call].kernel)[1])
    for seed in range(SEEDS):
        assert diagnose(benign.call, benign, seed) == ("", ""), benign.why


@pytest.mark.parametrize("name", CALLS)
def test_no_alarm_in_clean_runs(name: str) -> None:
    for seed in range(SEEDS):
        assert diagnose(name, CLEAN, seed) == ("", "")
