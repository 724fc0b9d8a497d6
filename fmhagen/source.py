"""Source: the text of one generated kernel and what is needed to compile it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One self-contained generated file.

    Attributes:
        text: the whole file, ASCII.
        symbol: the kernel's `extern "C"` name.
        target: the canonical target name, "sm90" or "gfx942".
        filename: the file's base name, such as "fmha_fwd_bf16__m128n128d128__sm90a.cu".
        digest: the first 16 hex digits of the SHA-256 of the file's body.
        constructor: the Python expression that recreates spec, schedule and target.
        threads: threads of one block.
        dynamic_shared_bytes: shared memory to ask for at launch.
        wave_groups: groups of waves that run the main loop half a step apart.
    """

    text: str
    symbol: str
    target: str
    filename: str
    digest: str
    constructor: str
    threads: int
    dynamic_shared_bytes: int
    wave_groups: int = 1
