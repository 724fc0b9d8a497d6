"""Emission: Plan -> Source. The text is the same to the byte for the same plan, everywhere."""

from __future__ import annotations

import hashlib
import re

from fmhagen.emission.definitions import Definition, closure, parse
from fmhagen.emission.environment import render
from fmhagen.errors import TemplateError
from fmhagen.expr.cxx import wrapped
from fmhagen.kernel_plan import KernelPlan
from fmhagen.plan import Plan
from fmhagen.resources import templates_dir
from fmhagen.source import Source
from fmhagen.targets.sm90_matrix import instruction_name, instruction_text

BODY_LINE = "// --- body ---\n"
_TYPES_LINE = "// --- types of the prelude ---\n"
_ISA_LINE = "// --- instructions ---\n"
_TILE_LINE = "// --- tiles of registers and shared memory ---\n"
_NO_DIGEST = "0" * 16
_LONGEST = 120  # characters of a line


def emit_source(plan: Plan) -> Source:
    """Print a plan as one self-contained source file.

    Returns:
        The source; equal plans give equal bytes under any hash seed.

    Raises:
        TemplateError: a template failed, or printed what a generated file may not hold.
    """
    return assemble(plan, _available(plan))


def assemble(plan: KernelPlan, available: tuple[Definition, ...]) -> Source:
    """Print a plan's skeleton with the definitions that it reaches; see `emit_source`."""
    skeleton = render(plan.kernel_template, plan)
    used = closure(skeleton, available)
    text = _insert(skeleton, _TYPES_LINE, _types(used))
    text = _insert(text, _ISA_LINE, _isa(used))
    text = _insert(text, _TILE_LINE, _tile(used))
    text = tidy(text)
    head, line, body = text.partition(BODY_LINE)
    digest = body_digest(body)
    return Source(
        text=head.replace(_NO_DIGEST, digest) + line + body,
        symbol=plan.symbol,
        target=plan.target.name,
        filename=plan.filename,
        digest=digest,
        constructor=plan.constructor,
        threads=plan.threads,
        dynamic_shared_bytes=plan.shared_bytes if plan.shared_is_dynamic else 0,
        wave_groups=plan.wave_groups,
    )


def body_digest(body: str) -> str:
    """Return the digest that a file's header gives of the text below its body line."""
    return hashlib.sha256(body.encode("ascii")).hexdigest()[: len(_NO_DIGEST)]


def tidy(text: str) -> str:
    """Strip trailing spaces, break long statements, collapse blank lines and end with one newline.

    A template's own lines are short; a statement grows with the mask and score functions in it.

    Raises:
        TemplateError: a tab, a character outside ASCII, or another line over 120 characters that
            could be broken.
    """
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.rstrip()
        if "\t" in line or not line.isascii():
            raise TemplateError(f"line {number} holds a tab or a character outside ASCII: {line!r}")
        if len(line) <= _LONGEST or max(map(len, line.split())) >= 100:
            lines.append(line)
        elif line.endswith(";") and '"' not in line and "//" not in line:
            indent = len(line) - len(line.lstrip())
            lines += wrapped(line, " " * (indent + 4))
        else:
            raise TemplateError(f"line {number} has {len(line)} characters: {line!r}")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


def _available(plan: Plan) -> tuple[Definition, ...]:
    """Return every definition that a kernel of this plan may use, the isa layer first."""
    prelude = templates_dir() / "prelude" / plan.target.prelude
    suffix = plan.target.prelude_suffix
    own = render(f"parts/{plan.schedule.main_loop}/vocabulary.j2", plan)
    matrix = tuple(
        Definition(
            name=instruction_name(shape.n, shape.dtype, shape.form),
            text=instruction_text(shape.n, shape.dtype, shape.form),
            layer="isa",
            is_type=False,
        )
        for shape in plan.matrix_shapes
    )
    has_order = any(region.name == "SMEM_ORDER" for region in plan.shared)
    parts = (
        "",
        *(("_cache",) if plan.split is not None or has_order else ()),
        *(("_map",) if plan.language.mapped else ()),
    )

    def layer(name: str) -> tuple[Definition, ...]:
        paths = [prelude / f"{name}{part}{suffix}" for part in parts]
        texts = (path.read_text(encoding="ascii") for path in paths if path.is_file())
        return tuple(definition for text in texts for definition in parse(text, name))

    return (
        *layer("isa"),
        *dict.fromkeys(matrix),
        *layer("tile"),
        *parse((templates_dir() / "prelude" / "language.h").read_text(encoding="ascii"), "tile"),
        *parse(plan.language.text, "tile"),
        *parse(own, "tile"),
    )


def _insert(text: str, marker: str, addition: str) -> str:
    before, line, after = text.partition(marker)
    if not line:
        raise TemplateError(f"a skeleton lacks the line {marker.strip()!r}")
    return before + line + "\n" + addition + "\n" + after


def _types(used: tuple[Definition, ...]) -> str:
    isa = [d for d in used if d.is_type and d.layer == "isa"]
    tile = [d for d in used if d.is_type and d.layer == "tile"]
    return _guarded(isa) + "\n" + _joined(tile)


def _isa(used: tuple[Definition, ...]) -> str:
    return _guarded([d for d in used if not d.is_type and d.layer == "isa"])


def _tile(used: tuple[Definition, ...]) -> str:
    return _joined([d for d in used if not d.is_type and d.layer == "tile"])


def _guarded(definitions: list[Definition]) -> str:
    """Put isa definitions under the guard: the emulator supplies its own."""
    if not definitions:
        return ""
    return f"#ifndef FMHAGEN_EMULATOR\n{_joined(definitions)}#endif  // FMHAGEN_EMULATOR\n"


def _joined(definitions: list[Definition]) -> str:
    """Print definitions one after the other, each under its comment."""
    return "".join(definition.text + "\n" for definition in definitions)
