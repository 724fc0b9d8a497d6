"""Runs of gfx942 kernels on the emulator, with garbage wherever a kernel must not look."""

import functools
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fmhagen.compile import compile_source
from fmhagen.emission import emit_source
from fmhagen.lowering import lower
from fmhagen.oracle.attention import reference
from fmhagen.plan.attention import Plan
from fmhagen.runtime.emulator import Buffer, Checks, Region, Report, run
from fmhagen.runtime.launch_values import block_packer, scale_log2_of
from fmhagen.schedule import Schedule
from fmhagen.select import candidates
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import GFX942

NUMPY_DTYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "fp16": np.dtype(np.float16)}
ROUNDING = {"bf16": 2.0**-8, "fp16": 2.0**-11}
GARBAGE_ROWS = 70  # more than a tile has, so that no tensor lies where another one ends
GARBAGE_COLUMNS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of one call."""

    batch: int = 1
    heads: int = 1
    heads_kv: int = 1
    seqlen_q: int
    seqlen_k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run gave, and what it should have."""

    o: npt.NDArray[np.float64]
    lse: npt.NDArray[np.float64]
    expected_o: npt.NDArray[np.float64]
    expected_lse: npt.NDArray[np.float64]
    tolerance: float
    lse_tolerance: float
    report: Report

    @property
    def is_right(self) -> bool:
        """Whether infinities agree, O is right to rounding, LSE to fp32, and all is written."""
        finite = np.isfinite(self.expected_lse)
        return bool(
            np.array_equal(np.isfinite(self.lse), finite)
            and np.array_equal(self.lse[~finite], self.expected_lse[~finite])
            and np.allclose(
                self.lse[finite], self.expected_lse[finite], rtol=0, atol=self.lse_tolerance
            )
            and np.allclose(self.o, self.expected_o, rtol=0, atol=self.tolerance)
            and all(use.unwritten_bytes == 0 for use in self.report.buffers)
        )

    @property
    def worst(self) -> str:
        """The largest errors, for a failing test's message."""
        with np.errstate(invalid="ignore"):
            o_error = np.abs(self.o - self.expected_o)
            lse_error = np.abs(self.lse - self.expected_lse)
        where = np.unravel_index(int(np.argmax(o_error)), o_error.shape) if o_error.size else ()
        return (
            f"O off by {o_error.max(initial=0)} at (b, m, h, d) = {tuple(map(int, where))},"
            f" tolerance {self.tolerance}; LSE off by {np.nanmax(lse_error, initial=0)}"
        )


@functools.cache
def plans(spec: AttentionSpec) -> tuple[Plan, ...]:
    """Every instance of a spec, the default first."""
    return tuple(lower(spec, schedule, GFX942) for schedule in candidates(spec, GFX942))


def small_plan(spec: AttentionSpec) -> Plan:
    """The instance with the fewest threads: the quickest to emulate."""
    return min(plans(spec), key=lambda plan: plan.threads)


def plan_of(spec: AttentionSpec, **fields: object) -> Plan:
    """An instance with a schedule of its own."""
    return lower(spec, Schedule(main_loop="wave_interleaved", **fields), GFX942)  # type: ignore[arg-type]


def _fill(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float
) -> npt.NDArray:
    return (rng.standard_normal(shape) * scale).astype(NUMPY_DTYPES[dtype])


def _within_garbage(rows: npt.NDArray) -> npt.NDArray:
    """Return a view with the values of `rows` [B, S, H, d] in an array that is NaN elsewhere."""
    batch, length, heads, depth = rows.shape
    shape = (batch, length + GARBAGE_ROWS, heads, depth + GARBAGE_COLUMNS)
    memory = np.full(shape, np.nan, rows.dtype)
    view = memory[:, :length, :, :depth]
    view[...] = rows
    return view


