"""Interop: index arrays and copies of them in the framework of somebody's tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def array_like(array: npt.NDArray[np.int32] | npt.NDArray[np.int64], like: Any) -> Any:
    """Return a NumPy index array in the framework and on the device of `like`; None: as it is."""
    if like is None:
        return array
    if hasattr(like, "data_ptr"):
        import torch

        return torch.as_tensor(array, device=like.device)
    if type(like).__module__.partition(".")[0] == "cupy":
        import importlib

        cupy = importlib.import_module("cupy")
        with cupy.cuda.Device(like.device.id):
            return cupy.asarray(array)
    return array


def assign(out: Any, array: npt.NDArray[np.int32]) -> None:
    """Write a NumPy array over a tensor of any framework, in place: graphs keep its address."""
    out[...] = array_like(array, out)
