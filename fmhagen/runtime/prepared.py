"""Prepared: one layout of a call, ready to launch on any addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fmhagen.runtime.base import Loaded, Memories
from fmhagen.runtime.guards import Guard, guard_of
from fmhagen.runtime.launch_values import LOG2_E, TENSORS, Value, scale_log2_of
from fmhagen.runtime.torch_memory import Allocate

MAX_MAPS = 256  # tensor maps kept for one tensor of one layout
MAX_LAUNCHES = 256  # launches kept for one layout


class Maps(dict[int, bytes]):
    """Tensor maps of one tensor of one layout by address, encoded when first asked for."""

    def __init__(self, encode: Callable[[int], bytes]) -> None:
        """Start empty; `encode` makes the map of an address."""
        super().__init__()
        self._encode = encode

    def __missing__(self, address: int) -> bytes:
        """Encode the map of an address; a full table is emptied first, in one atomic step."""
        if len(self) >= MAX_MAPS:
            self.clear()
        encoded = self[address] = self._encode(address)
        return encoded


class Prepared:
    """One layout of a call, ready to launch on any addresses; holds no state of a call."""

    __slots__ = (
        "bind",
        "blocks",
        "device",
        "fills",
        "guard",
        "is_guarded",
        "launches",
        "new_lse",
        "new_o",
        "scale_log2",
        "scales",
        "settle",
        "stream",
        "values",
        "wants_gradients",
    )

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        values: dict[str, Value],
        maps: dict[str, Maps],
        more: tuple[str, ...],
        blocks: int,
        loaded: Loaded,
        new_o: Allocate,
        new_lse: Allocate,
        keys_are_empty: bool,
        device: int,
        stream: Callable[[int], int] | None,
        wants_gradients: Callable[[], bool],
        scale_log2: float,
    ) -> None:
        """Order the values by `names`, the fields of the block.

        `more` are the fields that a call fills besides TENSORS; `stream` gives the current stream
        of a device; None where the quick path does not go. `wants_gradients` says whether the
        framework records operations now.
        """
        self.values = [values[name] for name in names]
        factors = {"scale_log2": 1.0, "scale": 1 / LOG2_E}
        self.scales = tuple((names.index(n), x) for n, x in factors.items() if n in names)
        self.scale_log2 = scale_log2
        self.blocks = blocks
        self.bind = loaded.bind
        self.settle = loaded.settle
        self.new_o = new_o
        self.new_lse = new_lse
        self.device = device
        self.stream = stream
        self.wants_gradients = wants_gradients
        self.guard: Guard = _never
        self.is_guarded = False
        self.launches: dict[tuple[Any, ...], Callable[[], object]] = {}
        fills = []
        sources = (*TENSORS, *more)
        for position, name in enumerate(names):
            tensor = name if name in sources else name.removesuffix("_map")
            if tensor not in sources:
                continue
            # NOTE: an empty K or V may have no address; the kernel never reads it, q's will do.
            source = "q" if keys_are_empty and tensor in ("k", "v") else tensor
            fills.append((position, sources.index(source), maps.get(name)))
        self.fills = tuple(fills)

    def guard_by(self, tensors: Sequence[Any]) -> None:
        """Let PyTorch tell tensors of this layout from others, where it can."""
        guard = guard_of(tensors)
        if guard is not None:
            self.guard, self.is_guarded = guard, True

    def launch_of(
        self,
        key: tuple[Any, ...],
        addresses: tuple[int | float, ...],
        scale: float | None,
        stream: int,
    ) -> Callable[[], object]:
        """Return the launch on some addresses for the quick path, and keep it under `key`."""
        scale_log2 = self.scale_log2 if scale is None else scale_log2_of(scale)
        launch = self.bound(addresses, scale_log2, stream)
        if len(self.launches) >= MAX_LAUNCHES:
            self.launches.clear()
        self.launches[key] = launch
        return launch

    def bound(
        self, addresses: tuple[int | float, ...], scale_log2: float, stream: int
    ) -> Callable[[], object]:
        """Return a launch on some addresses; nothing checks what it touches."""
        return self.bind(self.filled(addresses, scale_log2), self.blocks, stream, Memories())

    def run(
        self,
        addresses: tuple[int | float, ...],
        scale_log2: float,
        stream: int,
        memories: Memories,
    ) -> None:
        """Fill in the values and launch; `addresses` are in the order of TENSORS, then of `more`.

        LSE's may be 0.
        """
        values = self.filled(addresses, scale_log2)
        launch = self.bind(values, self.blocks, stream, memories)
        code = launch()
        if code:
            self.settle(launch, code)

    def filled(self, addresses: tuple[int | float, ...], scale_log2: float) -> list[Value]:
        """Return the values of the fields of the block for some addresses."""
        values = self.values.copy()
        for position, which, maps in self.fills:
            address = addresses[which]
            values[position] = address if maps is None else maps[int(address)]
        for position, factor in self.scales:
            values[position] = scale_log2 * factor
        return values


def _never(*tensors: Any) -> bool:
    """Stand for a guard where there is none."""
    return False
