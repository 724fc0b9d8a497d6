"""The rows of docs/architecture.md: a module imports only from rows above its own, or beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "fmhagen"
DOCUMENT = REPOSITORY / "docs" / "architecture.md"
pytestmark = pytest.mark.skipif(not DOCUMENT.is_file(), reason="the documents are not here")


def rows() -> dict[str, int]:
    """Return the row of each room: a folder of fmhagen/, or a module directly in it."""
    table = DOCUMENT.read_text().partition("| row | modules |")[2].partition("\n\n")[0]
    found: dict[str, int] = {}
    for row, rooms in re.findall(r"^\| (\d+) \| ([^|]+) \|", table, re.MULTILINE):
        for room in re.findall(r"`(\w+)/?`", rooms):
            assert found.setdefault(room, int(row)) == int(row)
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Yield the rooms that a module imports from, inside its functions as well."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fmhagen":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fmhagen."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            names = (alias.name.split(".") for alias in node.names)
            yield from (name[1] for name in names if name[0] == "fmhagen" and len(name) > 1)


def test_every_room_has_a_row() -> None:
    rooms = {room_of(path) for path in PACKAGE.rglob("*.py")}
    assert rooms - {"__init__", "__main__"} == set(rows())


def test_imports_go_upwards() -> None:
    of = rows()
    wrong = [
        f"{path.relative_to(REPOSITORY)} imports {other}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for other in imported(path)
        if (room := room_of(path)) not in ("__init__", "__main__")
        if other in of and (of[other] > of[room] or {room, other} == {"lowering", "emission"})
    ]
    assert not wrong, "\n".join(wrong)
