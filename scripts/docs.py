"""Write what the documents quote: the support matrix, main loops of emitted files, variants.

    python -m scripts.docs            rewrite README.md, docs/support.md, docs/language.md, pictures
    python -m scripts.docs --check    print the difference and exit with 1 if they are stale

A document marks a quotation with `<!-- quote: NAME -->` and `<!-- end of quote -->`, each alone
on its line; what stands between them is replaced.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from pathlib import Path

from fmhagen.committed.inventory import write_if_different
from fmhagen.committed.support import support_matrix
from fmhagen.instance import Instance
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, Target
from scripts import variants

REPOSITORY = Path(__file__).resolve().parent.parent
QUOTED_SPEC = AttentionSpec(causal=True)
EXCERPT_STARTS = ("// fully visible key tiles", "// S = Q K^T of the next unit")

_QUOTE = re.compile(r"(<!-- quote: (?P<name>[\w ]+) -->\n).*?(<!-- end of quote -->)", re.DOTALL)
_SUPPORT = """\
# What is supported

This page is written by `python -m scripts.docs` from the rules that refuse a spec
(`fmhagen/validate.py`); a test keeps it in step. Whatever is refused is refused by one error that
names the field, the value, the limit and the nearest thing that works, before any text is made.

{matrix}
Wherever a kernel is supported, so are:

- grouped heads: any number of query heads that is a multiple of the key/value heads;
- any batch and any sequence lengths Sq, Sk >= 0, the same or not, multiples of a tile or not;
- any strides with a unit last one: `bshd` and `bhsd` by name, slices and expanded views;
- a scale that is given in the spec or in the call, and 1 / sqrt(head_dim) without one;
- LSE beside O, on request.
"""


def excerpt_path(target: Target, root: Path = REPOSITORY) -> Path:
    """Return the committed file whose main loop is quoted for a target."""
    filename = Instance.of(QUOTED_SPEC, target).plan().filename
    return root / "generated" / target.name / filename


def excerpt(text: str) -> str:
    """Return the loop over the fully visible key tiles of an emitted file, up to a blank line."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.strip().startswith(EXCERPT_STARTS))
    last = next(i for i in range(first, len(lines)) if not lines[i])
    return textwrap.dedent("\n".join(lines[first:last]) + "\n")


def quotations() -> dict[str, str]:
    """Return the text of every quotation by its name."""
    quoted = {
        "support matrix": support_matrix(),
        "masks": variants.table_of_masks(),
        "scores": variants.sections_of_scores(),
    }
    for target in TARGETS:
        path = excerpt_path(target)
        name = path.relative_to(REPOSITORY).as_posix()
        body = excerpt(path.read_text(encoding="ascii"))
        language = target.language.partition(" ")[2].replace("C++", "cpp")
        quoted[f"main loop of {target.name}"] = (
            f"From [{name}]({name}):\n\n```{language}\n{body}```\n"
        )
    return quoted


def documents() -> dict[Path, str]:
    """Return the text that each document with quotations should have."""
    quoted = quotations()
    docs = REPOSITORY / "docs"
    found = {
        path: _QUOTE.sub(
            lambda quote: f"{quote[1]}{quoted[quote['name']]}{quote[3]}",
            path.read_text(encoding="ascii"),
        )
        for path in (REPOSITORY / "README.md", docs / "language.md")
    }
    found[docs / "support.md"] = _SUPPORT.format(matrix=support_matrix())
    pictures = variants.pictures().items()
    return found | {docs / "pictures" / name: text for name, text in pictures}


def main(arguments: list[str] | None = None) -> int:
    """Write or check the documents; return the exit status."""
    parser = argparse.ArgumentParser(description="Write what the documents quote.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    options = parser.parse_args(arguments)
    stale = 0
    for path, wanted in documents().items():
        name = path.relative_to(REPOSITORY).as_posix()
        if not options.check:
            print(f"{'wrote' if write_if_different(path, wanted) else 'unchanged'} {name}")
            continue
        found = path.read_text(encoding="ascii") if path.exists() else ""
        difference = difflib.unified_diff(
            found.splitlines(keepends=True), wanted.splitlines(keepends=True), name, name
        )
        text = "".join(difference)
        stale += bool(text)
        sys.stdout.write(text)
    if stale:
        print("rewrite with: python -m scripts.docs")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
