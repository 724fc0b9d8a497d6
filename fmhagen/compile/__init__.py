"""Compile: the text of a kernel to a binary, with its resources read back.

compile_source(source)                      for the GPU, by the best compiler that is here
compile_source(source, for_emulator=True)   for the host, together with the emulator
available_compilers()                       what is here, and what to install otherwise
smoke("zig")                                compiles a trivial kernel
"""

from __future__ import annotations

from fmhagen.compile.binary import Binary, BinaryKind, Resources
from fmhagen.compile.cache import Cache, CacheEntry, CacheWarning, default_cache
from fmhagen.compile.driver import available_compilers, compile_source, find_compiler, smoke
from fmhagen.compile.flags import HostOptimisation
from fmhagen.compile.toolchain import Compiler

__all__ = [
    "Binary",
    "BinaryKind",
    "Cache",
    "CacheEntry",
    "CacheWarning",
    "Compiler",
    "HostOptimisation",
    "Resources",
    "available_compilers",
    "compile_source",
    "default_cache",
    "find_compiler",
    "smoke",
]
