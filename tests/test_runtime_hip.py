"""The HIP backend against a stand-in for hip-python, made from the bindings' source.

There is no AMD GPU here: what these tests hold is the order of calls, the bytes, the device and
the errors, not that ROCm accepts them.
"""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from fakes import torch as fake_torch
from fakes.hip import FakeHip, hipError_t

from fmhagen import api
from fmhagen.compile.binary import Binary, Resources
from fmhagen.errors import CaptureError, LaunchError, RuntimeUnavailableError, TensorError
from fmhagen.runtime.hip import HipBackend
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec

SPEC = AttentionSpec(dtype="bf16", head_dim=64, causal=True)


class Setup:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.torch = fake_torch.install(monkeypatch, hip="7.0")
        self.plan = api.lower(SPEC, target="gfx942")
        self.hip = FakeHip(params_bytes=self.plan.params_bytes, **options)
        backend = HipBackend(self.hip)
        monkeypatch.setattr("fmhagen.kernel.gpu_backend", lambda memory: backend)
        monkeypatch.setattr("fmhagen.kernel.compile_source", self._compile)
        self.kernel = api.compile_kernel(SPEC)

    def _compile(self, source: Source, **options: Any) -> Binary:
        resources = Resources(
            registers=256,
            spill_bytes=0,
            stack_bytes=0,
            static_shared_bytes=65536,
            dynamic_shared_bytes=source.dynamic_shared_bytes,
        )
        return Binary(
            symbol=source.symbol,
            target=source.target,
            kind="code_object",
            image=b"image",
            path=None,
            compiler="none",
            flags=(),
            resources=resources,
            log="",
        )

    def field(self, name: str) -> Any:
        field = next(f for f in self.plan.params if f.name == name)
        raw = self.hip.launches[-1].params[field.offset_bytes :][: field.size_bytes]
        formats = {"i64": "q", "i32": "i", "u32": "I", "f32": "f"}
        return struct.unpack("<" + formats.get(field.ctype, "Q"), raw)[0]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(monkeypatch)


def tensors(rows: int = 197, index: int = 0) -> tuple[Any, Any, Any]:
    return tuple(
        fake_torch.tensor(np.zeros((2, s, h, 64), ml_dtypes.bfloat16), index=index)
        for s, h in ((rows, 4), (333, 2), (333, 2))
    )


def test_addresses_and_strides_are_in_the_block(setup: Setup) -> None:
    q, k, v = tensors()
    o, lse = setup.kernel(q, k, v, return_lse=True)
    launch = setup.hip.launches[-1]
    assert launch.block == (setup.plan.threads, 1, 1)
    assert launch.grid[1:] == (1, 1)
    assert launch.stream == 0x51
    assert launch.extra is None
    assert setup.hip.modules == [(b"image", 0)]
    named = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    for field in setup.plan.params:
        if field.ctype.endswith("*"):
            assert setup.field(field.name) == named[field.name].data_ptr()
    names = {field.name for field in setup.plan.params}
    for name, value in {"k_stride_b": 333 * 2 * 64, "k_stride_h": 64, "k_stride_n": 128}.items():
        if name in names:
            assert setup.field(name) == value
    assert setup.field("seqlen_k") == 333


def test_the_second_device_is_used_and_the_first_stays_current(setup: Setup) -> None:
    q, k, v = tensors(index=1)
    setup.kernel(q, k, v)
    setup.kernel(q, k, v)
    assert [launch.device for launch in setup.hip.launches] == [1, 1]
    assert setup.hip.modules == [(b"image", 1)]
    assert setup.hip.device == 0


def test_a_cold_call_in_capture_says_how_to_warm_up(setup: Setup) -> None:
    setup.hip.capturing = {0x51}
    with pytest.raises(CaptureError, match="warm up before the capture"):
        setup.kernel(*tensors())
    setup.hip.capturing = set()
    setup.kernel(*tensors())
    setup.hip.capturing = {0x51}
    setup.kernel(*tensors())
    assert len(setup.hip.launches) == 2


@pytest.mark.parametrize("writes_no_status", [False, True])
def test_a_cold_call_on_the_legacy_stream_beside_a_capture_is_refused(
    setup: Setup, writes_no_status: bool
) -> None:
    backend = HipBackend(setup.hip)
    setup.hip.writes_no_status = writes_no_status
    assert not backend.is_capturing(0, 0)
    setup.hip.capturing = {0x51}
    assert backend.is_capturing(0, 0)


def test_a_refused_launch_names_the_code(setup: Setup) -> None:
    setup.hip.launch_code = hipError_t.hipErrorInvalidValue
    with pytest.raises(LaunchError, match="hipErrorInvalidValue"):
        setup.kernel(*tensors())


def test_another_chip_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, architectures=("gfx90a",))
    with pytest.raises(RuntimeUnavailableError, match="hip:0 is gfx90a"):
        setup.kernel(*tensors())
    with pytest.raises(RuntimeUnavailableError, match="this kernel is for gfx942"):
        api.compile_kernel(SPEC, device="hip")


def test_a_kernel_of_another_target_does_not_take_rocm_memory(setup: Setup) -> None:
    kernel = api.compile_kernel(SPEC, target="sm90")
    with pytest.raises(TensorError, match=r"q='hip:0': hip devices run kernels for gfx942"):
        kernel(*tensors())


def test_without_rocm_the_error_says_so() -> None:
    class NoRocm:
        def hipInit(self, flags: int) -> None:
            raise RuntimeError("libamdhip64.so not found")

    with pytest.raises(RuntimeUnavailableError, match="no ROCm here"):
        HipBackend(NoRocm()).compute_units(0)


def test_devices_are_listed(setup: Setup) -> None:
    reports = HipBackend(setup.hip).devices()
    assert [report.compute_units for report in reports] == [304, 304]
    assert reports[0].architecture == "gfx942:sramecc+:xnack-"
    assert reports[0].missing is None


def test_the_bindings_take_what_they_are_given() -> None:
    """The installed hip-python has the functions in use, with the parameters in use."""
    hip = pytest.importorskip("rocm.bindings.hip", reason="hip-python 10 is not installed")
    for name in ("hipInit", "hipGetDevice", "hipSetDevice", "hipGetDeviceCount"):
        assert callable(getattr(hip, name))
    assert "kernelParams, extra)" in hip.hipModuleLaunchKernel.__doc__.splitlines()[0]
    assert hip.hipError_t.hipErrorStreamCaptureImplicit == 906
    for field in ("name", "multiProcessorCount", "gcnArchName"):
        assert hasattr(hip.hipDeviceProp_t, field)
