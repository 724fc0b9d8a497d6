"""Inputs made to defeat a softmax: what each plants is said in units of log2 over key tiles.

Key tiles are visited from the right on sm90 and from the left on gfx942; `Setting.visited` numbers
them in the order of the target, so that "later" means the same on both.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from cases import NUMPY_DTYPES

from fmhagen.spec import AttentionSpec

UNIT_SCALE = math.log(2)  # makes a score the exponent of 2 itself
ROWS = 150  # three warpgroups, the last one in part
KEYS = ROWS + 255  # offset -1 modulo every tile width that is a power of 2 up to 256

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where an input is used: the spec, the width of a key tile, and the order of the tiles."""

    spec: AttentionSpec
    tile_n: int
    from_right: bool
    rows: int = ROWS
    keys: int = KEYS

    @property
    def visited(self) -> npt.NDArray[np.int64]:
        """The turn at which each key's tile is visited."""
        tile = np.arange(self.keys) // self.tile_n
        return tile.max() - tile if self.from_right else tile

    def normal(self, rows: int, factor: float = 1.0) -> Array:
        """Return rows of normally distributed numbers, the same for a setting."""
        rng = np.random.default_rng(rows)
        return rng.standard_normal((rows, self.spec.d)) * factor

    def planted(self, log2: Array, rows: Array | None = None) -> tuple[Array, Array]:
        """Return Q and K whose scores are log2[n] * rows[m] and up to 1 / 2 more or less.

        Every score is a multiple of 2^-4 in a few bits, so that S is exact and what differs from
        float64 is the softmax's own doing.
        """
        dtype = NUMPY_DTYPES[self.spec.dtype]
        q = np.zeros((self.rows, self.spec.d))
        k = np.zeros((self.keys, self.spec.d))
        q[:, :2] = 1.0 if rows is None else rows[:, None]
        # a score in two parts, since 16 bits would round it
        k[:, 0] = log2.astype(dtype).astype(np.float64)
        k[:, 1] = log2 - k[:, 0]
        rng = np.random.default_rng(self.keys)
        q[:, 2:10] = rng.integers(-1, 2, (self.rows, 8)) / 4
        k[:, 2:10] = rng.integers(-1, 2, (self.keys, 8)) / 4
        return q, k


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input.

    Attributes:
        name: of the test.
        make: gives Q and K as (s, d) arrays.
        scale: softmax scale of the call.
        value: factor of V.
        repairs: whether a softmax without a maximum must repair, with any mask; None means either.
        grows: whether a row's maximum grows by more than 2^8 over a tile; None means either.
        exact: whether some repair must compute S again.
    """

    name: str
    make: Callable[[Setting], tuple[Array, Array]]
    scale: float | None = UNIT_SCALE
    value: float = 1.0
    repairs: bool | None = True
    grows: bool | None = True
    exact: bool | None = None

    def tensors(self, setting: Setting) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
        """Return q, k and v as (1, s, 1, d) arrays of the spec's dtype."""
        dtype = NUMPY_DTYPES[setting.spec.dtype]
        q, k = self.make(setting)
        rng = np.random.default_rng(7)
        v = rng.standard_normal((setting.keys, setting.spec.dv))
        if self.value != 1.0:
            v = np.clip(v * self.value, -65504, 65504)
        q, k, v = (np.ascontiguousarray(x[None, :, None, :].astype(dtype)) for x in (q, k, v))
        return q, k, v


def random(factor: float) -> Callable[[Setting], tuple[Array, Array]]:
    """Normal inputs, Q times a factor."""
    return lambda s: (s.normal(s.rows, factor), s.normal(s.keys))


def by_turn(log2: Callable[[Array], Array]) -> Callable[[Setting], tuple[Array, Array]]:
    """Scores that depend on the turn of their key tile."""
    return lambda s: s.planted(log2(s.visited.astype(np.float64)))


def later_key(s: Setting) -> tuple[Array, Array]:
    """Give one key of the third tile 2^20 times the size of all others."""
    half = 2.0**-10 if s.spec.dtype == "fp16" else 1.0
    k = s.normal(s.keys, half)
    k[np.flatnonzero(s.visited == 2)[3]] *= 2.0**20
    return s.normal(s.rows), k


