"""Faults planted in emitted files: the emulator finds each, whatever the seed, and nothing else.

The table of faults is `faults.py`. Each is an edit of the very file that a GPU compiler gets.
"""

import functools

import numpy as np
import numpy.typing as npt
import pytest
from cases import Case, masks
from emulated import TARGET_NAMES, alternatives, emulate, plan_of, with_text
from faults import (
    GFX942,
    GFX942_BENIGN,
    SM90,
    SM90_BENIGN,
    WRONG_RESULT,
    Benign,
    Edit,
    Fault,
)

from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.plan.attention import Plan
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.schedule import Schedule
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec

SEEDS = 20
CLEAN_RUNS = 200
SPEC = AttentionSpec(head_dim=64, causal=True)
# Small instances with short rings, so that every buffer is used again several times.
SCHEDULES = {
    "sm90": Schedule(
        main_loop="warp_specialised",
        tile_m=128,
        tile_n=64,
        consumers=2,
        stages=2,
        q_stages=2,
        persistent=True,
        rescale="on_overflow",
        producer_registers=40,
        consumer_registers=232,
    ),
    "gfx942": Schedule(main_loop="wave_interleaved", tile_m=64, tile_n=64, consumers=2),
}
FAULTS = {"sm90": SM90, "gfx942": GFX942}
BENIGN = {"sm90": SM90_BENIGN, "gfx942": GFX942_BENIGN}
ALL_FAULTS = [(target, fault) for target in TARGET_NAMES for fault in FAULTS[target]]
ALL_BENIGN = [(target, benign) for target in TARGET_NAMES for benign in BENIGN[target]]


@functools.cache
def clean(target: str) -> tuple[Plan, Source]:
    plan = plan_of(SPEC, target, SCHEDULES[target])
    return plan, emit_source(plan)


@functools.cache
def call(magnitude: float) -> tuple[tuple[npt.NDArray, ...], tuple[npt.NDArray, ...]]:
    """Return tensors and what they should give: several tiles of work, several key tiles each."""
    case = Case(spec=SPEC, heads=4, heads_kv=2, rows=200, keys=330, magnitude=magnitude)
    return tuple(tensor.numpy for tensor in case.placed()), case.expected()


def diagnose(target: str, text: str, seed: int, magnitude: float) -> tuple[str, str]:
    """Return the kind of alarm that one run of a text raises, and its message; "" if none."""
    plan, source = clean(target)
    tensors, expected = call(magnitude)
    options = EmulatorOptions(seed=seed, compute_units=1)
    try:
        result = emulate(plan, tensors, source=with_text(source, text), options=options)
    except EmulatorError as error:
        return error.kind, str(error)
    found = compare(result.o, result.lse, *expected)
    if found.within(tolerance_of(SPEC.dtype)):
        return "", ""
    return WRONG_RESULT, str(found)


@pytest.mark.parametrize(
    ("target", "fault"), ALL_FAULTS, ids=[f"{target}-{fault.name}" for target, fault in ALL_FAULTS]
)
def test_a_fault_is_found_under_every_seed(target: str, fault: Fault) -> None:
    text = fault.apply(clean(target)[1].text)
    for seed in range(SEEDS):
        kind, message = diagnose(target, text, seed, fault.magnitude)
        assert kind, f"seed {seed}: no alarm"
        assert kind in fault.kinds, f"seed {seed}: {message}"
        if kind != WRONG_RESULT:
            assert any(word in message for word in fault.words), f"seed {seed}: {message}"


@pytest.mark.parametrize(
    ("target", "benign"), ALL_BENIGN, ids=[f"{target}-{edit.name}" for target, edit in ALL_BENIGN]
)
def test_what_is_no_fault_raises_no_alarm(target: str, benign: Benign) -> None:
    text = benign.apply(clean(target)[1].text)
    for seed in range(SEEDS):
        for magnitude in (1.0, 60.0):
            assert diagnose(target, text, seed, magnitude) == ("", ""), benign.why


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_no_alarm_in_clean_runs(target: str) -> None:
    """Small calls of every mask and several schedules, each with a seed of its own."""
    plans = [plan_of(AttentionSpec(head_dim=64, **mask), target) for mask in masks()]
    plans.append(clean(target)[0])
    plans += [plan_of(SPEC, target, schedule) for schedule in alternatives(SPEC, target)]
    for seed in range(CLEAN_RUNS):
        rng = np.random.default_rng(seed)
        plan = plans[seed % len(plans)]
        case = Case(
            spec=plan.spec,
            batch=int(rng.integers(1, 3)),
            heads=2,
            heads_kv=int(rng.integers(1, 3)),
            rows=int(rng.integers(1, 150)),
            keys=int(rng.integers(0, 300)),
            magnitude=float(rng.choice([1.0, 60.0])),
        )
        tensors = tuple(tensor.numpy for tensor in case.placed())
        options = EmulatorOptions(seed=seed, compute_units=int(rng.integers(1, 4)))
        result = emulate(plan, tensors, options=options)
        case.check(result.o, result.lse)


def test_an_edit_that_matches_otherwise_than_stated_is_an_error() -> None:
    text = "wait(a);\n  wait(a);\nwait(b);\n"
    assert Edit(old="wait(a); wait(a);", new=";").apply(text) == ";\nwait(b);\n"
    assert Edit(old="wait(a);", new=";", count=2, only=1).apply(text).count("wait(a);") == 1
    for old, count in (("wait(a);", 1), ("wait(c);", 1), ("wait(c);", None)):
        with pytest.raises(AssertionError):
            Edit(old=old, new=";", count=count).apply(text)
