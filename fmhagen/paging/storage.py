"""PageStorage: the tensors of a paged cache, of any framework.

    nhd    (num_pages, page_size, Hk, D): a page is rows of tokens
    hnd    (num_pages, Hk, page_size, D): a page is a block of rows for each head

K and V lie apart, in two tensors a layer, or in one with an axis of size 2:
(num_pages, 2, ...) or (2, num_pages, ...). All of these are strides to a kernel, so `k` and `v`
give every one as a view with the axes (page, slot, hk, d).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fmhagen.errors import PagingError, TensorError
from fmhagen.paging import arguments
from fmhagen.paging.interop import array_like
from fmhagen.records import closest

Allocate = Callable[[tuple[int, ...]], Any]


class PageLayout(StrEnum):
    """Order of the axes inside a page."""

    NHD = "nhd"
    HND = "hnd"


class Places(NamedTuple):
    """Page and offset of some slots, as index tensors in the storage's framework and device."""

    pages: Any
    offsets: Any


class PageStorage:
    """Keys and values of every layer, in pages.

    Attributes:
        num_pages: pages of each tensor.
        page_size: slots a page.
        layers: how many layers there are.
        layout: order of the axes in memory.
    """

    def __init__(
        self, keys: Sequence[Any], values: Sequence[Any], *, layout: PageLayout | str = "nhd"
    ) -> None:
        """Use tensors that exist; views are as good as tensors of their own.

        Args:
            keys: for each layer (num_pages, page_size, Hk, D) for nhd, (num_pages, Hk, page_size,
                D) for hnd.
            values: the same with D of the values.
            layout: nhd or hnd.

        Raises:
            PagingError: no such layout, or no layers.
            TensorError: a tensor's shape does not fit the others.
        """
        self.layout = _layout(layout)
        if not keys or len(keys) != len(values):
            raise PagingError("layers", len(keys), "must be at least 1, as many of K as of V")
        slot, head = (1, 2) if self.layout == PageLayout.NHD else (2, 1)
        self.layers = len(keys)
        shape = tuple(keys[0].shape)
        for name, tensors in (("keys", keys), ("values", values)):
            for layer, tensor in enumerate(tensors):
                found = tuple(tensor.shape)
                if len(found) != 4 or (found[0], found[slot]) != (shape[0], shape[slot]):
                    limit = "must be 4-dimensional with the pages and slots of keys[0]"
                    raise TensorError(f"{name}[{layer}]", found, limit)
                if found[head] != keys[layer].shape[head]:
                    raise TensorError(f"{name}[{layer}]", found, "must have as many heads as keys")
        self.num_pages = arguments.size("num_pages", shape[0])
        self.page_size = arguments.size("page_size", shape[slot])
        swap = self.layout == PageLayout.HND
        self._k = tuple(tensor.swapaxes(1, 2) if swap else tensor for tensor in keys)
        self._v = tuple(tensor.swapaxes(1, 2) if swap else tensor for tensor in values)

    @classmethod
    def combined(
        cls, tensors: Sequence[Any], *, layout: PageLayout | str = "nhd", axis: int = 1
    ) -> Self:
        """Use one tensor a layer that holds K and V.

        Args:
            tensors: for each layer (num_pages, 2, ...) or (2, num_pages, ...), K first.
            layout: nhd or hnd, of the axes that follow.
            axis: where the axis of size 2 is: 1 or 0.

        Raises:
            PagingError: no such layout or axis, or no layers.
            TensorError: a tensor's shape does not fit.
        """
        if axis not in (0, 1):
            raise PagingError(
                "axis", axis, "must be 0, (2, num_pages, ..), or 1, (num_pages, 2, ..)"
            )
        for layer, tensor in enumerate(tensors):
            if len(tensor.shape) != 5 or tensor.shape[axis] != 2:
                limit = f"must be 5-dimensional with size 2 along axis {axis}"
                raise TensorError(f"tensors[{layer}]", tuple(tensor.shape), limit)
        keys, values = ([tensor[:, i] if axis else tensor[i] for tensor in tensors] for i in (0, 1))
        return cls(keys, values, layout=layout)

    @classmethod
    def allocate(
        cls,
        allocate: Allocate,
        *,
        num_pages: int,
        page_size: int,
        heads_kv: int,
        head_dim: int,
        head_dim_v: int | None = None,
        layers: int = 1,
        layout: PageLayout | str = "nhd",
        combined: bool = False,
    ) -> Self:
        """Make the tensors with a function of any framework.

        Args:
            allocate: shape -> tensor, such as `lambda shape: torch.empty(shape, device="cuda",
                dtype=torch.bfloat16)`; what the memory holds does not matter.
            num_pages: pages.
            page_size: slots a page.
            heads_kv: key/value heads.
            head_dim: depth of the keys.
            head_dim_v: depth of the values; None means that of the keys.
            layers: pairs of tensors.
            layout: nhd or hnd.
            combined: one tensor a layer, (num_pages, 2, ...), instead of two.

        Raises:
            PagingError: a size is below 1, or K and V cannot be combined.
        """
        depth_v = head_dim if head_dim_v is None else head_dim_v
        sizes = {"num_pages": num_pages, "page_size": page_size, "heads_kv": heads_kv}
        sizes |= {"head_dim": head_dim, "head_dim_v": depth_v, "layers": layers}
        for name, size in sizes.items():
            arguments.size(name, size)
        if combined and depth_v != head_dim:
            limit = f"must be the head_dim of {head_dim} where K and V share a tensor"
            raise PagingError("head_dim_v", depth_v, limit, "use combined=False")
        inner = (
            (page_size, heads_kv) if _layout(layout) == PageLayout.NHD else (heads_kv, page_size)
        )
        if combined:
            shape = (num_pages, 2, *inner, head_dim)
            return cls.combined([allocate(shape) for _ in range(layers)], layout=layout)
        keys = [allocate((num_pages, *inner, head_dim)) for _ in range(layers)]
        values = [allocate((num_pages, *inner, depth_v)) for _ in range(layers)]
        return cls(keys, values, layout=layout)

    def k(self, layer: int = 0) -> Any:
        """Return the keys of a layer, a view with the axes (page, slot, hk, d)."""
        return self._k[layer]

    def v(self, layer: int = 0) -> Any:
        """Return the values of a layer, a view with the axes (page, slot, hk, dv)."""
        return self._v[layer]

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return sum(
            tensor.shape[2] * tensor.shape[3] * _element_bytes(tensor)
            for tensor in (*self._k, *self._v)
        )

    def copy_pages(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy whole pages in every layer, on the current stream.

        Args:
            sources: page numbers.
            destinations: page numbers, as many; none is a source, and none is there twice.
        """
        if not sources:
            return
        pairs = np.array((sources, destinations), np.int64)
        here = array_like(pairs, self._k[0])
        for tensor in (*self._k, *self._v):
            whole = _copyable(tensor)
            whole[here[1]] = whole[here[0]]

    def places(self, slots: npt.NDArray[np.int64]) -> Places:
        """Return slots as every layer's `write` takes them: copied to the device once."""
        pages, offsets = array_like(np.stack(np.divmod(slots, self.page_size)), self._k[0])
        return Places(pages, offsets)

    def write(self, layer: int, slots: npt.NDArray[np.int64] | Places, k: Any, v: Any) -> None:
        """Write keys and values of tokens, as `Appended.slots` says where, on the current stream.

        Args:
            layer: which.
            slots: (T,) page * page_size + offset; or `places` of them, which copies nothing.
            k: (T, Hk, D), of the storage's dtype.
            v: (T, Hk, Dv).
        """
        pages, offsets = slots if isinstance(slots, Places) else self.places(slots)
        _copyable(self._k[layer])[pages, offsets] = _copyable(k)
        _copyable(self._v[layer])[pages, offsets] = _copyable(v)

    def gather(self, layer: int, pages: Sequence[int], length: int) -> tuple[Any, Any]:
        """Copy the keys and values of one sequence out of its pages.

        Args:
            layer: which.
            pages: its pages, in order.
            length: its tokens.

        Returns:
            K (length, Hk, D) and V (length, Hk, Dv).
        """
        here = array_like(np.array(pages, np.int64), self._k[layer])
        return tuple(
            tensor[here].reshape(-1, *tensor.shape[2:])[:length]
            for tensor in (self._k[layer], self._v[layer])
        )


def _layout(layout: PageLayout | str) -> PageLayout:
    names = tuple(str(known) for known in PageLayout)
    if str(layout) not in names:
        limit = "must be one of " + ", ".join(names)
        raise PagingError("layout", layout, limit, closest(str(layout), names))
    return PageLayout(str(layout))


def _element_bytes(tensor: Any) -> int:
    return int(tensor.element_size() if hasattr(tensor, "element_size") else tensor.dtype.itemsize)


def _copyable(tensor: Any) -> Any:
    """Return a view of a tensor that its framework can index: torch cannot index 8-bit floats."""
    if hasattr(tensor, "data_ptr") and tensor.element_size() == 1:
        import torch

        return tensor.view(torch.uint8)
    return tensor