def single_key(log2: float) -> Callable[[Setting], tuple[Array, Array]]:
    """One key of each tile but the first is huge: column m % 64 for row m."""

    def make(s: Setting) -> tuple[Array, Array]:
        depth = np.arange(s.spec.d)
        q = (np.arange(s.rows)[:, None] % 64 == depth) * log2
        k = (np.arange(s.keys)[:, None] % 64 == depth) * (s.visited > 0)[:, None] * 1.0
        return q, k

    return make


def some_rows(first: int, end: int, log2: float) -> Callable[[Setting], tuple[Array, Array]]:
    """Only some rows, of one warp, see growth, tile after tile."""

    def make(s: Setting) -> tuple[Array, Array]:
        m = np.arange(s.rows)
        rows = np.where((first <= m) & (m < end), 1.0, 2.0**-10)
        return s.planted(log2 * s.visited, rows)

    return make


def just_below(s: Setting) -> tuple[Array, Array]:
    """P of up to 2^12.9 in every thread of the second tile: the largest sums without a repair."""
    column = np.arange(s.keys) % s.tile_n
    large = np.where((column % 2 == 0) & (column < 8), 12.375, -30.0)
    return s.planted(np.where(s.visited == 1, large, 0.0))


def just_above(s: Setting) -> tuple[Array, Array]:
    """Each P is below 2^12, their sum in a thread is not below 2^13."""
    return s.planted(np.where(s.visited == 1, 11.5, 0.0))


def sums_at_the_end(s: Setting) -> tuple[Array, Array]:
    """Every thread's sum of P in the second tile is finite, the row's is not where N is 64."""
    return s.planted(np.where(s.visited == 1, 122.5, 0.0))


def negative(s: Setting) -> tuple[Array, Array]:
    """All scores lie about -30000."""
    return s.planted(-30000.0 - 4 * s.visited)


def alternating(turn: Array) -> Array:
    """Tiles of 2^(+300 t) and 2^(-300 t) in turn."""
    return np.where(turn % 2 == 1, 300.0, -300.0) * turn


def inputs() -> tuple[Input, ...]:
    """Return every finite input."""
    calm = {"repairs": False, "grows": False, "exact": False}
    never = {"repairs": False, "exact": False}
    return (
        Input(name="calm", make=random(1.0), scale=None, **calm),
        Input(name="later_key", make=later_key, scale=None),
        Input(name="equal", make=by_turn(lambda t: 0 * t + 5.0), **calm),
        Input(name="alternating", make=by_turn(alternating), exact=True),
        Input(name="random_x60", make=random(60.0), scale=None),
        Input(name="random_x1000", make=random(1000.0), scale=None, exact=True),
        Input(name="just_below", make=just_below, value=30000.0, **never),
        Input(name="just_above", make=just_above, value=30000.0, exact=False),
        Input(name="drift", make=by_turn(lambda t: 3 * t), exact=False),
        Input(name="growing", make=by_turn(lambda t: 14.5 * t), value=65504.0, exact=False),
        Input(name="growing_far", make=by_turn(lambda t: 88.0 * t), exact=False),
        Input(name="growing_beyond", make=by_turn(lambda t: 200.0 * t), exact=True),
        Input(name="sums_at_the_end_of_fp32", make=sums_at_the_end, exact=True),
        Input(name="falling", make=by_turn(lambda t: -20.0 * t), **calm),
        Input(name="falling_far", make=by_turn(lambda t: -200.0 * t), **calm),
        Input(name="single_key_2^15", make=single_key(15.0)),
        Input(name="single_key_2^17", make=single_key(17.0), exact=False),
        Input(name="single_key_2^120", make=single_key(120.0), exact=True),
        Input(name="one_warp", make=some_rows(16, 32, 14.5)),
        Input(name="one_warp_far", make=some_rows(80, 96, 200.0), exact=True),
        Input(name="one_row", make=some_rows(45, 46, 20.0)),
        Input(name="scale_0", make=random(60.0), scale=0.0, **calm),
        Input(name="negative", make=negative, **never, grows=False),
    )
