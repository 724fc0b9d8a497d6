"""Comparison: how far a kernel's result is from the reference, and what still counts as right.

o, lse = reference(spec, q, k, v)
comparison = compare(o_kernel, lse_kernel, o, lse)
assert comparison.within(tolerance_of("bf16")), comparison
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmhagen.oracle.inputs import as_float64

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What still counts as right.

    Attributes:
        worst: largest |O - ref|, relative to max |ref|.
        rms: root mean square of O - ref, relative to that of ref.
        lse: largest |LSE - ref|, relative to max(1, |ref|).
    """

    worst: float
    rms: float
    lse: float


def tolerance_of(dtype: str) -> Tolerance:
    """Return what rounding P and O to a 16-bit type explains, for ordinary inputs.

    Rounding to nearest errs by at most u = 2^-8 (bf16) or 2^-11 (fp16) of a value, by 0.42 u in
    the mean square; P and O are rounded once each, so 0.6 u is what a right kernel shows. `worst`
    leaves room for a few standard deviations.
    """
    tolerances = {
        "bf16": Tolerance(worst=1e-2, rms=3e-3, lse=1e-4),
        "fp16": Tolerance(worst=1.5e-3, rms=4e-4, lse=1e-4),
    }
    return tolerances[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How far a result is from the reference.

    Attributes:
        o_misplaced: elements of O that are infinite or NaN where the reference is not, or differ.
        o_first_misplaced: (b, h, m, d) of the first of them.
        o_worst: largest |O - ref| relative to max |ref| (absolute if ref is 0), over finite ones.
        o_worst_index: (b, h, m, d) of it.
        o_rms: root mean square of O - ref relative to that of ref.
        lse_misplaced: elements of LSE that are infinite or NaN where the reference is not.
        lse_first_misplaced: (b, h, m) of the first of them.
        lse_worst: largest |LSE - ref| relative to max(1, |ref|).
        lse_worst_index: (b, h, m) of it.
    """

    o_misplaced: int
    o_first_misplaced: tuple[int, ...] | None
    o_worst: float
    o_worst_index: tuple[int, ...] | None
    o_rms: float
    lse_misplaced: int
    lse_first_misplaced: tuple[int, ...] | None
    lse_worst: float
    lse_worst_index: tuple[int, ...] | None

    def within(self, tolerance: Tolerance) -> bool:
        """Return whether the result counts as right."""
        return (
            self.o_misplaced == self.lse_misplaced == 0
            and self.o_worst <= tolerance.worst
            and self.o_rms <= tolerance.rms
            and self.lse_worst <= tolerance.lse
        )

    def __str__(self) -> str:
        """Return the findings, misplaced infinities and NaNs first."""
        lines = []
        if self.o_misplaced:
            lines.append(
                f"O: {self.o_misplaced} infinities or NaNs differ, first at (b, h, m, d) ="
                f" {self.o_first_misplaced}"
            )
        if self.lse_misplaced:
            lines.append(
                f"LSE: {self.lse_misplaced} infinities or NaNs differ, first at (b, h, m) ="
                f" {self.lse_first_misplaced}"
            )
        lines.append(
            f"O: worst {self.o_worst:.3g} of max |ref| at (b, h, m, d) = {self.o_worst_index},"
            f" rms {self.o_rms:.3g}"
        )
        lines.append(f"LSE: worst {self.lse_worst:.3g} at (b, h, m) = {self.lse_worst_index}")
        return "\n".join(lines)


def compare(o: Any, lse: Any, o_ref: Any, lse_ref: Any, *, layout: str = "bshd") -> Comparison:
    """Measure a result against the reference; `lse` may be None.

    Args:
        o: O of a kernel, any framework's tensor.
        lse: its LSE, or None.
        o_ref: O of the reference.
        lse_ref: LSE of the reference, or None.
        layout: axis order of both O, so that positions print as (b, h, m, d); those of packed
            sequences print as (h, m, d), where m counts the rows of all sequences.

    Raises:
        ValueError: the shapes differ.
    """
    import numpy as np

    got, want = as_float64(o), as_float64(o_ref)
    if got.shape != want.shape:
        raise ValueError(f"O has shape {got.shape}, the reference {want.shape}")
    if layout == "bshd" and got.ndim == 4:
        got, want = got.transpose(0, 2, 1, 3), want.transpose(0, 2, 1, 3)
    elif got.ndim == 3:
        got, want = got.transpose(1, 0, 2), want.transpose(1, 0, 2)
    o_misplaced, o_first, o_difference = _differences(got, want)
    finite = np.abs(want[np.isfinite(want)])
    largest = float(finite.max(initial=0.0)) or 1.0
    square = float(np.mean(finite**2)) if finite.size else 0.0
    error_square = float(np.mean(o_difference**2)) if o_difference.size else 0.0
    lse_misplaced, lse_first, lse_worst, lse_index = 0, None, 0.0, None
    if lse is not None and lse_ref is not None:
        lse_got, lse_want = as_float64(lse), as_float64(lse_ref)
        if lse_got.shape != lse_want.shape:
            raise ValueError(f"LSE has shape {lse_got.shape}, the reference {lse_want.shape}")
        lse_misplaced, lse_first, difference = _differences(lse_got, lse_want)
        scale = np.where(np.isfinite(lse_want), np.maximum(1.0, np.abs(lse_want)), 1.0)
        lse_worst, lse_index = _worst(difference / scale)
    o_worst, o_index = _worst(o_difference / largest)
    return Comparison(
        o_misplaced=o_misplaced,
        o_first_misplaced=o_first,
        o_worst=o_worst,
        o_worst_index=o_index,
        o_rms=(error_square / square) ** 0.5 if square else error_square**0.5,
        lse_misplaced=lse_misplaced,
        lse_first_misplaced=lse_first,
        lse_worst=lse_worst,
        lse_worst_index=lse_index,
    )


def _differences(got: Array, want: Array) -> tuple[int, tuple[int, ...] | None, Array]:
    """Return how many non-finite elements differ, the first of them, and |got - want|."""
    import numpy as np

    both_finite = np.isfinite(got) & np.isfinite(want)
    same = both_finite | (got == want) | (np.isnan(got) & np.isnan(want))
    wrong = np.argwhere(~same)
    first = tuple(int(i) for i in wrong[0]) if len(wrong) else None
    difference = np.zeros(got.shape)
    difference[both_finite] = np.abs(got[both_finite] - want[both_finite])
    return len(wrong), first, difference


def _worst(difference: Array) -> tuple[float, tuple[int, ...] | None]:
    import numpy as np

    if not difference.size:
        return 0.0, None
    index = np.unravel_index(int(difference.argmax()), difference.shape)
    return float(difference[index]), tuple(int(i) for i in index)
