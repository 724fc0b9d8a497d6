"""Emulator ABI: the structs of `templates/prelude/emulator/core/abi.h`, field by field."""

from __future__ import annotations

import ctypes
from typing import Final

ABI_VERSION: Final = 3
MAX_BUFFERS: Final = 64


class CBuffer(ctypes.Structure):
    """FmhagenBuffer."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("writable", ctypes.c_uint32),
        ("written_once", ctypes.c_uint32),
        ("settled", ctypes.c_uint32),
    )


class CRegion(ctypes.Structure):
    """FmhagenRegion."""

    _fields_ = (
        ("offset", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
    )


class CRun(ctypes.Structure):
    """FmhagenRun."""

    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("grid", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("smem_bytes", ctypes.c_uint32),
        ("kernel", ctypes.c_void_p),
        ("params", ctypes.c_void_p),
        ("seed", ctypes.c_uint64),
        ("checks", ctypes.c_uint32),
        ("entry_registers", ctypes.c_uint32),
        ("buffers", ctypes.POINTER(CBuffer)),
        ("regions", ctypes.POINTER(CRegion)),
        ("buffer_count", ctypes.c_uint32),
        ("region_count", ctypes.c_uint32),
        ("stack_bytes", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32),
        ("step_limit", ctypes.c_uint64),
        ("dependent", ctypes.c_uint32),
        ("leads", ctypes.c_uint32),
    )


class CCounter(ctypes.Structure):
    """FmhagenCounter."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_uint64))


class CBanks(ctypes.Structure):
    """FmhagenBanks."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("accesses", ctypes.c_uint64),
        ("wavefronts", ctypes.c_uint64),
        ("extra_wavefronts", ctypes.c_uint64),
    )


class CUse(ctypes.Structure):
    """FmhagenUse."""

    _fields_ = (
        ("bytes_read", ctypes.c_uint64),
        ("bytes_written", ctypes.c_uint64),
        ("unwritten", ctypes.c_uint64),
        ("first_unwritten", ctypes.c_uint64),
    )


class CReport(ctypes.Structure):
    """FmhagenReport."""

    _fields_ = (
        ("status", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
        ("thread", ctypes.c_uint32),
        ("counter_count", ctypes.c_uint32),
        ("bank_count", ctypes.c_uint32),
        ("agents", ctypes.c_uint32),
        ("steps", ctypes.c_uint64),
        ("switches", ctypes.c_uint64),
        ("kind", ctypes.c_char_p),
        ("counters", CCounter * 96),
        ("banks", CBanks * 16),
        ("uses", CUse * MAX_BUFFERS),
        ("message", ctypes.c_char * 4096),
    )
