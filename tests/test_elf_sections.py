"""Sections of cubins, read without pyelftools and compared with it."""

from __future__ import annotations

import io

import pytest

from fmhagen.compile.driver import smoke
from fmhagen.compile.elf_sections import section


def test_sections_of_a_cubin() -> None:
    """Every section that pyelftools finds has the same bytes."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from elftools.elf.elffile import ELFFile

    image = smoke("nvrtc").image
    known = {s.name: s.data() for s in ELFFile(io.BytesIO(image)).iter_sections() if s.name}
    assert any(name.startswith(".nv.info.") for name in known)
    assert {name: section(image, name) for name in known} == known
    assert section(image, ".nv.info.no_such_kernel") is None
    with pytest.raises(ValueError, match="cut short"):
        section(image[: len(image) // 2], ".nv.info")


@pytest.mark.parametrize(
    "image", [b"", b"\x7fELF", b"\x7fELF\x01\x01" + bytes(60), b"no ELF file" * 9]
)
def test_what_is_no_elf_file_is_refused(image: bytes) -> None:
    with pytest.raises(ValueError, match="ELF"):
        section(image, ".text")
