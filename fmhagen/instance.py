"""Instance: one kernel named by spec, schedule and target, before anything is decided."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.emission import emit_source
from fmhagen.lowering import lower
from fmhagen.plan.attention import Plan
from fmhagen.schedule import Schedule
from fmhagen.select import default_schedule
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One kernel that can be lowered and emitted.

    Attributes:
        spec: what is computed.
        schedule: how.
        target: on which chip.
    """

    spec: AttentionSpec
    schedule: Schedule
    target: Target

    @classmethod
    def of(cls, spec: AttentionSpec, target: Target) -> Instance:
        """Return the instance with the default schedule.

        Raises:
            UnsupportedSpecError: the target does not support the spec.
        """
        return cls(spec=spec, schedule=default_schedule(spec, target), target=target)

    def plan(self) -> Plan:
        """Lower the instance.

        Raises:
            UnsupportedSpecError: the target does not support the spec.
            ScheduleError: the schedule does not fit.
        """
        return lower(self.spec, self.schedule, self.target)

    def source(self) -> Source:
        """Emit the instance; raises what `plan` raises."""
        return emit_source(self.plan())
