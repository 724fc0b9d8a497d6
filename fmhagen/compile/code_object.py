"""Resources of an AMDGPU code object, from the metadata note that every compiler writes.

https://llvm.org/docs/AMDGPUUsage.html#code-object-metadata
"""

from __future__ import annotations

import io
from typing import Any

from fmhagen.compile.binary import Resources
from fmhagen.errors import CompileError

# pyelftools gives a note's type as a number or, for those that it knows, as a name.
_METADATA_TYPES = ("32", "NT_AMDGPU_METADATA")
_REGISTER_BYTES = 4


def read_metadata(image: bytes) -> dict[str, Any]:
    """Return the metadata of a code object as the mapping that its note holds.

    Raises:
        CompileError: the image is no ELF file or has no readable metadata note.
    """
    import msgpack
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.segments import NoteSegment

    try:
        for segment in ELFFile(io.BytesIO(image)).iter_segments():
            if not isinstance(segment, NoteSegment):
                continue
            for note in segment.iter_notes():
                if note["n_name"] == "AMDGPU" and str(note["n_type"]) in _METADATA_TYPES:
                    description = note["n_desc"]
                    if isinstance(description, str):
                        description = description.encode("latin-1")
                    return dict(msgpack.unpackb(description, strict_map_key=False))
    except (ELFError, ValueError, TypeError) as error:
        raise CompileError(f"not an AMDGPU code object: {error}") from error
    raise CompileError("the code object has no AMDGPU metadata note")


def read_resources(image: bytes, *, symbol: str, dynamic_shared_bytes: int) -> Resources:
    """Return what one kernel of a code object needs, and what any of its kernels spills.

    Raises:
        CompileError: the code object does not hold the kernel.
    """
    kernels = read_metadata(image).get("amdhsa.kernels", [])
    for kernel in kernels:
        if kernel[".name"] == symbol:
            break
    else:
        names = ", ".join(sorted(kernel[".name"] for kernel in kernels)) or "none"
        raise CompileError(f"the code object has no kernel {symbol}; it has: {names}")
    # NOTE: a file's second kernel, which adds up what the first has cut, is to be clean as well.
    # Older compilers omit a counter that is zero.
    counters = (".vgpr_spill_count", ".sgpr_spill_count")
    spilled = sum(each.get(counter, 0) for each in kernels for counter in counters)
    return Resources(
        registers=kernel[".vgpr_count"],
        accumulator_registers=kernel.get(".agpr_count", 0),
        scalar_registers=kernel[".sgpr_count"],
        spill_bytes=spilled * _REGISTER_BYTES,
        stack_bytes=max(each[".private_segment_fixed_size"] for each in kernels),
        static_shared_bytes=kernel[".group_segment_fixed_size"],
        dynamic_shared_bytes=dynamic_shared_bytes,
        max_threads=kernel.get(".max_flat_workgroup_size"),
    )
