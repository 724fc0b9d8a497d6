"""SmallPlan: what the plans of kernels beside attention share: merging parts, block maps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from fmhagen.plan.attention import Constant, SharedRegion
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.params import ParamField
from fmhagen.plan.wrapping import wrapped_call
from fmhagen.targets import Target

THREADS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPlan:
    """A kernel without shared memory or roles, decided; the names are those of `plan.Plan`.

    Attributes:
        SKELETON: name of its templates under `templates/kernels/`.
        EMIT: the public function that prints it.
        spec, target: what it was lowered from.
        symbol: `extern "C"` name.
        constants: the numbers, in printing order.
        params: fields of the packed parameter block.
        params_bytes: its size.
        grid: the grid formula; a plan says what a tile is.
        threads, shared, shared_bytes, shared_is_dynamic, is_dependent, wave_groups: as in
            `plan.Plan`.
    """

    SKELETON: ClassVar[str]
    EMIT: ClassVar[str]

    spec: Any
    target: Target
    symbol: str
    constants: tuple[Constant, ...]
    params: tuple[ParamField, ...]
    params_bytes: int
    grid: GridFormula
    threads: int = THREADS
    shared: tuple[SharedRegion, ...] = ()
    shared_bytes: int = 0
    shared_is_dynamic: bool = False
    is_dependent: bool = False
    wave_groups: int = 1

    @property
    def filename(self) -> str:
        """Base name of the emitted file."""
        return self.symbol + self.target.file_suffix

    @property
    def kernel_template(self) -> str:
        """The skeleton under `templates/` that the kernel is printed with."""
        return f"kernels/{self.SKELETON}{self.target.file_suffix}.j2"

    @property
    def constructor(self) -> str:
        """The Python expression that recreates this plan's source."""
        return f"{self.EMIT}({self.spec!r}, target={self.target.name!r})"

    @property
    def constructor_lines(self) -> tuple[str, ...]:
        """The same, broken into lines."""
        return wrapped_call("fmhagen." + self.constructor)


def numbers(rows: Iterable[tuple[str, int, str]]) -> tuple[Constant, ...]:
    """Return (name, value, comment) triples as the constants of a file."""
    return tuple(
        Constant(ctype="u32", name=name, value=value, comment=comment)
        for name, value, comment in rows
    )
