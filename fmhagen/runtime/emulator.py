"""Emulator: run an emitted kernel, compiled for the host, lane by lane with every check on.

The library that is loaded is one emitted file compiled together with the headers of
`templates/prelude/emulator`. docs/emulator.md says what is emulated. One library has one static
state, so runs of one library take turns, and the emulator is run in parallel by process.
"""

from __future__ import annotations

import _ctypes
import ctypes
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fmhagen.errors import EmulatorError
from fmhagen.runtime.emulator_abi import (
    ABI_VERSION,
    MAX_BUFFERS,
    CBuffer,
    CRegion,
    CReport,
    CRun,
)
from fmhagen.runtime.emulator_records import (
    BankUse,
    Buffer,
    BufferUse,
    Checks,
    Region,
    Report,
)

__all__ = [
    "BankUse",
    "Buffer",
    "BufferUse",
    "Checks",
    "Emulator",
    "Region",
    "Report",
    "encode_tensor_map",
    "run",
]

TENSOR_MAP_BYTES: Final = 128
_TENSOR_MAP_MAGIC: Final = 0x50414D524F534E54
_MAX_RANK: Final = 5
_PARAMS_ALIGNMENT_BYTES: Final = 64


class Emulator:
    """A kernel compiled for the host, loaded until `close` (or the end of its `with` block).

    The dynamic loader knows a library by its file: give every build a path of its own, as the
    cache of binaries does, never overwrite one in place.
    """

    def __init__(self, library_path: str | Path, symbol: str) -> None:
        """Load a library.

        Raises:
            EmulatorError: there is no such library, or no such kernel in it.
        """
        self.library_path = Path(library_path)
        self.symbol = symbol
        try:
            library = ctypes.CDLL(str(library_path))
            self._entry = library.fmhagen_emulator_run
            self._kernel = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        except (OSError, AttributeError) as error:
            raise EmulatorError(f"cannot load {library_path}: {error}", kind="launch") from None
        self._entry.argtypes = (ctypes.POINTER(CRun), ctypes.POINTER(CReport))
        self._entry.restype = ctypes.c_int
        self._library: ctypes.CDLL | None = library
        # NOTE: a library keeps its stacks, two mappings a thread, and a process has only so many:
        # an emulator that nobody refers to must not keep its library.
        self._unload = weakref.finalize(self, _ctypes.dlclose, library._handle)
        self._unload.atexit = False

    def __enter__(self) -> Self:
        """Return the emulator itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Unload the library."""
        self.close()

    def close(self) -> None:
        """Unload the library; the object cannot run any more."""
        self._library = None
        self._unload()

    def run(
        self,
        *,
        params: bytes,
        grid: int,
        threads: int,
        smem_bytes: int,
        buffers: Sequence[Buffer],
        seed: int = 0,
        checks: Checks = Checks.ALL,
        names: Sequence[Region] = (),
        entry_registers: int = 0,
        step_limit: int = 0,
        cluster: int = 1,
        is_dependent: bool = False,
        leads: bool = False,
    ) -> Report:
        """Run a grid, block by block, or cluster by cluster.

        Args:
            params: the kernel's packed parameter block.
            grid: blocks.
            threads: threads of a block.
            smem_bytes: dynamic shared memory of a block.
            buffers: all the global memory that the kernel may touch.
            seed: of the interleaving and of the moments of asynchronous operations.
            checks: what to check.
            names: of pieces of shared memory, for messages.
            entry_registers: registers a thread at entry, from which setmaxnreg is accounted;
                0 = unknown, not accounted.
            step_limit: scheduler steps after which the run is given up; 0 = none.
            cluster: blocks that run together and reach one another's shared memory.
            is_dependent: the launch may begin before the kernel ahead of it has ended, so that it
                must wait before it touches what is not `settled`.
            leads: the launch behind it reads `settled` buffers before it waits, so that this one
                must have waited when it lets that one begin.

        Raises:
            EmulatorError: the emulator found a fault; its kind says which.
        """
        if self._library is None:
            raise EmulatorError(f"{self.symbol}: the library is closed", kind="launch")
        if len(buffers) > MAX_BUFFERS:
            raise EmulatorError(f"{len(buffers)} buffers, more than {MAX_BUFFERS}", kind="launch")
        storage = ctypes.create_string_buffer(params, len(params) + _PARAMS_ALIGNMENT_BYTES)
        padding = -ctypes.addressof(storage) % _PARAMS_ALIGNMENT_BYTES
        params_address = ctypes.addressof(storage) + padding
        ctypes.memmove(params_address, params, len(params))
        buffer_table = (CBuffer * len(buffers))(*(_c_buffer(buffer) for buffer in buffers))
        region_table = (CRegion * len(names))(
            *(CRegion(name.offset_bytes, name.nbytes, name.name.encode()) for name in names)
        )
        request = CRun(
            abi_version=ABI_VERSION,
            grid=grid,
            threads=threads,
            smem_bytes=smem_bytes,
            kernel=self._kernel,
            params=params_address,
            seed=seed % 2**64,
            checks=int(checks),
            entry_registers=entry_registers,
            buffers=buffer_table,
            regions=region_table,
            buffer_count=len(buffers),
            region_count=len(names),
            step_limit=step_limit,
            cluster=cluster,
            dependent=is_dependent,
            leads=leads,
        )
        report = CReport()
        if self._entry(ctypes.byref(request), ctypes.byref(report)) != 0:
            kind = report.kind.decode()
            raise EmulatorError(f"{kind}: {report.message.decode(errors='replace')}", kind=kind)
        return _read_report(report, buffers)


