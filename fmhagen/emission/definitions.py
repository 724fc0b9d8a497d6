"""Definitions of the prelude: parsed from C++ text, and only those in use are printed."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

_NAME = re.compile(r"^(?:template <.*?> )?FMHAGEN_DEVICE\b[^(]*?\b(\w+)\(", re.MULTILINE)
_MACRO = re.compile(r"^#define (\w+)", re.MULTILINE)
_STRUCT = re.compile(r"^(?:struct|using|typedef)\b[^{;=]*?\b(\w+)\s*(?:[{;=]|$)", re.MULTILINE)
_NO_CODE = re.compile(r"//[^\n]*|\"[^\"\n]*\"")
_WORD = re.compile(r"\b[A-Za-z_]\w*\b")
_ENDS = ("{", "}", ";", ">")

LINE_LENGTH = 120  # of an emitted file


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One function or type of the prelude.

    Attributes:
        name: its identifier.
        text: comment and code, without a final newline.
        layer: "tile" or "isa".
        is_type: a struct rather than a function or a macro.
    """

    name: str
    text: str
    layer: str
    is_type: bool

    @property
    def printed(self) -> str:
        """The text; a comment of one line stands behind the head of the code, where it fits."""
        return _printed(self.text)

    @property
    def code(self) -> str:
        """The text without comment lines."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("//"))

    @property
    def words(self) -> frozenset[str]:
        """Every identifier in the code."""
        return _words_of_definition(self)


# NOTE: both are kept, since the kernels of a process share their definitions.
@functools.lru_cache(maxsize=4096)
def _printed(text: str) -> str:
    comment, _, code = text.partition("\n")
    lines = code.splitlines()
    if not comment.startswith("// ") or not lines or lines[0].startswith("//"):
        return text
    remark = comment.removeprefix("// ").removesuffix(".")
    if remark[1].islower() or remark.startswith("A "):
        remark = remark[0].lower() + remark[1:]
    # NOTE: a template's parameters may stand on a line of their own above the head.
    for i in (1, 0) if lines[0].endswith(">") else (0,):
        head = f"{lines[i]}  // {remark}"
        if len(head) <= LINE_LENGTH and lines[i].endswith(_ENDS):
            return "\n".join((*lines[:i], head, *lines[i + 1 :]))
    return text


@functools.lru_cache(maxsize=4096)
def _words_of_definition(definition: Definition) -> frozenset[str]:
    return words_of(definition.code)


def words_of(text: str) -> frozenset[str]:
    """Return every identifier of C++ text, comments and strings left out."""
    return frozenset(_WORD.findall(_NO_CODE.sub("", text)))


@functools.lru_cache(maxsize=256)
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
        macro = _MACRO.search(code)
        match = function or macro or struct
        if match is None:
            raise ValueError(f"a prelude block defines nothing:\n{block}")
        found.append(
            Definition(name=match.group(1), text=block, layer=layer, is_type=match is struct)
        )
    return tuple(found)


def closure(body: str, available: tuple[Definition, ...]) -> tuple[Definition, ...]:
    """Return the definitions that `body` uses, directly or through others.

    They come in their own order, but each after those that it uses: C++ needs no declarations.

    Raises:
        ValueError: definitions use one another in a circle.
    """
    by_name: dict[str, list[Definition]] = {}
    for definition in available:
        by_name.setdefault(definition.name, []).append(definition)
    ordered: list[Definition] = []
    position = {name: i for i, name in enumerate(by_name)}
    done: set[str] = set()
    open_names: list[str] = []

    def place(name: str) -> None:
        if name in open_names:
            raise ValueError(f"definitions in a circle: {' -> '.join([*open_names, name])}")
        if name in done:
            return
        open_names.append(name)
        uses = {word for item in by_name[name] for word in item.words} - {name}
        for used in sorted(uses & by_name.keys(), key=position.__getitem__):  # sets have no order
            place(used)
        open_names.pop()
        done.add(name)
        ordered.extend(by_name[name])

    wanted: set[str] = set()
    pending = set(words_of(body)) & by_name.keys()
    while pending:
        wanted |= pending
        words = {word for name in pending for item in by_name[name] for word in item.words}
        pending = (words & by_name.keys()) - wanted
    for name in by_name:
        if name in wanted:
            place(name)
    return tuple(ordered)
