"""Prepared: one layout of a call, ready to launch on any addresses."""

from __future__ import annotations

from collections.abc import Callable

from fmhagen.runtime.base import Loaded
from fmhagen.runtime.launch_values import TENSORS, Value
from fmhagen.runtime.outputs import Allocate
from fmhagen.runtime.tensors import TensorView

MAX_MAPS = 256  # tensor maps kept for one tensor of one layout


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
        "blocks",
        "device",
        "fills",
        "launch",
        "new_lse",
        "new_o",
        "scale_log2",
        "scale_position",
        "stream",
        "values",
    )

    def __init__(
        self,
        *,
        names: tuple[str, ...],
        values: dict[str, Value],
        maps: dict[str, Maps],
        blocks: int,
        loaded: Loaded,
        new_o: Allocate,
        new_lse: Allocate,
        keys_are_empty: bool,
        device: int,
        stream: Callable[[int], int] | None,
        scale_log2: float,
    ) -> None:
        """Order the values by `names`, the fields of the block.

        `stream` gives the current stream of a device; None where the quick path does not go.
        """
        self.values = [values[name] for name in names]
        self.scale_position = names.index("scale_log2")
        self.scale_log2 = scale_log2
        self.blocks = blocks
        self.launch = loaded.launch
        self.new_o = new_o
        self.new_lse = new_lse
        self.device = device
        self.stream = stream
        fills = []
        for position, name in enumerate(names):
            tensor = name.removesuffix("_map")
            if tensor not in TENSORS:
                continue
            # NOTE: an empty K or V may have no address; the kernel never reads it, q's will do.
            source = "q" if keys_are_empty and tensor in ("k", "v") else tensor
            fills.append((position, TENSORS.index(source), maps.get(name)))
        self.fills = tuple(fills)

    def run(
        self,
        addresses: tuple[int, int, int, int, int],
        scale_log2: float,
        stream: int,
        tensors: tuple[TensorView, ...],
    ) -> None:
        """Fill in the values and launch; `addresses` are in the order of TENSORS, lse may be 0."""
        values = self.values.copy()
        for position, which, maps in self.fills:
            address = addresses[which]
            values[position] = address if maps is None else maps[address]
        values[self.scale_position] = scale_log2
        self.launch(values, self.blocks, stream, tensors)
