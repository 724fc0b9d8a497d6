"""Packed sequences and sinks for gfx942 kernels on the emulator, and what float64 says of them."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gfx942_runs import NUMPY_DTYPES, ROUNDING, Outcome, _buffer, _strides

from fmhagen.compile import compile_source
from fmhagen.emission import emit_source
from fmhagen.oracle.attention import reference
from fmhagen.plan.attention import Plan
from fmhagen.runtime.emulator import Region, run
from fmhagen.runtime.launch_values import block_packer, scale_log2_of
from fmhagen.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Lengths of a packed batch.

    Attributes:
        heads, heads_kv: sizes.
        rows: query rows of each sequence.
        keys: keys of each sequence.
        unused: rows behind each sequence, of Q and of K and V, that `seqused` leaves out: NaN.
    """

    heads: int = 1
    heads_kv: int = 1
    rows: tuple[int, ...]
    keys: tuple[int, ...]
    unused: int = 0

    def starts(self, lengths: tuple[int, ...]) -> npt.NDArray[np.int32]:
        """Return cumulative lengths, unused rows included."""
        ends = np.cumsum([length + self.unused for length in lengths])
        return np.concatenate(([0], ends)).astype(np.int32)


def with_sinks(
    o: npt.NDArray, lse: npt.NDArray, sinks: npt.NDArray | None
) -> tuple[npt.NDArray, npt.NDArray]:
    """Return O [B, S, H, dv] and LSE [B, H, S] with a sink in every row's denominator."""
    if sinks is None:
        return o, lse
    together = np.logaddexp(lse, sinks[None, :, None].astype(np.float64))
    share = np.exp(lse - np.where(np.isneginf(together), 0.0, together))
    return o * share.transpose(0, 2, 1)[..., None], together


def emulate_packed(
    plan: Plan,
    lengths: Packed,
    *,
    sinks: npt.NDArray | None = None,
    source: Source | None = None,
    seed: int = 0,
    magnitude: float = 1.0,
    blocks: int | None = None,
) -> Outcome:
    """Run one call on random Q, K, V and compare every sequence by itself."""
    spec = plan.spec
    binary = compile_source(source or emit_source(plan), for_emulator=True)
    rng = np.random.default_rng(seed)
    starts = {"q": lengths.starts(lengths.rows), "k": lengths.starts(lengths.keys)}
    total_q, total_k = int(starts["q"][-1]), int(starts["k"][-1])
    number = NUMPY_DTYPES[str(spec.dtype)]
    used = {"q": lengths.rows, "k": lengths.keys}
    tensors = {}
    for name, heads, depth in (
        ("q", lengths.heads, spec.d),
        ("k", lengths.heads_kv, spec.d),
        ("v", lengths.heads_kv, spec.dv),
    ):
        side = "q" if name == "q" else "k"
        memory = np.full((max(1, int(starts[side][-1])), heads, depth + 8), np.nan, number)
        view = memory[:, :, :depth]
        for first, length in zip(starts[side], used[side], strict=False):
            values = rng.standard_normal((length, heads, depth))
            view[first : first + length] = (values * magnitude).astype(number)
        tensors[name] = view
    o = np.zeros((max(1, total_q), lengths.heads, spec.dv), number)
    lse = np.zeros((lengths.heads, max(1, total_q)), np.float32)
    seqused = {side: np.array(used[side], np.int32) for side in used}
    tile_m = plan.grid.tile_m
    bound = min(
        total_q // tile_m + len(lengths.rows),
        len(lengths.rows) * -(-max(lengths.rows, default=0) // tile_m),
    )
    sink_values = np.zeros(lengths.heads, np.float32) if sinks is None else sinks
    fields: dict[str, int | float] = {
        **{name: tensor.ctypes.data for name, tensor in (*tensors.items(), ("o", o))},
        "lse": lse.ctypes.data,
        "sinks": sink_values.ctypes.data,
        "scale_log2": scale_log2_of(spec.scale_value),
        "cu_seqlens_q": starts["q"].ctypes.data,
        "cu_seqlens_k": starts["k"].ctypes.data,
        "seqused_q": seqused["q"].ctypes.data if lengths.unused else 0,
        "seqused_k": seqused["k"].ctypes.data if lengths.unused else 0,
        "total_q": total_q,
        "total_k": total_k,
        "batch": len(lengths.rows),
        "num_heads": lengths.heads,
        "heads_per_group": lengths.heads // lengths.heads_kv,
        "num_tiles": bound * lengths.heads,
    }
    for name, array in (*tensors.items(), ("o", o)):
        fields |= _strides(name, array[None])
    report = run(
        binary.path or "",
        plan.symbol,
        block_packer(plan).pack(*(fields[field.name] for field in plan.params)),
        blocks or max(1, bound * lengths.heads),
        plan.threads,
        plan.shared_bytes,
        (
            *(_buffer(name, array) for name, array in tensors.items()),
            *(_buffer(f"cu_seqlens_{side}", starts[side]) for side in starts),
            *(_buffer(f"seqused_{side}", seqused[side]) for side in seqused if lengths.unused),
            *([_buffer("sinks", sink_values)] if spec.sink else []),
            _buffer("o", o, writable=True, written_once=True),
            _buffer("lse", lse, writable=True, written_once=True),
        ),
        seed=seed,
        names=tuple(
            Region(offset_bytes=r.offset_bytes, nbytes=r.size_bytes, name=r.name)
            for r in plan.shared
        ),
    )
    plain = dataclasses.replace(spec, sink=False, varlen=False, layout="bshd")
    got_o, got_lse, right_o, right_lse = [], [], [], []
    for b, (rows, keys) in enumerate(zip(lengths.rows, lengths.keys, strict=True)):
        q_rows = slice(starts["q"][b], starts["q"][b] + rows)
        k_rows = slice(starts["k"][b], starts["k"][b] + keys)
        views = (tensors["q"][q_rows], tensors["k"][k_rows], tensors["v"][k_rows])
        expected = reference(plain, *(view[None] for view in views))
        expected = with_sinks(*expected, sinks)
        got_o.append(o[q_rows].astype(np.float64))
        got_lse.append(lse[:, q_rows].astype(np.float64))
        right_o.append(expected[0][0])
        right_lse.append(expected[1][0])
    # NOTE: rows that no sequence has are never written, so what is written is counted here.
    written = {use.name: use.unwritten_bytes for use in report.buffers}
    gap = lengths.unused * len(lengths.rows) + (total_q == 0)
    assert written["o"] == gap * lengths.heads * spec.dv * 2, written
    assert written["lse"] == gap * lengths.heads * 4, written
    report = dataclasses.replace(report, buffers=())
    largest = 5.0 * magnitude
    return Outcome(
        o=np.concatenate(got_o),
        lse=np.concatenate(got_lse, axis=1),
        expected_o=np.concatenate(right_o),
        expected_lse=np.concatenate(right_lse, axis=1),
        tolerance=2 * ROUNDING[str(spec.dtype)] * largest + 1e-5,
        lse_tolerance=1e-5 * max(1.0, magnitude**2),
        report=report,
    )
