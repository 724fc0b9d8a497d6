"""Print one attention operator as a CUDA file and as a HIP file.

Run with `python examples/01_emit.py [DIRECTORY]`; without a directory nothing is written.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fmhagen


def main() -> None:
    """Emit for every target and say what each file is."""
    spec = fmhagen.AttentionSpec(dtype="bf16", head_dim=128, causal=True)
    for target in fmhagen.TARGETS:
        source = fmhagen.emit(spec, target=target.name)
        print(f"{source.filename}: {source.text.count(chr(10))} lines of {target.language}")
        print(f"    symbol {source.symbol}, {source.threads} threads a block")
        print(f"    recreated by {source.constructor}")
        assert "#include" not in source.text
        assert fmhagen.emit(spec, target=target.name) == source  # the same bytes every time
        if len(sys.argv) > 1:
            path = Path(sys.argv[1]) / source.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source.text, encoding="ascii")
            print(f"    wrote {path}")

    # What cannot be done is refused before any text is made, with what would work.
    try:
        fmhagen.emit(fmhagen.AttentionSpec(head_dim=72))
    except fmhagen.FmhagenError as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main()
