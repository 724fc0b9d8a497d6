"""KernelPlan: what emission and the backends must know of a kernel, whatever it computes."""

from __future__ import annotations

from typing import Protocol

from fmhagen.plan.attention import SharedRegion
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.params import ParamField
from fmhagen.targets import Target


class KernelPlan(Protocol):
    """A kernel that is decided; `plan.Plan` says what each property means."""

    @property
    def symbol(self) -> str: ...  # noqa: D102
    @property
    def filename(self) -> str: ...  # noqa: D102
    @property
    def target(self) -> Target: ...  # noqa: D102
    @property
    def kernel_template(self) -> str: ...  # noqa: D102
    @property
    def constructor(self) -> str: ...  # noqa: D102
    @property
    def threads(self) -> int: ...  # noqa: D102
    @property
    def grid(self) -> GridFormula: ...  # noqa: D102
    @property
    def params(self) -> tuple[ParamField, ...]: ...  # noqa: D102
    @property
    def params_bytes(self) -> int: ...  # noqa: D102
    @property
    def shared(self) -> tuple[SharedRegion, ...]: ...  # noqa: D102
    @property
    def shared_bytes(self) -> int: ...  # noqa: D102
    @property
    def shared_is_dynamic(self) -> bool: ...  # noqa: D102
    @property
    def is_dependent(self) -> bool: ...  # noqa: D102
    @property
    def wave_groups(self) -> int: ...  # noqa: D102
