"""Every case of the generator on the emulator, against float64; see also test_gfx942_cases.py."""

import numpy as np
import pytest
from cases import Case, cases, masks
from emulated import TARGET_NAMES, alternatives, emulate, plan_of

from fmhagen.emission import emit_source
from fmhagen.runtime.emulator_backend import EmulatorOptions
from fmhagen.spec import AttentionSpec

SEEDS = (1, 2, 3, 4, 5)


def run(case: Case, target: str, schedule_index: int = 0, **options: int) -> None:
    schedule = alternatives(case.spec, target)[schedule_index - 1] if schedule_index else None
    tensors = tuple(tensor.numpy for tensor in case.placed())
    result = emulate(
        plan_of(case.spec, target, schedule),
        tensors,
        options=EmulatorOptions(**options),
        scale=case.scale,
        want_lse=case.want_lse,
    )
    case.check(result.o, result.lse)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_o_and_lse_are_right_on_sm90(case: Case) -> None:
    run(case, "sm90", seed=case.seed % 1000)


def alternative_runs() -> list[tuple[Case, str, int]]:
    """Return a few cases for every other schedule of every spec."""
    found = []
    for target in TARGET_NAMES:
        for number, spec in enumerate(dict.fromkeys(case.spec for case in cases())):
            if spec.dtype == "fp16":
                continue
            mine = [case for case in cases() if case.spec == spec and case.rows > 1]
            found += [
                (case, target, index + 1)
                for index in range(len(alternatives(spec, target)))
                for case in mine[number % 2 :: 4]
            ]
    return found


@pytest.mark.parametrize(
    ("case", "target", "index"),
    [
        pytest.param(*run, id=f"{run[1]}-schedule{run[2]}-{run[0].name}")
        for run in alternative_runs()
    ],
)
def test_every_schedule_is_right(case: Case, target: str, index: int) -> None:
    run(case, target, index, seed=index)


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("mask", masks(), ids=("full", "causal", "top_left"))
@pytest.mark.parametrize("magnitude", [1.0, 60.0])
def test_bits_do_not_depend_on_the_order_of_events(
    target: str, mask: dict[str, object], magnitude: float
) -> None:
    spec = AttentionSpec(head_dim=64, **mask)
    case = Case(spec=spec, heads=3, heads_kv=1, rows=150, keys=330, magnitude=magnitude)
    tensors = tuple(tensor.numpy for tensor in case.placed())
    plan = plan_of(spec, target)
    first = emulate(plan, tensors)
    case.check(first.o, first.lse)
    for seed in SEEDS:
        for units in (1, 2, 5):
            other = emulate(plan, tensors, options=EmulatorOptions(seed=seed, compute_units=units))
            assert np.array_equal(first.o.view(np.uint16), other.o.view(np.uint16))
            assert np.array_equal(first.lse.view(np.uint32), other.lse.view(np.uint32))


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_a_row_does_not_depend_on_its_neighbours(target: str) -> None:
    """Large logits of one row move its reference alone."""
    spec = AttentionSpec(head_dim=64)
    case = Case(spec=spec, heads=1, rows=70, keys=400)
    q, k, v = (tensor.numpy.copy() for tensor in case.placed())
    plan = plan_of(spec, target)
    calm = emulate(plan, (q, k, v))
    q[0, 33] *= 60
    wild = emulate(plan, (q, k, v))
    rows = np.arange(70) != 33
    assert target == "sm90" or np.array_equal(
        calm.o[:, rows].view(np.uint16), wild.o[:, rows].view(np.uint16)
    )
    np.testing.assert_allclose(calm.lse[:, :, rows], wild.lse[:, :, rows], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_a_spec_has_one_text(target: str) -> None:
    for case in cases()[::7]:
        plan = plan_of.__wrapped__(case.spec, target)
        assert emit_source(plan) == emit_source(plan_of.__wrapped__(case.spec, target))