def _buffer(name: str, array: npt.NDArray, **flags: bool) -> Buffer:
    """Return the memory from an array's first element to its last: not a byte more."""
    steps = ((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True))
    nbytes = sum(steps) + array.itemsize if array.size else 0
    return Buffer(address=array.ctypes.data, nbytes=nbytes, name=name, **flags)


def _strides(name: str, array: npt.NDArray) -> dict[str, int]:
    b, m, h, _ = (stride // array.itemsize for stride in array.strides)
    row = "n" if name in ("k", "v") else "m"
    return {f"{name}_stride_b": b, f"{name}_stride_h": h, f"{name}_stride_{row}": m}


def emulate(
    plan: Plan,
    sizes: Sizes,
    *,
    source: Source | None = None,
    seed: int = 0,
    magnitude: float = 1.0,
    scale: float | None = None,
    blocks: int | None = None,
    want_lse: bool = True,
    checks: Checks = Checks.ALL,
    tensors: tuple[npt.NDArray, npt.NDArray, npt.NDArray] | None = None,
) -> Outcome:
    """Run one call and the oracle; q, k, v are random unless given as [B, S, H, d] arrays."""
    spec = plan.spec
    source = source or emit_source(plan)
    binary = compile_source(source, for_emulator=True)
    rng = np.random.default_rng(seed)
    b, h, hk, sq, sk = (
        *(sizes.batch, sizes.heads, sizes.heads_kv),
        *(sizes.seqlen_q, sizes.seqlen_k),
    )
    if tensors is None:
        shapes = ((b, sq, h, spec.d), (b, sk, hk, spec.d), (b, sk, hk, spec.dv))
        values = [_fill(rng, shape, str(spec.dtype), magnitude) for shape in shapes]
        q, k, v = map(_within_garbage, values)
    else:
        q, k, v = tensors
    o = np.zeros((b, sq, h, spec.dv), q.dtype)
    lse = np.zeros((b, h, sq), np.float32)
    factor = spec.scale_value if scale is None else scale
    m_tiles = -(-sq // plan.grid.tile_m)
    fields = {
        **{"q": q.ctypes.data, "k": k.ctypes.data, "v": v.ctypes.data, "o": o.ctypes.data},
        "lse": lse.ctypes.data if want_lse else 0,
        "scale_log2": scale_log2_of(factor),
        "causal_offset": 0 if plan.top_left else sk - sq,
        "seqlen_q": sq,
        "seqlen_k": sk,
        "batch": b,
        "num_heads": h,
        "heads_per_group": h // hk,
        "num_m_tiles": m_tiles,
        "num_tiles": m_tiles * h * b,
    }
    for name, array in (("q", q), ("k", k), ("v", v), ("o", o)):
        fields |= _strides(name, array)
    report = run(
        binary.path or "",
        plan.symbol,
        block_packer(plan).pack(*(fields[field.name] for field in plan.params)),
        blocks or max(1, plan.grid.blocks(m_tiles * h * b, GFX942.compute_units)),
        plan.threads,
        plan.shared_bytes,
        (
            *(_buffer(name, array) for name, array in (("q", q), ("k", k), ("v", v))),
            _buffer("o", o, writable=True, written_once=True),
            *([_buffer("lse", lse, writable=True, written_once=True)] if want_lse else []),
        ),
        seed=seed,
        checks=checks,
        names=tuple(
            Region(offset_bytes=r.offset_bytes, nbytes=r.size_bytes, name=r.name)
            for r in plan.shared
        ),
    )
    expected_o, expected_lse = reference(spec, q, k, v, scale=factor)
    largest = float(np.abs(v.astype(np.float64)).max(initial=0.0))
    return Outcome(
        o=o.astype(np.float64),
        lse=lse.astype(np.float64) if want_lse else expected_lse,
        expected_o=expected_o,
        expected_lse=expected_lse,
        # P is rounded, and O: each by half a unit of a number that is at most the largest of V.
        tolerance=2 * ROUNDING[str(spec.dtype)] * largest + 1e-5,
        lse_tolerance=1e-5 * max(1.0, magnitude**2),
        report=report,
    )
