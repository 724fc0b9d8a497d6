"""Definitions of the prelude: parsed from C++ text, and only those in use are printed."""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"^FMHAGEN_DEVICE\b[^(]*?\b(\w+)\(", re.MULTILINE)
_STRUCT = re.compile(r"^(?:struct|using|typedef)\b[^{;=]*?\b(\w+)\s*(?:[{;=]|$)", re.MULTILINE)
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One function or type of the prelude.

    Attributes:
        name: its identifier.
        text: comment and code, without a final newline.
        layer: "tile" or "isa".
        is_type: a struct rather than a function.
    """

    name: str
    text: str
    layer: str
    is_type: bool

    @property
    def code(self) -> str:
        """The text without comment lines."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("//"))

    @property
    def summary(self) -> str:
        """The first comment line, without its slashes."""
        return self.text.splitlines()[0].removeprefix("//").strip()

    @property
    def declaration(self) -> str:
        """The forward declaration of a function."""
        head = self.code.partition("{\n")[0].rstrip()
        return head + ";"

    @property
    def words(self) -> frozenset[str]:
        """Every identifier in the code."""
        return frozenset(_WORD.findall(self.code))


def parse(text: str, layer: str) -> tuple[Definition, ...]:
    """Split C++ text into definitions: blocks of lines with blank lines between them.

    Blocks of comments alone are about the file and are left out.

    Raises:
        ValueError: a block defines nothing that has a name.
    """
    found: list[Definition] = []
    for block in re.split(r"\n\s*\n", text.strip()):
        code = "\n".join(line for line in block.splitlines() if not line.startswith("//"))
        if not code.strip():
            continue
        function = _NAME.search(code)
        struct = _STRUCT.search(code)
        match = function or struct
        if match is None:
            raise ValueError(f"a prelude block defines nothing:\n{block}")
        found.append(
            Definition(name=match.group(1), text=block, layer=layer, is_type=function is None)
        )
    return tuple(found)


def closure(body: str, available: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """Return the definitions that `body` uses, directly or through others, in their own order."""
    by_name: dict[str, list[Definition]] = {}
    for definition in available:
        by_name.setdefault(definition.name, []).append(definition)
    wanted: set[str] = set()
    pending = set(_WORD.findall(body)) & by_name.keys()
    while pending:
        name = pending.pop()
        wanted.add(name)
        for definition in by_name[name]:
            pending |= (definition.words & by_name.keys()) - wanted
    return tuple(definition for definition in available if definition.name in wanted)
