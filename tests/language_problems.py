"""Calls of kernels with masks, score functions, sinks and packed sequences, against float64.

A problem says what is computed and of which sizes; its tensors are random, laid out in poisoned
memory, and its answer comes from the oracle.
"""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
from cases import NUMPY_DTYPES, place

from fmhagen.oracle.attention import reference
from fmhagen.oracle.comparison import compare, tolerance_of
from fmhagen.runtime.arguments import Extras
from fmhagen.spec import AttentionSpec


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One call.

    Attributes:
        name: for the test's name and the seed.
        spec: what is computed.
        batch, heads, heads_kv, rows, keys: sizes; of packed sequences `lengths` says the rest.
        lengths: (rows, keys) of each packed sequence.
        used: (rows, keys) in use of each packed sequence, or None: all.
        layout: one of `cases.LAYOUTS`.
        magnitude: of the queries.
        scale: softmax scale of the call; None means the spec's.
        params: what mask and score function read.
        sinks: logits of the sinks; random ones by default.
    """

    name: str
    spec: AttentionSpec
    batch: int = 2
    heads: int = 2
    heads_kv: int = 1
    rows: int = 200
    keys: int = 330
    lengths: tuple[tuple[int, int], ...] = ()
    used: tuple[tuple[int, int], ...] | None = None
    layout: str = "dense"
    magnitude: float = 1.0
    scale: float | None = None
    params: dict[str, Any] = dataclasses.field(default_factory=dict)
    sinks: tuple[float, ...] | None = None

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers that the name fixes."""
        return np.random.default_rng(zlib.crc32(self.name.encode()))

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(batch, rows, keys) of the tensors; packed sequences are a batch of one."""
        if not self.spec.varlen:
            return self.batch, self.rows, self.keys
        return 1, sum(rows for rows, _ in self.lengths), sum(keys for _, keys in self.lengths)

    def values(self) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
        """Return q, k and v as (b, h, s, d) arrays; packed rows out of use are NaN."""
        rng = self.rng
        dtype = NUMPY_DTYPES[self.spec.dtype]
        batch, rows, keys = self.sizes
        q = rng.standard_normal((batch, self.heads, rows, self.spec.d), np.float32)
        k = rng.standard_normal((batch, self.heads_kv, keys, self.spec.d), np.float32)
        v = rng.standard_normal((batch, self.heads_kv, keys, self.spec.dv), np.float32)
        q *= np.float32(self.magnitude)
        if self.used is not None:
            at_q = at_k = 0
            for (rows, keys), (rows_used, keys_used) in zip(self.lengths, self.used, strict=True):
                q[:, :, at_q + rows_used : at_q + rows] = np.nan
                k[:, :, at_k + keys_used : at_k + keys] = np.nan
                v[:, :, at_k + keys_used : at_k + keys] = np.nan
                at_q, at_k = at_q + rows, at_k + keys
        return q.astype(dtype), k.astype(dtype), v.astype(dtype)

    def tensors(self) -> tuple[npt.NDArray, npt.NDArray, npt.NDArray]:
        """Return q, k and v as a call takes them."""
        placed = (place(x, str(self.spec.layout), self.layout).numpy for x in self.values())
        q, k, v = (x[0] if self.spec.varlen else x for x in placed)
        return q, k, v

    def arguments(self) -> dict[str, Any]:
        """Return what a call gives besides, and the oracle, too."""
        rng = self.rng
        given: dict[str, Any] = {}
        if self.params:
            given["params"] = self.params
        if self.spec.alibi:
            given["alibi_slopes"] = (2.0 ** -rng.uniform(1, 8, self.heads)).astype(np.float32)
        if self.spec.sink:
            drawn = rng.standard_normal(self.heads).astype(np.float32) * 3
            given["sinks"] = drawn if self.sinks is None else np.array(self.sinks, np.float32)
        if self.spec.varlen:
            for side, index in (("q", 0), ("k", 1)):
                counts = [0, *(pair[index] for pair in self.lengths)]
                given[f"cu_seqlens_{side}"] = np.cumsum(counts).astype(np.int32)
                if self.used is not None:
                    counts = [pair[index] for pair in self.used]
                    given[f"seqused_{side}"] = np.array(counts, np.int32)
        return given

    def extras(self) -> Extras:
        """Return the arguments of the call."""
        extras: Extras = self.arguments()  # type: ignore[assignment]
        return extras

    def expected(self) -> tuple[npt.NDArray, npt.NDArray]:
        """Return O and LSE in float64."""
        tensors = tuple(np.nan_to_num(x.astype(np.float64)) for x in self.tensors())
        return reference(self.spec, *tensors, scale=self.scale, **self.arguments())

    def check(self, o: Any, lse: Any) -> None:
        """Fail, with the worst position, unless O and LSE are right."""
        o, lse = np.asarray(o), np.asarray(lse)
        o_expected, lse_expected = self.expected()
        if self.used is not None:  # rows out of use are not written
            mask = self._rows_in_use()
            o, o_expected = o[mask], o_expected[mask]
            lse, lse_expected = lse[:, mask], lse_expected[:, mask]
        if self.spec.varlen:
            o, o_expected, lse, lse_expected = (x[None] for x in (o, o_expected, lse, lse_expected))
        layout = "bshd" if self.spec.varlen else str(self.spec.layout)
        found = compare(o, lse, o_expected, lse_expected, layout=layout)
        assert found.within(tolerance_of(self.spec.dtype)), f"{self.name}\n{found}"

    def _rows_in_use(self) -> npt.NDArray[np.bool_]:
        assert self.used is not None
        parts = [
            np.arange(rows) < used
            for (rows, _), (used, _) in zip(self.lengths, self.used, strict=True)
        ]
        return np.concatenate(parts)
