"""Two launches as one: the first leaves parts of O in a workspace, the second adds them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmhagen.runtime.base import Memories
from fmhagen.runtime.prepared import MAX_LAUNCHES, Prepared
from fmhagen.runtime.tensors import TensorView, view
from fmhagen.runtime.torch_memory import Allocate

WORKSPACE_FIELDS = ("partial_o", "partial_lse")
"""Parameter fields that a call fills with places in its workspace."""


class PreparedPair(Prepared):
    """One layout of a call that takes two launches, and a workspace between them."""

    __slots__ = ("_both_write", "_new_workspace", "_o_bytes", "_second")

    def __init__(
        self,
        *,
        second: Prepared,
        new_workspace: Allocate,
        o_bytes: int,
        both_write: bool,
        **first: Any,
    ) -> None:
        """Take what a pair has besides its first launch.

        Args:
            second: the launch that adds up.
            new_workspace: makes the workspace of a call.
            o_bytes: of the parts of O in it; their LSE lie behind them.
            both_write: whether the first launch writes the rows of O that are not cut, and the
                second one reads the same inputs to tell which these are.
            first: the arguments of `Prepared`; its `more` ends with WORKSPACE_FIELDS.
        """
        super().__init__(**first)
        self._second = second
        self._new_workspace = new_workspace
        self._o_bytes = o_bytes
        self._both_write = both_write

    def bound(
        self, addresses: tuple[int | float, ...], scale_log2: float, stream: int
    ) -> Callable[[], object]:
        """Return both launches as one, with a workspace of its own each time; see `Prepared`."""
        first, second = super().bound, self._second.bound
        kept: dict[int, tuple[Callable[[], object], Callable[[], object]]] = {}

        def launch() -> object:
            workspace = self._new_workspace()
            at = workspace.data_ptr()
            pair = kept.get(at)
            if pair is None:
                full = (*addresses, at, at + self._o_bytes)
                if len(kept) >= MAX_LAUNCHES:
                    kept.clear()
                pair = kept[at] = (
                    first(full, scale_log2, stream),
                    second(full, scale_log2, stream),
                )
            return pair[0]() or pair[1]()

        return launch

    def run(
        self,
        addresses: tuple[int | float, ...],
        scale_log2: float,
        stream: int,
        memories: Memories,
    ) -> None:
        """Fill in the values and launch both; see `Prepared`."""
        workspace = view("workspace", self._new_workspace())
        at = workspace.address
        full = (*addresses, at, at + self._o_bytes)
        first, second = self._memories(memories, workspace)
        super().run(full, scale_log2, stream, first)
        self._second.run(full, scale_log2, stream, second)

    def _memories(self, call: Memories, workspace: TensorView) -> tuple[Memories, Memories]:
        """Return what each launch may touch, of what the call may."""
        outputs = (*call.outputs, workspace) if self._both_write else (workspace,)
        first = Memories(
            inputs=call.inputs,
            outputs=outputs,
            updated=call.updated,
            is_complete=False,
            leads=self._both_write,
        )
        if not self._both_write:
            return first, Memories(inputs=(workspace,), outputs=call.outputs)
        # NOTE: the first launch waits before it lets the second one begin.
        return first, Memories(inputs=(workspace,), settled=call.inputs, updated=call.outputs)
