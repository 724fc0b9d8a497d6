"""Captured NumPy arrays become copies beside Q, once for each device, as long as they live."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fmhagen.runtime import captures
from fmhagen.runtime.tensors import Framework, Memory, TensorView, view

COPY = "a copy on device {}"


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices that copies were made for; Q is a number, the device that it lies on."""
    made: list[int] = []

    def beside(name: str, value: Any, q: TensorView) -> str:
        assert name == "params['bias']"
        made.append(q.device)
        return COPY.format(q.device)

    def query(name: str, q: int) -> TensorView:
        tensor = view(name, np.zeros(1))
        return replace(tensor, memory=Memory.CUDA, device=q, framework=Framework.TORCH)

    monkeypatch.setattr(captures, "beside", beside)
    monkeypatch.setattr(captures, "view", query)
    return made


def test_an_array_is_copied_once_for_a_device_and_released_with_it(copied: list[int]) -> None:
    bias, arrays = np.ones(3), captures.CapturedArrays()
    for device in (0, 1, 0, 1):
        found = arrays.all_beside({"bias": bias, "limit": 4}, device)
        assert found == {"bias": COPY.format(device), "limit": 4}
    assert copied == [0, 1]
    del bias
    gc.collect()
    assert not arrays._copies
    arrays.all_beside({"bias": np.ones(3)}, 1)
    assert copied == [0, 1, 1]


def test_other_values_and_host_memory_are_left_alone() -> None:
    bias, arrays = np.ones(3), captures.CapturedArrays()
    found = arrays.all_beside({"bias": bias, "limit": 4}, np.zeros((1, 1, 1, 64)))
    assert found["bias"] is bias
    assert arrays.all_beside({"limit": 4}, None) == {"limit": 4}
