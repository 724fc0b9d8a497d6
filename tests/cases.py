"""The case generator: specs, sizes, layouts and magnitudes that kernels get wrong.

One list serves every device: the emulator of both targets and the GPU. A case makes NumPy arrays
of values, then lays them out in memory as the case says; `Placed.torch` gives the same layout on a
device.
"""

import dataclasses
import itertools
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fmhagen.oracle.attention import reference
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.alignment import aligned_numpy
from fmhagen.spec import AttentionSpec

NUMPY_DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}
MARGIN = 8  # elements of garbage around a sliced view: 16 bytes, so that views stay aligned
LAYOUTS = (
    "dense",  # contiguous in the spec's order of axes
    "swapped",  # contiguous in the other order: bhsd memory seen as bshd, and vice versa
    "sliced",  # a view of a larger buffer that is NaN wherever the view is not
    "padded",  # rows of the spec's order with a pitch of their own, NaN between them
    "expanded",  # one K and V head for all, with a stride of 0
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One tensor in memory.

    Attributes:
        memory: everything, also what the tensor does not cover.
        shape: sizes.
        strides: in elements.
        offset: of the first element.
    """

    memory: npt.NDArray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def numpy(self) -> npt.NDArray:
        """The tensor as a view of the memory."""
        size = self.memory.dtype.itemsize
        strides = tuple(stride * size for stride in self.strides)
        return np.ndarray(self.shape, self.memory.dtype, self.memory, self.offset * size, strides)

    def torch(self, device: str) -> Any:
        """The tensor as a view of the same memory on a device."""
        import torch

        dtype = torch.float16 if self.memory.dtype == np.float16 else torch.bfloat16
        memory = torch.from_numpy(self.memory.view(np.int16)).view(dtype).to(device)
        return memory.as_strided(self.shape, self.strides, self.offset)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call.

    Attributes:
        spec: what is computed.
        batch, heads, heads_kv, rows, keys: sizes.
        layout: one of LAYOUTS.
        magnitude: of the queries; from about 5 on the softmax must move its reference.
        scale: softmax scale of the call; None means the spec's.
        want_lse: whether LSE is asked for.
    """

    spec: AttentionSpec
    batch: int = 1
    heads: int = 2
    heads_kv: int = 1
    rows: int = 65
    keys: int = 129
    layout: str = "dense"
    magnitude: float = 1.0
    scale: float | None = None
    want_lse: bool = True

    @property
    def name(self) -> str:
        """The case as a test's name."""
        spec = self.spec
        mask = "full"
        depth = f"d{spec.d}" if spec.d == spec.dv else f"d{spec.d}x{spec.dv}"
        if spec.causal:
            mask = "causal" if spec.anchor == "bottom_right" else "top_left"
        parts = [
            *(f"{spec.dtype}", depth, mask, f"{spec.layout}"),
            *(f"b{self.batch}", f"h{self.heads}x{self.heads_kv}", f"{self.rows}x{self.keys}"),
            self.layout,
        ]
        if self.magnitude != 1.0:
            parts.append(f"x{self.magnitude:g}")
        if self.scale is not None:
            parts.append(f"scale{self.scale:g}")
        if not self.want_lse:
            parts.append("no_lse")
        return "-".join(parts)

    @property
    def seed(self) -> int:
        """Of the values: fixed by the case."""
        return zlib.crc32(self.name.encode())

    def values(self) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
        """Return q, k and v as (b, h, s, d) arrays."""
        rng = np.random.default_rng(self.seed)
        dtype = NUMPY_DTYPES[self.spec.dtype]

        def normal(heads: int, rows: int, depth: int, factor: float) -> npt.NDArray:
            shape = (self.batch, heads, rows, depth)
            return (rng.standard_normal(shape, np.float32) * np.float32(factor)).astype(dtype)

        q = normal(self.heads, self.rows, self.spec.d, self.magnitude)
        k = normal(self.heads_kv, self.keys, self.spec.d, 1.0)
        v = normal(self.heads_kv, self.keys, self.spec.dv, 1.0)
        if self.layout == "expanded":
            k, v = (np.broadcast_to(x[:, :1], x.shape) for x in (k, v))
        return q, k, v

    def placed(self) -> tuple[Placed, Placed, Placed]:
        """Return q, k and v in the case's layout."""
        q, k, v = self.values()
        order = str(self.spec.layout)
        q_layout = "dense" if self.layout == "expanded" else self.layout
        return (
            place(q, order, q_layout),
            place(k, order, self.layout),
            place(v, order, self.layout),
        )

    def expected(self) -> tuple[npt.NDArray, npt.NDArray]:
        """Return O, in the spec's order of axes, and LSE in float64."""
        tensors = tuple(in_order(x, str(self.spec.layout)) for x in self.values())
        return reference(self.spec, *tensors, scale=self.scale)

    def check(self, o: Any, lse: Any) -> None:
        """Fail, with the worst position, unless O and LSE are right.

        Infinities and NaNs come first: one that is out of place says more than a large error.
        """
        o_expected, lse_expected = self.expected()
        found = compare(o, lse, o_expected, lse_expected, layout=str(self.spec.layout))
        assert found.within(tolerance_of(self.spec.dtype)), f"{self.name}\n{found}"


def in_order(values: npt.NDArray, order: str) -> npt.NDArray:
    """Return a (b, h, s, d) array with its axes in an order such as "bshd"."""
    return values.transpose(tuple("bhsd".index(letter) for letter in order))


def place(values: npt.NDArray, order: str, layout: str) -> Placed:
    """Lay a (b, h, s, d) array out in memory; its axes are those of `order`."""
    tensor = in_order(values, order)
    shape = tensor.shape
    stored = "bhsd" if (order == "bshd") == (layout == "swapped") else "bshd"
    if layout == "expanded":
        placed = place(values[:, :1], order, "dense")
        head = order.index("h")
        strides = tuple(0 if axis == head else n for axis, n in enumerate(placed.strides))
        return dataclasses.replace(placed, shape=shape, strides=strides)
    sizes = dict(zip(order, shape, strict=True))
    before = dict.fromkeys(order, 0)
    whole = dict(sizes)
    if layout == "sliced":
        before = {"b": 1, "h": 1, "s": 3, "d": MARGIN}
        whole = {letter: n + 2 * before[letter] for letter, n in sizes.items()}
    elif layout == "padded":
        whole["d"] += MARGIN
    steps: dict[str, int] = {}
    step = 1
    for letter in reversed(stored):
        steps[letter] = step
        step *= max(1, whole[letter])
    memory = aligned_numpy((step,), values.dtype)
    memory[...] = np.nan
    placed = Placed(
        memory=memory,
        shape=shape,
        strides=tuple(steps[letter] for letter in order),
        offset=sum(before[letter] * steps[letter] for letter in order),
    )
    placed.numpy[...] = tensor
    return placed


def masks() -> tuple[dict[str, Any], ...]:
    """Return the spec's fields for every mask."""
    return ({}, {"causal": True}, {"causal": True, "anchor": "top_left"})


def specs() -> tuple[AttentionSpec, ...]:
    """Return every structure that the kernels have today."""
    return tuple(
        AttentionSpec(dtype=dtype, head_dim=head_dim, **mask)
        for dtype, head_dim, mask in itertools.product(("bf16", "fp16"), (64, 128), masks())
    )


def _cycle(values: tuple[Any, ...], index: int) -> Any:
    return values[index % len(values)]


SIZES = (
    # (rows, keys): tiles are 64 to 256 rows by 64 to 176 keys
    *((1, 1), (1, 257), (257, 1), (63, 65), (65, 63), (64, 64), (127, 129), (129, 127)),
    *((1, 1000), (130, 1000), (300, 100), (100, 300), (255, 257), (257, 255), (7, 0)),
)
GROUPS = ((1, 1), (2, 1), (3, 3), (3, 1), (4, 2), (7, 1), (8, 1))  # (heads, heads_kv)


def sweep(index: int, spec: AttentionSpec, every: int = 1) -> tuple[Case, ...]:
    """Return the cases of one spec: every size, with everything else dealt in turn.

    Args:
        index: of the spec, from which the turns start.
        spec: what is computed.
        every: take one size of so many.
    """
    found = []
    spec = dataclasses.replace(spec, layout=_cycle(("bshd", "bhsd"), index))
    sizes = SIZES[index % every :: every]
    for number, (rows, keys) in enumerate(sizes):
        turn = number + 5 * index
        heads, heads_kv = _cycle(GROUPS, turn)
        small = heads * rows * keys < 200_000
        found.append(
            Case(
                spec=spec,
                batch=2 if small and turn % 3 else 1,
                heads=heads if small or heads_kv > 1 else 2,
                heads_kv=heads_kv,
                rows=rows,
                keys=keys,
                layout=_cycle(LAYOUTS, turn),
                magnitude=_cycle((1.0, 5.0, 1.0, 60.0), turn),
                scale=_cycle((None, None, 0.3, None, 0.0, None), turn),
                want_lse=turn % 4 != 3,
            )
        )
    return tuple(found)


def cases() -> tuple[Case, ...]:
    """Return the list that all devices share."""
    return tuple(
        case
        for index, spec in enumerate(specs())
        for case in sweep(index, spec, 1 if spec.dtype == "bf16" else 2)
    )


OTHER_DIMS = ((96, 96), (192, 128), (192, 192), (256, 256))  # (head_dim, head_dim_v)


def cases_of_other_dims() -> tuple[Case, ...]:
    """Return fewer cases of each other head dim with schedules of its own."""
    found = tuple(
        AttentionSpec(dtype=dtype, head_dim=d, head_dim_v=dv, **mask)
        for (d, dv), dtype, mask in itertools.product(OTHER_DIMS, ("bf16", "fp16"), masks())
    )
    return tuple(case for index, spec in enumerate(found) for case in sweep(index, spec, 7))
