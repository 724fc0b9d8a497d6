"""Request: the kernels that a command line asks for, from flags and a TOML file."""

from __future__ import annotations

import dataclasses
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fmhagen.errors import InvalidSpecError
from fmhagen.instance import Instance
from fmhagen.records import closest
from fmhagen.schedule import Schedule
from fmhagen.select import choose
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, Target, find_target

_TABLES = ("spec", "schedule", "target")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A spec, the changes to its default schedule, and the targets asked for.

    Attributes:
        spec: what to compute.
        overrides: (field, value) of the schedule that were given.
        target: a target's name, "all", or None where none was given.
    """

    spec: AttentionSpec
    overrides: tuple[tuple[str, Any], ...]
    target: str | None

    @property
    def is_plain(self) -> bool:
        """Whether nothing was asked for."""
        return self == Request(spec=AttentionSpec(), overrides=(), target=None)

    @classmethod
    def build(
        cls,
        *,
        path: Path | None,
        spec: Mapping[str, Any],
        schedule: Mapping[str, Any],
        target: str | None,
    ) -> Request:
        """Read a file, if one is given, and put the flags on top of it.

        Raises:
            InvalidSpecError: a name or a value has no meaning.
        """
        tables = _read(path) if path is not None else {}
        overrides = {**_table(tables, "schedule"), **schedule}
        for name in overrides:
            fields = tuple(field.name for field in dataclasses.fields(Schedule))
            if name not in fields:
                limit = "Schedule has no such field"
                raise InvalidSpecError(name, overrides[name], limit, closest(name, fields))
        return cls(
            spec=AttentionSpec.from_dict({**_table(tables, "spec"), **spec}),
            overrides=tuple(overrides.items()),
            target=target or tables.get("target"),
        )

    def targets(self, default: str) -> tuple[Target, ...]:
        """Return the targets asked for, or the default; "all" means every one.

        Raises:
            UnknownTargetError: no target answers to a name.
        """
        name = self.target or default
        return TARGETS if name == "all" else (find_target(name),)

    def instances(self, default_target: str) -> tuple[Instance, ...]:
        """Return one instance a target.

        Raises:
            UnsupportedSpecError: a target does not support the spec.
            InvalidSpecError: a schedule's value has no meaning.
        """
        return tuple(self.instance(target) for target in self.targets(default_target))

    def instance(self, target: Target) -> Instance:
        """Return the instance for one target: its default schedule with the changes asked for."""
        schedule = choose(self.spec, target).schedule
        if self.overrides:
            schedule = dataclasses.replace(schedule, **dict(self.overrides))
        return Instance(spec=self.spec, schedule=schedule, target=target)


def _read(path: Path) -> dict[str, Any]:
    text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpecError("file", str(path), f"is not TOML: {error}") from error
    for key in tables:
        if key not in _TABLES:
            limit = "a spec file has the tables [spec] and [schedule] and the key target"
            raise InvalidSpecError(key, str(tables[key]), limit, closest(key, _TABLES))
    return tables


def _table(tables: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise InvalidSpecError(name, str(table), f"must be a table, [{name}]")
    return table
