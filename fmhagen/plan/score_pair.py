"""ScorePair: a score function for two keys, as a template prints it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A number that grows evenly with the key: it is computed once a unit of keys, and added to.

    Attributes:
        name: of the pair of numbers that a lane carries from key to key.
        lines: the statement that computes it for a lane's first key of a unit, indented.
        first: what that statement defines.
        slope: by how much it grows from one key to the next.
    """

    name: str
    lines: tuple[str, ...]
    first: str
    slope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """What a score function reads by the key: fetched for a unit of keys, ahead of its use.

    Attributes:
        name: of the numbers that a lane has of a unit, one a score.
        ctype: their type.
        lines: the statement that fetches number `at + i` for key `kv_idx`, indented.
        use: what the use makes of one: a text with a place for it.
        loads: how many elements are read for one.
        clamps_key: a key indexes a tensor, so it must not be one behind the last.
    """

    name: str
    ctype: str
    lines: tuple[str, ...]
    use: str
    loads: int
    clamps_key: bool

    @property
    def texts(self) -> tuple[str, str]:
        """What stands for it in the score function of two keys."""
        first, second = f"keys.{self.name}[at]", f"keys.{self.name}[at + 1]"
        return self.use.format(first), self.use.format(second)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePart:
    """A part of a score function: what is done between two matrix instructions.

    Attributes:
        name: of its function.
        lines: the statements of the function, indented; the last one returns.
        positions: those that it reads, and carries on.
        takes_part: it takes the result of the part before it.
        clk: clocks of the vector port.
    """

    name: str
    lines: tuple[str, ...]
    positions: tuple[Position, ...]
    takes_part: bool
    clk: int

    @property
    def begin(self) -> str:
        """The function that does it for two scores of a block, unless it is the last."""
        return self.name.replace("score_part", "begin_score")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePair:
    """A score function for two neighbouring keys of one query.

    Attributes:
        factor: what the exponential multiplies its result by, log2(e) aside.
        positions: numbers that grow evenly with the key.
        parts: what is done one after the other; each takes what the one before it gave.
        fetches: what it reads by the key, where that is fetched ahead of it.
    """

    factor: float
    positions: tuple[Position, ...]
    parts: tuple[ScorePart, ...]
    fetches: tuple[Fetch, ...] = ()

    @property
    def fetched_loads(self) -> int:
        """Elements that are fetched for one score."""
        return sum(fetch.loads for fetch in self.fetches)

    @property
    def clamps_key(self) -> bool:
        """Whether a key behind the last must not be fetched for."""
        return any(fetch.clamps_key for fetch in self.fetches)

    @property
    def clks(self) -> tuple[int, ...]:
        """Clocks of the vector port, of each part."""
        return tuple(part.clk for part in self.parts)

    @property
    def is_split(self) -> bool:
        """Whether there is more than one part."""
        return len(self.parts) > 1

    @property
    def first_parts(self) -> tuple[ScorePart, ...]:
        """All parts but the last."""
        return self.parts[:-1]

    @property
    def last_part(self) -> ScorePart:
        """The part that gives the score."""
        return self.parts[-1]

    @property
    def factor_is_left(self) -> bool:
        """Whether the result is less than the score by a factor."""
        return self.factor != 1.0
