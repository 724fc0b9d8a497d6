"""Faults planted in the text of a gfx942 kernel, and what every seed must say of them."""

import dataclasses
import functools
import re

from gfx942_runs import Sizes, emulate

from fmhagen.emission import emit_source
from fmhagen.errors import EmulatorError
from fmhagen.plan.attention import Plan
from fmhagen.source import Source

RACE = ("race", "uninitialised")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """One planted fault.

    Attributes:
        name: what was done.
        pattern, new: a regular expression that the file has, and what its first match becomes.
        kinds: what the emulator may call it; "numbers" if only they tell.
        words: what its message must say.
    """

    name: str
    pattern: str
    new: str
    kinds: tuple[str, ...] = ("numbers",)
    words: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bed:
    """A kernel that faults are planted in.

    Attributes:
        plan: the kernel.
        sizes: of the calls.
        seeds: how many orders of events each fault is tried under.
        blocks: of a run; None means as many as the grid asks for.
    """

    plan: Plan
    sizes: Sizes
    seeds: int
    blocks: int | None = None

    @functools.cached_property
    def source(self) -> Source:
        """The kernel's file, without a fault."""
        return emit_source(self.plan)

    def plant(self, fault: Fault) -> str:
        """Return the file with a fault."""
        text, count = re.subn(fault.pattern, fault.new, self.source.text, count=1)
        assert count == 1
        return text

    def expect(self, text: str, kinds: tuple[str, ...], words: tuple[str, ...] = ()) -> None:
        """Fail unless every seed finds in a file one of the kinds, and says all the words."""
        source = dataclasses.replace(self.source, text=text)
        for seed in range(self.seeds):
            kind, message = self._verdict(source, seed)
            assert kind in kinds, f"seed {seed}: {kind}: {message}"
            assert all(word in message for word in words), message

    def _verdict(self, source: Source, seed: int) -> tuple[str, str]:
        """Return what kind of fault a run has and its message; "none" if it has none."""
        try:
            outcome = emulate(self.plan, self.sizes, source=source, seed=seed, blocks=self.blocks)
        except EmulatorError as error:
            return error.kind, str(error)
        return "none" if outcome.is_right else "numbers", outcome.worst