def run(
    library_path: str | Path,
    symbol: str,
    params: bytes,
    grid: int,
    threads: int,
    smem_bytes: int,
    buffers: Sequence[Buffer],
    *,
    seed: int = 0,
    checks: Checks = Checks.ALL,
    names: Sequence[Region] = (),
    entry_registers: int = 0,
) -> Report:
    """Load a library, run a grid once and unload it; see `Emulator.run`."""
    with Emulator(library_path, symbol) as emulator:
        return emulator.run(
            params=params,
            grid=grid,
            threads=threads,
            smem_bytes=smem_bytes,
            buffers=buffers,
            seed=seed,
            checks=checks,
            names=names,
            entry_registers=entry_registers,
        )


def encode_tensor_map(
    *,
    address: int,
    element_bytes: int,
    sizes: Sequence[int],
    stride_bytes: Sequence[int],
    box: Sequence[int],
    swizzle_bytes: int,
) -> bytes:
    """Return the 128 bytes that the emulator reads as a tensor map of rank 4 or 5.

    Args:
        address: of the first element.
        element_bytes: of one element.
        sizes: elements of each dimension, innermost first.
        stride_bytes: of every dimension but the innermost; 0 repeats.
        box: elements of the box in each dimension, innermost first.
        swizzle_bytes: 0, 32, 64 or 128.
    """
    rank = len(sizes)
    if rank not in (4, _MAX_RANK) or (len(stride_bytes), len(box)) != (rank - 1, rank):
        raise ValueError("a tensor map of rank n = 4 or 5 has n sizes, n - 1 strides, a box of n")
    missing = _MAX_RANK - rank
    packed = struct.pack(
        "<QQIIII5Q4Q5I",
        _TENSOR_MAP_MAGIC,
        address,
        rank,
        element_bytes,
        swizzle_bytes,
        0,
        *sizes,
        *(1,) * missing,
        *stride_bytes,
        *(0,) * missing,
        *box,
        *(1,) * missing,
    )
    return packed.ljust(TENSOR_MAP_BYTES, b"\0")


def _c_buffer(buffer: Buffer) -> CBuffer:
    return CBuffer(
        buffer.address,
        buffer.nbytes,
        buffer.name.encode(),
        buffer.writable,
        buffer.written_once + (buffer.written_once and buffer.is_kept),
        buffer.settled,
    )


def _read_report(report: CReport, buffers: Sequence[Buffer]) -> Report:
    counters = report.counters[: report.counter_count]
    return Report(
        instructions={c.name.decode(): c.value for c in sorted(counters, key=lambda c: c.name)},
        banks=tuple(
            BankUse(
                name=bank.name.decode(),
                accesses=bank.accesses,
                wavefronts=bank.wavefronts,
                extra_wavefronts=bank.extra_wavefronts,
            )
            for bank in report.banks[: report.bank_count]
        ),
        buffers=tuple(
            BufferUse(
                name=buffer.name,
                read_bytes=use.bytes_read,
                written_bytes=use.bytes_written,
                unwritten_bytes=use.unwritten,
                first_unwritten_byte=use.first_unwritten if use.unwritten else None,
            )
            for buffer, use in zip(buffers, report.uses, strict=False)
        ),
        steps=report.steps,
        switches=report.switches,
        agents=report.agents,
    )
