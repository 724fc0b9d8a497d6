"""Apply the static model to any listing: `python -m fmhagen.model FILE --target T --waves N`.

The listing is what `llvm-objdump -d` prints of a code object, of whatever origin.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from fmhagen.model import find_loops, parse_listing, report_loop
from fmhagen.targets.timing import timing_of


def main(arguments: list[str] | None = None) -> int:
    """Print the report of a listing's main loop as JSON; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fmhagen.model", description=__doc__)
    parser.add_argument("listing", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--waves", type=int, default=2, help="waves of one SIMD")
    parser.add_argument("--groups", type=int, default=1, help="groups of waves, a barrier apart")
    options = parser.parse_args(arguments)
    timing = timing_of(options.target)
    if timing is None:
        print(f"no model is written for {options.target}", file=sys.stderr)
        return 2
    text = options.listing.read_text(encoding="utf-8", errors="replace")
    loops = find_loops(parse_listing(text, timing))
    if not loops:
        print(f"{options.listing} has no loop with matrix instructions", file=sys.stderr)
        return 1
    print(
        json.dumps(
            report_loop(loops, timing, waves=options.waves, groups=options.groups).to_dict(),
            indent=2,
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
