"""Launches of CUDA whose arguments are fixed: one packed buffer, and one call of libcuda itself.

The bindings convert eleven arguments in every launch; libcuda through ctypes takes addresses that
were made once. Nothing here changes after it was packed, so a launch may be started by any thread.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any, Protocol

# CUlaunchConfig of cuda.h: gridDim, blockDim, sharedMemBytes, hStream, attrs, numAttrs.
_CONFIG = struct.Struct("<3I3II4xQQI4x")
_POINTER = struct.Struct("<Q")
_PARAMS_OFFSET = 64  # behind the configuration and the pointer
# CUlaunchAttribute of cuda.h: id, padding, and a value of 64 bytes; here the one that lets a kernel
# be placed before the one ahead of it in the stream has ended.
_DEPENDENT = struct.Struct("<I4xi60x").pack(6, 1)
WRONG_CONTEXT = (201, 400)
"""Codes of a launch on the default stream of another context, or of none, and nothing started:
CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_HANDLE. On a stream of the kernel's own context a
launch succeeds whatever context is current (both seen on two H200, driver 580)."""


class Library(Protocol):
    """The function of libcuda that launches, as ctypes has it."""

    cuLaunchKernelEx: Any  # (const CUlaunchConfig*, CUfunction, void** params, void** extra)


def import_library() -> Library:
    """Return libcuda, which the bindings have loaded already."""
    return ctypes.CDLL("libcuda.so.1")


class Launches:
    """Makes launches of one kernel in one context."""

    def __init__(
        self,
        library: Library,
        *,
        function: int,
        threads: int,
        shared_bytes: int,
        packer: struct.Struct,
        is_dependent: bool = False,
    ) -> None:
        """Keep what all launches share."""
        self._library = library
        self._function = ctypes.c_void_p(function)
        self._threads = threads
        self._shared_bytes = shared_bytes
        self._packer = packer
        self._attributes = _DEPENDENT if is_dependent else b""

    def bind(self, values: list[Any], blocks: int, stream: int) -> Callable[[], int]:
        """Return a function that launches `blocks` blocks with the packed values on a stream.

        It gives the driver's code, one of WRONG_CONTEXT where the current context is not the
        kernel's and the stream does not say which one is.
        """
        attributes = self._attributes
        attributes_offset = _PARAMS_OFFSET + -(-self._packer.size // 8) * 8
        memory = ctypes.create_string_buffer(attributes_offset + len(attributes))
        address = ctypes.addressof(memory)
        ctypes.memmove(address + attributes_offset, attributes, len(attributes))
        # fmt: off
        _CONFIG.pack_into(
            memory, 0, blocks, 1, 1, self._threads, 1, 1, self._shared_bytes, stream,
            address + attributes_offset if attributes else 0, 1 if attributes else 0,
        )
        # fmt: on
        _POINTER.pack_into(memory, _CONFIG.size, address + _PARAMS_OFFSET)
        self._packer.pack_into(memory, _PARAMS_OFFSET, *values)
        # A reference keeps the buffer alive, and costs nothing to pass.
        config, params = ctypes.byref(memory), ctypes.byref(memory, _CONFIG.size)
        # NOTE: the driver copies the block before it returns.
        return functools.partial(
            self._library.cuLaunchKernelEx, config, self._function, params, None
        )
