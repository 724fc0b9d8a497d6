"""Record: the common behaviour of spec and schedule: printing, JSON, TOML."""

from __future__ import annotations

import dataclasses
import functools
import json
import tomllib
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Self, get_args, get_type_hints

from fmhagen.errors import InvalidSpecError


def did_you_mean(word: str, choices: tuple[str, ...]) -> str | None:
    """Return a hint that names the choice most like `word`, or None if none is like it."""
    import difflib

    near = difflib.get_close_matches(word, choices, n=1)
    return f"did you mean {near[0]!r}?" if near else None


def closest(word: str, choices: tuple[str, ...]) -> str:
    """Return a hint that names the choice most like `word`, or all choices."""
    return did_you_mean(word, choices) or "use one of " + ", ".join(choices)


_MODULES_OF_NUMBERS = ("numpy", "ml_dtypes")


def plain(value: Any) -> Any:
    """Return a number of NumPy as the Python number that it is; anything else as it is.

    They print as calls of NumPy, and what is read back must be what was printed.
    """
    if type(value).__module__ in _MODULES_OF_NUMBERS and getattr(value, "shape", None) == ():
        return value.item()
    return value


def _enum_of(hint: Any) -> tuple[type[StrEnum] | None, bool]:
    """Return the enum that a field declares, if it does, and whether it may be None."""
    kinds = get_args(hint) or (hint,)
    enums = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StrEnum)]
    return enums[0] if enums else None, type(None) in kinds


@functools.cache
def _enum_fields(kind: type[Any]) -> tuple[tuple[str, type[StrEnum], bool], ...]:
    """Return the name of each field that holds an enum, the enum, and whether it may be None."""
    hints = get_type_hints(kind)
    found = ((field.name, *_enum_of(hints[field.name])) for field in dataclasses.fields(kind))
    return tuple((name, enum, is_optional) for name, enum, is_optional in found if enum is not None)


def _printed(value: Any) -> str:
    return repr(str(value) if isinstance(value, StrEnum) else value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A frozen record that prints as the call that recreates it and round-trips through text.

    Fields whose value is the default are left out of the printed form. `StrEnum` fields accept
    and print plain strings.
    """

    def __post_init__(self) -> None:
        """Turn strings into the enums that the fields declare, numbers into Python's."""
        kind: Any = type(self)
        for name in kind.__dataclass_fields__:
            value = getattr(self, name)
            if type(value).__module__ in _MODULES_OF_NUMBERS:
                object.__setattr__(self, name, plain(value))
        for name, enum, is_optional in _enum_fields(kind):
            value = getattr(self, name)
            if not (is_optional and value is None):
                choices = tuple(str(member) for member in enum)
                if str(value) not in choices:
                    limit = "must be one of " + ", ".join(choices)
                    hint = did_you_mean(str(value), choices)
                    raise InvalidSpecError(name, value, limit, hint)
                object.__setattr__(self, name, enum(str(value)))

    def __repr__(self) -> str:
        """Return the constructor call that recreates this record."""
        inside = ", ".join(f"{name}={_printed(value)}" for name, value in self._given().items())
        return f"{type(self).__name__}({inside})"

    def to_dict(self, *, defaults: bool = False) -> dict[str, Any]:
        """Return the fields as plain data, those at their default only if `defaults`."""
        return {
            name: value if isinstance(value, bool | int | float | None) else str(value)
            for name, value in self._given(defaults=defaults).items()
        }

    def _given(self, *, defaults: bool = False) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        unset = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: v for name, v in values.items() if defaults or v != unset[name]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Build a record from plain data.

        Raises:
            InvalidSpecError: a key is not a field, or a value has no meaning.
        """
        names = tuple(field.name for field in dataclasses.fields(cls))
        for key in data:
            if key not in names:
                limit = f"{cls.__name__} has no such field"
                raise InvalidSpecError(key, data[key], limit, closest(key, names))
        return cls(**data)

    def to_json(self) -> str:
        """Return the record as one JSON object."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Build a record from a JSON object."""
        return cls.from_dict(json.loads(text))

    def to_toml(self) -> str:
        """Return the record as a TOML table without a heading."""
        import tomli_w

        return tomli_w.dumps({k: v for k, v in self.to_dict().items() if v is not None})

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Build a record from a TOML table without a heading."""
        return cls.from_dict(tomllib.loads(text))
