"""How commands are made: flags from the fields of records, errors as one clear message."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import types
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from fmhagen.cli.output import EXIT_USAGE, fail
from fmhagen.cli.request import Request
from fmhagen.errors import (
    FmhagenError,
    InvalidSpecError,
    ScheduleError,
    TensorError,
    UnknownTargetError,
    UnsupportedSpecError,
)
from fmhagen.expr.mods import Mod
from fmhagen.records import Record
from fmhagen.schedule import Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

_REFUSALS = (
    InvalidSpecError,
    ScheduleError,
    TensorError,
    UnknownTargetError,
    UnsupportedSpecError,
    ValueError,
)


def command(
    app: typer.Typer, name: str, *, default_target: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command; errors that fmhagen raises on purpose become messages and exit codes.

    Args:
        app: the application.
        name: the command's name.
        default_target: if given, the function's first argument is a `Request`, and the command
            gets a flag for each field of a spec and of a schedule, `--target` and a TOML file.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())
        takes_json = any(parameter.name == "json" for parameter in own)
        extra = [] if default_target is None else _request_parameters(default_target)

        @functools.wraps(function)
        def run(**values: Any) -> None:
            as_json = takes_json and bool(values["json"])
            try:
                if default_target is None:
                    function(**values)
                else:
                    taken = {p.name: values.pop(p.name) for p in extra}
                    function(_request(taken), **values)
            except FmhagenError as error:
                fail(error, as_json=as_json, code=EXIT_USAGE if isinstance(error, _REFUSALS) else 1)
            except BrokenPipeError:
                raise  # the reader left, as `| head` does; typer ends the process quietly
            except OSError as error:
                fail(error, as_json=as_json, code=1)

        parameters = [*extra, *(own if default_target is None else own[1:])]
        signature = inspect.Signature(parameters, return_annotation=None)
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        app.command(name)(run)
        return run

    return decorate


def _request(values: dict[str, Any]) -> Request:
    spec = {f: values[f] for f in _fields(AttentionSpec) if values[f] is not None}
    schedule = {f: values[f] for f in _fields(Schedule) if values[f] is not None}
    return Request.build(
        path=values["spec_file"], spec=spec, schedule=schedule, target=values["target"]
    )


def _fields(record: type[Record]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(record))


def _request_parameters(default_target: str) -> list[inspect.Parameter]:
    choices = ", ".join((*(target.name for target in TARGETS), "all"))
    return [
        _keyword(
            "spec_file",
            Annotated[
                Path | None,
                typer.Argument(
                    metavar="[SPEC.toml]",
                    help="A TOML file with the tables \\[spec] and \\[schedule] and the key "
                    "target; flags come on top of it. [dim]-[/dim] reads standard input.",
                    show_default=False,
                ),
            ],
        ),
        _keyword(
            "target",
            Annotated[
                str | None,
                typer.Option(
                    "--target",
                    "-t",
                    metavar="TARGET",
                    help=f"{choices}; other spellings such as h100 or mi300x are accepted. "
                    f"[dim]\\[default: {default_target}][/dim]",
                    show_default=False,
                ),
            ],
        ),
        *_record_parameters(AttentionSpec, "Spec: what is computed"),
        *_record_parameters(Schedule, "Schedule: how it is tiled (default: chosen, see explain)"),
    ]


def _keyword(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _record_parameters(record: type[Record], panel: str) -> list[inspect.Parameter]:
    """Return one flag for each field, with its help from the record's docstring."""
    hints = get_type_hints(record)
    helps = attribute_docs(record)
    parameters = []
    for field in dataclasses.fields(record):
        plain, metavar = _plain_type(hints[field.name])
        flag = "--" + field.name.replace("_", "-")
        # The default of a schedule's field is what select chooses, so it is not printed here.
        default = _default_text(field.default) if record is AttentionSpec else ""
        option = typer.Option(
            f"{flag}/--no-{flag[2:]}" if plain is bool else flag,
            metavar=metavar,
            help=_escape(_sentence(helps.get(field.name, ""))) + default,
            rich_help_panel=panel,
            show_default=False,
        )
        parameters.append(_keyword(field.name, Annotated[Union[plain, None], option]))  # noqa: UP007
    return parameters


def _plain_type(hint: Any) -> tuple[type, str | None]:
    """Return the type that a flag is parsed as and what stands for its value in the help."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if issubclass(hint, StrEnum):
        return str, "|".join(hint)
    if issubclass(hint, Mod):
        return str, "EXPRESSION"
    return hint, None if hint is bool else {int: "N", float: "X"}.get(hint, "TEXT")


def _default_text(value: object) -> str:
    return "" if value is None or value is False else f" [dim]\\[default: {value}][/dim]"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def attribute_docs(record: type[Record]) -> dict[str, str]:
    """Return the sentences of a record's `Attributes:` section by field."""
    section = inspect.cleandoc(record.__doc__ or "").partition("Attributes:\n")[2]
    section = section.partition("\n\n")[0]
    docs: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        start = re.match(r" {4}(\w+): (.*)", line)
        if start:
            name = start[1]
            docs[name] = start[2]
        elif name:
            docs[name] += " " + line.strip()
    return docs
