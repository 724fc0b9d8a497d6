"""A stand-in for torch whose "device" tensors lie in host memory: what the runtime asks of one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest


class DType:
    def __init__(self, name: str, numpy: Any) -> None:
        self.name, self.numpy = name, np.dtype(numpy)

    def __repr__(self) -> str:
        return f"torch.{self.name}"


bfloat16 = DType("bfloat16", ml_dtypes.bfloat16)
float16 = DType("float16", np.float16)
float32 = DType("float32", np.float32)


@dataclass(frozen=True)
class Device:
    type: str
    index: int | None


class Tensor:
    """A NumPy array that says it lies on a device."""

    requires_grad = False

    def __init__(self, array: np.ndarray, dtype: DType, device: Device) -> None:
        self.array, self.dtype, self.device = array, dtype, device

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def get_device(self) -> int:
        return -1 if self.device.type == "cpu" else self.device.index

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def data_ptr(self) -> int:
        return 0 if self.array.size == 0 else self.array.__array_interface__["data"][0]

    def expand(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(np.broadcast_to(self.array, shape), self.dtype, self.device)

    def unsqueeze(self, axis: int) -> Tensor:
        return Tensor(np.expand_dims(self.array, axis), self.dtype, self.device)

    def detach(self) -> Tensor:
        return self

    def clone(self, memory_format: str) -> Tensor:
        assert memory_format == "contiguous"
        return Tensor(np.ascontiguousarray(self.array.copy("C")), self.dtype, self.device)


class TensorGuards:
    """What PyTorch's compiler knows layouts by; counts its calls."""

    checks = 0

    def __init__(self, *tensors: Tensor, **options: None) -> None:
        assert options == {"dynamic_dims_sizes": None, "dynamic_dims_strides": None}
        self._known = [self._layout(tensor) for tensor in tensors]

    def check(self, *tensors: Tensor) -> bool:
        TensorGuards.checks += 1
        return [self._layout(tensor) for tensor in tensors] == self._known

    @staticmethod
    def _layout(tensor: Tensor) -> tuple[Any, ...]:
        if not isinstance(tensor, Tensor):
            return ()
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def tensor(array: np.ndarray, device: str = "cuda", index: int = 0) -> Tensor:
    dtypes = {t.numpy: t for t in (bfloat16, float16, float32)}
    return Tensor(array, dtypes[array.dtype], Device(device, index))


class FakeTorch(ModuleType):
    """The module; `streams` holds each device's current raw stream."""

    def __init__(self, *, hip: str | None = None) -> None:
        super().__init__("torch")
        self.streams = {0: 0x51, 1: 0x52}
        self.allocations: list[tuple[tuple[int, ...], Device]] = []
        self.version = SimpleNamespace(hip=hip)
        self._C = SimpleNamespace(
            _cuda_getCurrentRawStream=lambda index: self.streams[index],
            _dynamo=SimpleNamespace(guards=SimpleNamespace(TensorGuards=TensorGuards)),
        )
        self.float32 = float32
        self.contiguous_format = "contiguous"
        self.grad_enabled = True

    def install_quick_allocation(self, *, devices: int, dtype: DType | None = None) -> None:
        """Put the allocator past the dispatcher in; it gives `dtype` where it is to be wrong."""
        self.current, self.quick = 0, 0

        def empty(shape: tuple[int, ...], strides: tuple[int, ...], wanted: DType) -> Tensor:
            self.quick += 1
            return self.empty_strided(
                shape, strides, dtype=dtype or wanted, device=Device("cuda", self.current)
            )

        self._C._dynamo.guards._empty_strided_cuda = empty
        self._C._cuda_getDevice = lambda: self.current
        self.cuda = SimpleNamespace(device_count=lambda: devices)

    def is_grad_enabled(self) -> bool:
        return self.grad_enabled

    def empty(self, size: int, *, dtype: DType, device: Device) -> Tensor:
        return Tensor(np.empty(size, dtype.numpy), dtype, device)

    def empty_like(self, tensor: Tensor, *, device: str | None = None) -> Tensor:
        if device == "meta":  # no memory, and no allocation to note
            return Tensor(np.empty(tensor.shape, tensor.dtype.numpy), tensor.dtype, tensor.device)
        self.allocations.append((tensor.shape, tensor.device))
        return Tensor(np.empty(tensor.shape, tensor.dtype.numpy), tensor.dtype, tensor.device)

    def empty_strided(
        self, shape: tuple[int, ...], strides: tuple[int, ...], *, dtype: DType, device: Device
    ) -> Tensor:
        self.allocations.append((shape, device))
        order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
        stored = np.empty([shape[axis] for axis in order], dtype.numpy)
        result = Tensor(
            stored.transpose([order.index(a) for a in range(len(shape))]), dtype, device
        )
        if stored.size:
            assert all(
                n == 1 or s == t for n, s, t in zip(shape, strides, result.stride(), strict=True)
            )
        return result


def install(monkeypatch: pytest.MonkeyPatch, *, hip: str | None = None) -> FakeTorch:
    module = FakeTorch(hip=hip)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module
