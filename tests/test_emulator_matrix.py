"""The emulator's wgmma against NumPy, bit for bit, and the faults of its asynchrony."""

from __future__ import annotations

import pytest
from emulator_gemm import DTYPES, FORMS, WIDTHS, Fault, multiply
from emulator_support import ALL_SEEDS

from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator import Report


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("form", FORMS)
def test_every_width(form: str, dtype: str) -> None:
    for n in WIDTHS:
        outcome, right = multiply(n=n, form=form, dtype=dtype)
        assert isinstance(outcome, Report), f"n {n}: {outcome}"
        assert right, f"n {n}"
        assert outcome.instructions["wgmma"] == 4 * 4


@pytest.mark.parametrize("swizzle_bytes", [0, 32, 64, 128])
@pytest.mark.parametrize("form", FORMS)
def test_every_swizzle(form: str, swizzle_bytes: int) -> None:
    for n in (64, 192):
        outcome, right = multiply(n=n, form=form, swizzle_bytes=swizzle_bytes)
        assert isinstance(outcome, Report), f"n {n}: {outcome}"
        assert right, f"n {n}"


def test_clean_runs_are_right_and_silent() -> None:
    for seed in range(100):
        outcome, right = multiply(n=64, form=FORMS[seed % 4], rounds=2, seed=seed)
        assert isinstance(outcome, Report), f"seed {seed}: {outcome}"
        assert right, f"seed {seed}"


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (Fault.NO_WAIT, ("matrix",)),
        (Fault.WAIT_TOO_WEAK, ("matrix",)),
        (Fault.NO_COMMIT, ("matrix",)),
        (Fault.NO_FIRST_FENCE, ("matrix",)),
        (Fault.NO_SECOND_FENCE, ("matrix",)),
        (Fault.WRITE_IN_FLIGHT, ("matrix",)),
        (Fault.READ_IN_FLIGHT, ("matrix",)),
        (Fault.OPERAND_OVERWRITTEN, ("race",)),
        (Fault.ONE_LANE_LESS, ("divergence",)),
        (Fault.OTHER_DESCRIPTOR_IN_ONE_WARP, ("divergence",)),
        (Fault.ONE_WARP_LESS, ("deadlock",)),
        (Fault.NO_LOAD_WAIT, ("race", "uninitialised")),
        (Fault.UNALIGNED_OPERAND, ("misaligned",)),
        (Fault.RESERVED_BITS, ("matrix",)),
        (Fault.UNINITIALISED_ACCUMULATOR, ("uninitialised",)),
        (Fault.OVERLAP, ("matrix",)),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else "",
)
def test_planted_fault_is_caught(fault: Fault, kinds: tuple[str, ...]) -> None:
    for seed in ALL_SEEDS:
        outcome, _ = multiply(n=64, fault=fault, rounds=2, seed=seed)
        assert isinstance(outcome, EmulatorError), f"{fault.name}, seed {seed}: no alarm"
        assert outcome.kind in kinds, f"{fault.name}, seed {seed}: {outcome}"


def test_wrong_swizzle_gives_wrong_numbers() -> None:
    """Nothing but the numbers can tell: every byte that is read has been written."""
    for seed in ALL_SEEDS:
        _, right = multiply(n=64, fault=Fault.WRONG_SWIZZLE, seed=seed)
        assert not right


def test_wait_names_the_group_that_is_missing() -> None:
    outcome, _ = multiply(n=64, fault=Fault.ONE_WARP_LESS)
    assert isinstance(outcome, EmulatorError)
    assert "group 1 of every warp of the warpgroup; committed: 1 0 1 1" in str(outcome)
