"""The bytes of one section of a 64-bit ELF image, such as a cubin.

pyelftools does this and much more, but a cold compile would spend longer importing it than NVRTC
takes for a small kernel.
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<4sBB10xHHIQQQI6xHHH")  # of the file: up to e_shstrndx
_SECTION = struct.Struct("<II8x8xQQ")  # of a section: sh_name, sh_type, sh_offset, sh_size


def section(image: bytes, name: str) -> bytes | None:
    """Return the bytes of a section, or None if there is none of that name.

    Raises:
        ValueError: the image is no little-endian 64-bit ELF file, or is cut short.
    """
    try:
        magic, bits, order, *_, table, _, size, count, names = _HEADER.unpack_from(image)
        if magic != b"\x7fELF" or bits != 2 or order != 1:
            raise ValueError("not a little-endian 64-bit ELF file")
        headers = [_SECTION.unpack_from(image, table + i * size) for i in range(count)]
        names_first, names_bytes = headers[names][2:] if headers else (0, 0)
    except (struct.error, IndexError) as error:
        raise ValueError("an ELF file that is cut short") from error
    strings = image[names_first : names_first + names_bytes]
    for at, _, offset, size_bytes in headers:
        if strings[at : strings.find(b"\0", at)].decode("ascii", "replace") == name:
            if offset + size_bytes > len(image):
                raise ValueError(f"section {name} is cut short")
            return image[offset : offset + size_bytes]
    return None
