"""What the emulator's tests share: compiling a hand-written kernel, buffers, packing."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fmhagen.compile import HostOptimisation, compile_source
from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator import Buffer, Checks, Emulator, Region, Report, encode_tensor_map
from fmhagen.source import Source

SYMBOL = "mini_kernel"
ALL_SEEDS = range(20)

TYPES = """
#define FMHAGEN_DEVICE static inline
#define FMHAGEN_PARAMS(type) const type& params
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
using f32 = float;
"""


@functools.cache
def build(body: str, threads: int, smem_bytes: int, level: HostOptimisation = "O0") -> Emulator:
    """Compile and load a kernel whose text is complete but for the types."""
    source = Source(
        text=TYPES + body,
        symbol=SYMBOL,
        target="sm90",
        filename=f"{SYMBOL}.cu",
        digest="0" * 16,
        constructor="",
        threads=threads,
        dynamic_shared_bytes=smem_bytes,
    )
    binary = compile_source(source, for_emulator=True, host_optimisation=level)
    assert binary.path is not None
    return Emulator(binary.path, SYMBOL)


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """Return a zeroed array at a multiple of 128 bytes."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + size].view(dtype).reshape(shape)


def buffer(name: str, array: npt.NDArray[np.generic], *, output: bool = False) -> Buffer:
    """Return an array as a buffer of a run."""
    return Buffer(
        address=array.ctypes.data,
        nbytes=array.nbytes,
        name=name,
        writable=output,
        written_once=output,
    )


def matrix_map(
    array: npt.NDArray[np.generic], box_rows: int, box_columns: int, swizzle_bytes: int
) -> bytes:
    """Return the tensor map of a row-major matrix, with boxes of rows x columns."""
    rows, columns = array.shape
    pitch = array.strides[0]
    return encode_tensor_map(
        address=array.ctypes.data,
        element_bytes=array.itemsize,
        sizes=(columns, rows, 1, 1),
        stride_bytes=(pitch, pitch, pitch),
        box=(box_columns, box_rows, 1, 1),
        swizzle_bytes=swizzle_bytes,
    )


def pack(*fields: bytes | tuple[str, Sequence[int | float]]) -> bytes:
    """Return a parameter block: tensor maps as they are, then (struct format, values)."""
    return b"".join(
        field if isinstance(field, bytes) else struct.pack(f"<{field[0]}", *field[1])
        for field in fields
    )


def fault_of(
    emulator: Emulator,
    *,
    params: bytes,
    threads: int,
    smem_bytes: int,
    buffers: Sequence[Buffer],
    seed: int,
    names: Sequence[Region] = (),
    entry_registers: int = 0,
    checks: Checks = Checks.ALL,
) -> EmulatorError | Report:
    """Run one block; return its report, or the fault."""
    try:
        return emulator.run(
            params=params,
            grid=1,
            threads=threads,
            smem_bytes=smem_bytes,
            buffers=buffers,
            seed=seed,
            names=names,
            entry_registers=entry_registers,
            checks=checks,
        )
    except EmulatorError as error:
        return error
