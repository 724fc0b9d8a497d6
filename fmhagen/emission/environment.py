"""The one Jinja environment, and the filters that print numbers as C++."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jinja2

from fmhagen.emission.byte_code import ByteCode
from fmhagen.emission.definitions import LINE_LENGTH
from fmhagen.errors import TemplateError
from fmhagen.places import COMPILED_TEMPLATES, default_path
from fmhagen.plan.attention import Constant, MatrixShape, ParamField, SharedRegion
from fmhagen.plan.kernel import KernelPlan
from fmhagen.resources import templates_dir
from fmhagen.targets.sm90_matrix import instruction_name


def _reject_ambiguous(value: Any) -> Any:
    """Let only text and integers through, so that None, True or 1.0 never reach C++ by accident."""
    if isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, jinja2.Undefined):
        return str(value)  # raises jinja2.UndefinedError, which names what is undefined
    raise TypeError(f"a template printed {value!r}; use a filter such as cxx_bool or cxx_float")


def cxx_bool(value: bool) -> str:
    """Print a bool as C++."""
    return "true" if value else "false"


def cxx_float(value: float) -> str:
    """Print a finite float as the shortest C++ literal that reads back the same."""
    if not math.isfinite(value):
        raise ValueError(f"{value!r} has no C++ literal")
    return f"{value!r}f"


def declarations(constants: tuple[Constant, ...]) -> tuple[str, ...]:
    """Print constants, those that join the one before on its line where they fit.

    The comments of usual names stand in one column.
    """
    lines: list[list[Constant]] = []
    for constant in constants:
        if constant.joins and len(_declaration([*lines[-1], constant])) <= LINE_LENGTH:
            lines[-1].append(constant)
        else:
            lines.append([constant])
    return tuple(map(_declaration, lines))


def _declaration(line: list[Constant]) -> str:
    listed = ", ".join(f"{constant.name} = {_literal(constant.value)}" for constant in line)
    comments = "; ".join(dict.fromkeys(constant.comment for constant in line))
    return f"constexpr {line[0].ctype} " + f"{listed};".ljust(30) + f"  // {comments}"


def _literal(value: int | float) -> str:
    return cxx_float(value) if isinstance(value, float) else str(value)


_MEMBER_LENGTH = 116  # of a line of parameters, less its indentation
_REMARK_LENGTH = 40  # of the comment behind parameters that are not all of one kind


def members(fields: tuple[ParamField, ...]) -> tuple[str, ...]:
    """Print the C declarations of parameter fields.

    Neighbours of one type share a line where one comment says what all are, or their comments are
    short; a pointer and a tensor map have a line each.
    """
    lines: list[list[ParamField]] = []
    for field in fields:
        if lines and _share_line([*lines[-1], field]):
            lines[-1].append(field)
        else:
            lines.append([field])
    return tuple(map(_member, lines))


def _share_line(fields: list[ParamField]) -> bool:
    ctypes, comments = {field.ctype for field in fields}, {field.comment for field in fields}
    if len(ctypes) > 1 or fields[0].ctype.endswith("*") or fields[0].ctype == "TensorMap":
        return False
    # NOTE: names of users' parameters are as long as they like.
    line = _member(fields)
    remark = line.partition("  // ")[2]
    return len(line) <= _MEMBER_LENGTH and (len(comments) == 1 or len(remark) <= _REMARK_LENGTH)


def _member(fields: list[ParamField]) -> str:
    names = ", ".join(field.name for field in fields)
    comments = "; ".join(dict.fromkeys(field.comment for field in fields))
    return f"{fields[0].ctype} {names};".ljust(24) + f"  // {comments}"


def shared_row(region: SharedRegion) -> str:
    """Print one row of the shared-memory map."""
    return f"{region.offset_bytes:>8} {region.size_bytes:>7}  {region.name:<9} {region.comment}"


def instruction(shape: MatrixShape) -> str:
    """Print the isa function of a matrix shape."""
    return instruction_name(shape.n, shape.dtype, shape.form)


_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {
        "trim_blocks": True,
        "lstrip_blocks": True,
        "keep_trailing_newline": True,
        "autoescape": False,
        "newline_sequence": "\n",
        "auto_reload": False,
        "extensions": (),
        # NOTE: folding constants doubles what compiling a template takes, and there are none.
        "optimized": False,
    }
)


@cache
def environment() -> jinja2.Environment:
    """Return the environment that renders every template."""
    place = default_path()
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        finalize=_reject_ambiguous,
        bytecode_cache=None if place is None else _byte_code(place),
        **_OPTIONS,
    )
    env.filters.update(
        cxx_bool=cxx_bool,
        cxx_float=cxx_float,
        declarations=declarations,
        instruction=instruction,
        members=members,
        shared_row=shared_row,
    )
    return env


def _byte_code(place: Path) -> ByteCode:
    return ByteCode(place / COMPILED_TEMPLATES, repr(sorted(_OPTIONS.items())))


def render(name: str, plan: KernelPlan) -> str:
    """Render one template with a plan.

    Raises:
        TemplateError: names template, line and fault, shows the lines around it and the call that
            leads there; its `plan` is the plan.
    """
    try:
        return environment().get_template(name).render(plan=plan)
    except jinja2.TemplateSyntaxError as error:
        raise _failed(str(error.message), error.filename, error.lineno, plan) from error
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise _failed(str(error), *_innermost_template(error), plan) from error


def _failed(reason: str, filename: str | None, line: int, plan: KernelPlan) -> TemplateError:
    text = f"{_place(filename, line)}: {reason}\n{_context(filename, line)}of {plan.constructor}"
    return TemplateError(text, plan=repr(plan))


def _innermost_template(error: BaseException) -> tuple[str | None, int]:
    found: tuple[str | None, int] = (None, 0)
    trace = error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if filename.endswith(".j2"):
            found = (filename, trace.tb_lineno)
        trace = trace.tb_next
    return found


def _place(filename: str | None, line: int) -> str:
    """Return a template's name below templates/, and the line."""
    if filename is None:
        return "a template"
    path = Path(filename)
    root = templates_dir()
    return f"{path.relative_to(root) if path.is_relative_to(root) else path}, line {line}"


def _context(filename: str | None, line: int) -> str:
    """Return the two lines before and after a line of a template, numbered."""
    if filename is None or not Path(filename).is_file():
        return ""
    lines = Path(filename).read_text(encoding="ascii").splitlines()
    first = max(line - 3, 0)
    return "".join(
        f"{'>' if first + i + 1 == line else ' '} {first + i + 1:4} {text}\n"
        for i, text in enumerate(lines[first : line + 2])
    )
