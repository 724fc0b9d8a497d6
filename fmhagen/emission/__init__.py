"""Emission: Plan -> Source. The text is the same to the byte for the same plan, everywhere."""

from __future__ import annotations

import hashlib
import re

from fmhagen.emission.definitions import LINE_LENGTH, Definition, closure, parse
from fmhagen.emission.environment import render
from fmhagen.errors import TemplateError
from fmhagen.expr.cxx import wrapped
from fmhagen.plan.attention import Plan
from fmhagen.plan.kernel import KernelPlan
from fmhagen.resources import templates_dir
from fmhagen.source import Source
from fmhagen.targets.sm90_matrix import (
    accumulator_name,
    accumulator_text,
    instruction_name,
    instruction_text,
)

BODY_LINE = "// --- body ---\n"
_TILE_TYPES_LINE = "// --- types of the prelude ---\n"
_ISA_LINE = "// --- the isa layer ---\n"
_TILE_LINE = "// --- tiles of registers and shared memory ---\n"
_NO_DIGEST = "0" * 16


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
    isa = _layer(used, "isa", is_type=True) + _layer(used, "isa", is_type=False)
    text = _replace(skeleton, _ISA_LINE, isa)
    text = _replace(text, _TILE_TYPES_LINE, _layer(used, "tile", is_type=True))
    text = _replace(text, _TILE_LINE, _TILE_LINE + _layer(used, "tile", is_type=False))
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
    """Strip trailing spaces, break long statements, collapse blank lines, drop those below a title.

    A template's own lines are short; a statement grows with the mask and score functions in it.

    Raises:
        TemplateError: a tab, a character outside ASCII, or another line over 120 characters that
            could be broken.
    """
    lines: list[str] = []
    is_plain = "\t" not in text and text.isascii()
    for number, line in enumerate(text.splitlines(), 1):
        line = line.rstrip()
        if not is_plain and ("\t" in line or not line.isascii()):
            raise TemplateError(f"line {number} holds a tab or a character outside ASCII: {line!r}")
        if len(line) <= LINE_LENGTH or max(map(len, line.split())) >= 100:
            lines.append(line)
        elif line.endswith(";") and '"' not in line and "//" not in line:
            indent = len(line) - len(line.lstrip())
            lines += wrapped(line, " " * (indent + 4))
        else:
            raise TemplateError(f"line {number} has {len(line)} characters: {line!r}")
    single = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    return re.sub(r"^(// --- .* ---\n)\n", r"\1", single, flags=re.MULTILINE).strip("\n") + "\n"


def _available(plan: Plan) -> tuple[Definition, ...]:
    """Return every definition that a kernel of this plan may use, the isa layer first."""
    prelude = templates_dir() / "prelude" / plan.target.prelude
    suffix = plan.target.prelude_suffix
    own = render(f"parts/{plan.schedule.main_loop}/vocabulary.j2", plan)
    matrix = tuple(
        Definition(name=name, text=text, layer="isa", is_type=False)
        for shape in plan.matrix_shapes
        for name, text in (
            (accumulator_name(shape.n), accumulator_text(shape.n)),
            (
                instruction_name(shape.n, shape.dtype, shape.form),
                instruction_text(shape.n, shape.dtype, shape.form),
            ),
        )
    )
    has_order = any(region.name == "SMEM_ORDER" for region in plan.shared)
    reads_cache = plan.split is not None or plan.paged or plan.small.is_used
    reads_cache = (
        reads_cache or plan.schedule.split_keys or plan.spare_registers or plan.cap.repairs_alone
    )
    parts = (
        "",
        *(("_cache",) if reads_cache or has_order or plan.labels or plan.posts_tiles else ()),
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


def _replace(text: str, marker: str, addition: str) -> str:
    before, line, after = text.partition(marker)
    if not line:
        raise TemplateError(f"a skeleton lacks the line {marker.strip()!r}")
    return before + addition + after


def _layer(used: tuple[Definition, ...], layer: str, *, is_type: bool) -> str:
    """Print the types, or the functions and macros, of one layer one after the other."""
    chosen = (d for d in used if d.layer == layer and d.is_type == is_type)
    return "".join(definition.printed + "\n" for definition in chosen)
