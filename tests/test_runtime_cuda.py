"""The CUDA backend against a stand-in for the driver: what it is given, and in which context."""

from __future__ import annotations

import ctypes
import math
import struct
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")

from fakes import torch as fake_torch
from fakes.cuda import FakeDriver, FakeLibrary, Launch

import fmhagen
from fmhagen import api
from fmhagen.compile.binary import Binary, Resources
from fmhagen.errors import CaptureError, LaunchError, RuntimeUnavailableError, TensorError
from fmhagen.plan.attention import Plan
from fmhagen.runtime import devices
from fmhagen.runtime.cuda import CudaBackend
from fmhagen.runtime.tensors import Memory, MisalignedTensorWarning
from fmhagen.source import Source

SPEC = fmhagen.AttentionSpec(dtype="bf16", head_dim=128, causal=True)


class Setup:
    """A kernel on a stand-in driver, with a binary that nobody compiled."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, spec: fmhagen.AttentionSpec = SPEC, **options: Any
    ) -> None:
        self.torch = fake_torch.install(monkeypatch)
        self.plan: Plan = api.lower(spec, target="sm90")
        self.driver = FakeDriver(params_bytes=self.plan.params_bytes, **options)
        self.compiled = 0
        backend = CudaBackend(self.driver, FakeLibrary(self.driver))
        monkeypatch.setattr(devices, "gpu_backend", lambda memory: backend)
        monkeypatch.setattr("fmhagen.kernel.gpu_backend", lambda memory: backend)
        monkeypatch.setattr("fmhagen.kernel.compile_source", self._compile)
        self.kernel = api.compile_kernel(spec)

    def _compile(self, source: Source, **options: Any) -> Binary:
        self.compiled += 1
        return Binary(
            symbol=source.symbol,
            target="sm90",
            kind="cubin",
            image=b"image",
            path=None,
            compiler="none",
            flags=(),
            resources=Resources(
                registers=168,
                spill_bytes=0,
                stack_bytes=0,
                static_shared_bytes=0,
                dynamic_shared_bytes=source.dynamic_shared_bytes,
            ),
            log="",
        )

    @property
    def launch(self) -> Launch:
        return self.driver.launches[-1]

    def field(self, name: str) -> Any:
        """Return a field of the last launch's parameter block, by the plan's own offsets."""
        field = next(f for f in self.plan.params if f.name == name)
        raw = self.launch.params[field.offset_bytes : field.offset_bytes + field.size_bytes]
        if field.ctype == "TensorMap":
            return raw
        formats = {"i64": "q", "i32": "i", "u32": "I", "f32": "f"}
        return struct.unpack("<" + formats.get(field.ctype, "Q"), raw)[0]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(monkeypatch)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A kernel whose O leaves through a tensor map, as those without a mask do."""
    return Setup(monkeypatch, fmhagen.AttentionSpec(dtype="bf16", head_dim=128))


def tensors(
    batch: int = 2,
    rows: int = 197,
    keys: int = 333,
    heads: int = 4,
    heads_kv: int = 2,
    depth: int = 128,
    index: int = 0,
) -> tuple[Any, Any, Any]:
    return tuple(
        fake_torch.tensor(np.zeros((batch, s, h, depth), ml_dtypes.bfloat16), index=index)
        for s, h in ((rows, heads), (keys, heads_kv), (keys, heads_kv))
    )


def test_one_call_gives_the_driver_all_it_needs(setup: Setup) -> None:
    q, k, v = tensors()
    o, lse = setup.kernel(q, k, v, return_lse=True)

    launch = setup.launch
    tiles = math.ceil(197 / setup.plan.grid.tile_m) * 4 * 2
    assert launch.grid == (tiles, 1, 1)
    assert launch.block == (setup.plan.threads, 1, 1)
    assert launch.shared_bytes == setup.plan.shared_bytes
    assert launch.stream == 0x51
    assert launch.context == 0x1000
    assert launch.extra is None
    assert setup.driver.modules == [(b"image", 0x1000)]
    function, name, value = setup.driver.attributes[0]
    assert name.name == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    assert value == setup.plan.shared_bytes
    assert launch.function == int(function)
    assert "cuFuncLoad" in setup.driver.calls
    assert (o.shape, lse.shape) == ((2, 197, 4, 128), (2, 4, 197))
    assert o.dtype.name == "bfloat16"
    assert lse.dtype.name == "float32"


def test_the_parameter_block_holds_every_value(setup: Setup) -> None:
    q, k, v = tensors()
    _o, lse = setup.kernel(q, k, v, return_lse=True)
    assert setup.field("lse") == lse.data_ptr()
    assert setup.field("scale_log2") == pytest.approx(128**-0.5 * math.log2(math.e), rel=1e-6)
    assert setup.field("causal_offset") == 333 - 197
    assert setup.field("seqlen_q") == 197
    assert setup.field("seqlen_k") == 333
    assert setup.field("num_heads") == 4
    assert setup.field("heads_per_group") == 2
    assert setup.field("num_m_tiles") == math.ceil(197 / setup.plan.grid.tile_m)
    assert setup.field("heads_per_section") == 8  # everything fits in L2


def test_without_lse_the_address_is_null(setup: Setup) -> None:
    setup.kernel(*tensors())
    assert setup.field("lse") == 0


def test_tensor_maps_describe_rows_heads_and_batches(staged: Setup) -> None:
    q, k, v = tensors()
    o = staged.kernel(q, k, v)
    found = {encode.address: encode for encode in staged.driver.encodes}
    k_map = found[k.data_ptr()]
    assert k_map.sizes == (128, 333, 2, 2)
    assert k_map.strides == (2 * 128 * 2, 128 * 2, 333 * 2 * 128 * 2)
    box = next(m.box for m in staged.plan.tensor_maps if m.tensor == "k")
    assert k_map.box == box
    assert k_map.dtype == "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"
    assert k_map.swizzle == "CU_TENSOR_MAP_SWIZZLE_128B"
    assert k_map.fill == "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE"
    assert k_map.element_strides == (1, 1, 1, 1)
    assert found[o.data_ptr()].sizes == (128, 197, 4, 2)
    assert staged.field("q_map")[8:16] == q.data_ptr().to_bytes(8, "little")


def test_fp16_maps_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, fmhagen.AttentionSpec(dtype="fp16", head_dim=64))
    q = fake_torch.tensor(np.zeros((1, 5, 2, 64), np.float16))
    setup.kernel(q, q, q)
    assert {e.dtype for e in setup.driver.encodes} == {"CU_TENSOR_MAP_DATA_TYPE_FLOAT16"}


def test_a_warm_call_encodes_and_asks_nothing(setup: Setup) -> None:
    q, k, v = tensors()
    out = fake_torch.tensor(np.zeros(q.shape, ml_dtypes.bfloat16))
    setup.kernel(q, k, v, out=out)
    encodes, calls = len(setup.driver.encodes), len(setup.driver.calls)
    setup.kernel(q, k, v, out=out)
    assert (len(setup.driver.encodes), len(setup.driver.calls)) == (encodes, calls)
    assert setup.driver.launches[0].params == setup.driver.launches[1].params
    assert setup.compiled == 1


def test_new_addresses_of_a_known_layout_get_new_maps_alone(setup: Setup) -> None:
    out = fake_torch.tensor(np.zeros((2, 197, 4, 128), ml_dtypes.bfloat16))
    first, second = tensors(), tensors()
    setup.kernel(*first, out=out)
    encodes = len(setup.driver.encodes)
    setup.kernel(*second, out=out)
    assert len(setup.driver.encodes) == encodes + 3
    assert setup.field("q_map")[8:16] == second[0].data_ptr().to_bytes(8, "little")


def test_the_current_stream_of_the_moment_is_used(setup: Setup) -> None:
    q, k, v = tensors()
    setup.kernel(q, k, v)
    setup.torch.streams[0] = 0x77
    setup.kernel(q, k, v)
    assert [launch.stream for launch in setup.driver.launches] == [0x51, 0x77]


def test_a_call_scale_overrides_the_specs(setup: Setup) -> None:
    q, k, v = tensors()
    setup.kernel(q, k, v)
    setup.kernel(q, k, v, scale=0.5)
    assert setup.field("scale_log2") == pytest.approx(0.5 * math.log2(math.e), rel=1e-6)
    setup.kernel(q, k, v, scale=0)
    assert setup.field("scale_log2") == 2.0**-126
    setup.kernel(q, k, v)
    assert setup.field("scale_log2") == pytest.approx(128**-0.5 * math.log2(math.e), rel=1e-6)


def test_the_second_device_is_used_and_the_first_stays_current(setup: Setup) -> None:
    setup.driver.contexts = [0x1000]
    q, k, v = tensors(index=1)
    setup.kernel(q, k, v)
    setup.kernel(q, k, v)  # the quick path
    assert [launch.context for launch in setup.driver.launches] == [0x1001, 0x1001]
    assert [launch.stream for launch in setup.driver.launches] == [0x52, 0x52]
    assert setup.driver.contexts == [0x1000]


@pytest.mark.parametrize("contexts", [[], [0x1000], [0x1000, 0x1001], [0x7777]])
def test_the_default_stream_of_a_device_is_meant_whatever_is_current(
    setup: Setup, contexts: list[int]
) -> None:
    setup.torch.streams = {0: 0, 1: 0}
    for turn in range(3):
        setup.driver.contexts = list(contexts)
        setup.kernel(*tensors(index=1))
        assert setup.launch.context == 0x1001
        assert setup.driver.contexts == contexts
        assert len(setup.driver.launches) == turn + 1


def test_a_thread_without_a_context_keeps_none(setup: Setup) -> None:
    setup.kernel(*tensors())
    assert setup.driver.launches[0].context == 0x1000
    assert setup.driver.contexts == []


def test_mixed_devices_are_refused(setup: Setup) -> None:
    q, _, v = tensors()
    _, k, _ = tensors(index=1)
    with pytest.raises(TensorError, match=r"k='cuda:1'.*cuda:0"):
        setup.kernel(q, k, v)


def test_a_cold_call_in_capture_says_how_to_warm_up(setup: Setup) -> None:
    setup.driver.contexts = [0x1000]
    setup.driver.capturing = {0x51}
    with pytest.raises(CaptureError, match="warm up before the capture"):
        setup.kernel(*tensors())
    assert (setup.compiled, setup.driver.modules) == (0, [])
    setup.driver.capturing = set()
    setup.kernel(*tensors())
    setup.driver.capturing = {0x51}
    setup.kernel(*tensors(rows=64))  # warm: another layout needs nothing from the device
    assert len(setup.driver.launches) == 2


def test_load_warms_up_without_tensors(setup: Setup) -> None:
    setup.kernel.load(0)
    setup.driver.contexts = [0x1000]
    setup.driver.capturing = {0x51}
    setup.kernel(*tensors())
    assert len(setup.driver.launches) == 1


def test_a_refused_launch_names_driver_and_sizes(setup: Setup) -> None:
    setup.driver.launch_code = 1
    with pytest.raises(LaunchError, match=r"CUDA_ERROR_INVALID_VALUE \(invalid argument\)"):
        setup.kernel(*tensors())


def test_another_chip_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(monkeypatch, capabilities=((8, 0), (10, 0)))
    with pytest.raises(RuntimeUnavailableError, match=r"cuda:0 has compute capability 8\.0"):
        setup.kernel(*tensors())
    with pytest.raises(RuntimeUnavailableError, match=r"need exactly 9\.0"):
        api.compile_kernel(SPEC, device="cuda")
    assert setup.compiled == 1  # for the first kernel; the second was refused before


def test_an_explicit_device_compiles_at_once_and_takes_its_memory_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch)
    kernel = api.compile_kernel(SPEC, device="cuda")
    assert setup.compiled == 1
    q, k, v = (t.array for t in tensors())
    with pytest.raises(TensorError, match=r"q='host'.*compiled for cuda"):
        kernel(q, k, v)


def test_expanded_tensors_are_read_in_place(setup: Setup) -> None:
    q, k, _ = tensors(heads_kv=2)
    base = np.zeros((1, 333, 2, 128), ml_dtypes.bfloat16)
    v = fake_torch.tensor(np.broadcast_to(base, (2, 333, 2, 128)))
    setup.kernel(q, k, v)
    found = next(e for e in setup.driver.encodes if e.address == v.data_ptr())
    assert found.sizes == (128, 333, 2, 2)
    assert found.strides[2] == 0


def test_expanded_tensors_are_copied_if_the_driver_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setup = Setup(monkeypatch, accepts_zero_stride=False)
    q, k, _ = tensors()
    base = np.zeros((1, 333, 2, 128), ml_dtypes.bfloat16)
    v = fake_torch.tensor(np.broadcast_to(base, (2, 333, 2, 128)))
    with pytest.warns(MisalignedTensorWarning, match="v is copied"):
        setup.kernel(q, k, v)
    assert len(setup.driver.launches) == 1


def test_keys_expanded_over_heads_are_one_head(setup: Setup) -> None:
    q, _, _ = tensors(heads=4)
    base = np.zeros((2, 333, 1, 128), ml_dtypes.bfloat16)
    k = fake_torch.tensor(np.broadcast_to(base, (2, 333, 4, 128)))
    setup.kernel(q, k, k)
    assert setup.field("heads_per_group") == 4
    k_map = next(e for e in setup.driver.encodes if e.address == k.data_ptr() and e.box[1])
    assert 0 not in setup.driver.encodes[-1].strides
    assert k_map is not None


def test_misaligned_inputs_are_copied_with_one_warning(setup: Setup) -> None:
    q, k, v = tensors()
    flat = np.zeros(q.array.size + 8, ml_dtypes.bfloat16)
    bad = fake_torch.tensor(flat[1 : 1 + q.array.size].reshape(q.shape))
    assert bad.data_ptr() % 16 == 2
    with pytest.warns(MisalignedTensorWarning, match=r"q is copied.*address") as caught:
        setup.kernel(bad, k, v)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setup.kernel(q, k, v)  # the aligned layout that the copy had
    with pytest.warns(MisalignedTensorWarning):
        setup.kernel(bad, k, v)  # the same shape and strides as a known layout


def test_no_keys_means_maps_over_queries(setup: Setup) -> None:
    q, k, v = tensors(keys=0)
    setup.kernel(q, k, v)
    assert setup.field("seqlen_k") == 0
    assert {e.address for e in setup.driver.encodes[:3]} == {q.data_ptr()}
    assert all(e.sizes[1] >= 1 for e in setup.driver.encodes)
    setup.kernel(q, k, v)
    assert len(setup.driver.launches) == 2


@pytest.mark.parametrize("sizes", [{"batch": 0}, {"rows": 0}, {"heads": 0}])
def test_nothing_to_compute_launches_nothing(setup: Setup, sizes: dict[str, int]) -> None:
    q, k, v = tensors(**sizes)
    o, lse = setup.kernel(q, k, v, return_lse=True)
    assert o.shape == q.shape
    assert lse.array.size == 0
    assert setup.driver.launches == []


def test_many_heads_fold_into_the_first_grid_dimension(setup: Setup) -> None:
    setup.kernel(*tensors(batch=1, rows=3, keys=3, heads=71280, heads_kv=71280))
    assert setup.launch.grid == (132, 1, 1)
    assert setup.field("num_m_tiles") == 1


def test_output_takes_the_order_of_q_in_memory(setup: Setup) -> None:
    q, k, v = tensors()
    stored = np.zeros((2, 4, 197, 128), ml_dtypes.bfloat16)
    transposed = fake_torch.tensor(stored.transpose(0, 2, 1, 3))
    assert setup.kernel(transposed, k, v).stride() == transposed.stride()
    assert setup.kernel(q, k, v).stride() == q.stride()


def test_gradients_are_not_dropped_silently(setup: Setup) -> None:
    q, k, v = tensors()
    setup.kernel(q, k, v)
    q.requires_grad = True
    with pytest.raises(TensorError, match=r"q='requires_grad=True'.*no_grad"):
        setup.kernel(q, k, v)
    setup.torch.grad_enabled = False
    setup.kernel(q, k, v)


def test_out_is_checked_on_the_quick_path_too(setup: Setup) -> None:
    q, k, v = tensors(heads=2)
    k = v = q
    out = fake_torch.tensor(np.zeros(q.shape, ml_dtypes.bfloat16))
    assert setup.kernel(q, k, v, out=out) is out
    with pytest.raises(TensorError, match=r"out=.*must not be q, k or v"):
        setup.kernel(q, k, v, out=q)
    flat = np.zeros(q.array.size + 8, ml_dtypes.bfloat16)
    bad = fake_torch.tensor(flat[1 : 1 + q.array.size].reshape(q.shape))
    with pytest.raises(TensorError, match=r"out=.*address"):
        setup.kernel(q, k, v, out=bad)


def test_the_block_runs_on_the_emulator(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes that CUDA would get, run on the emulator, give the right answer."""
    from fmhagen.compile.driver import compile_source
    from fmhagen.oracle.comparison import compare, tolerance_of
    from fmhagen.runtime.emulator import Buffer, Emulator

    generator = np.random.default_rng(1)
    q, k, v = tensors(batch=1, rows=130, keys=150, heads=2, heads_kv=1)
    for t in (q, k, v):
        t.array[...] = generator.standard_normal(t.shape)
    o, lse = setup.kernel(q, k, v, return_lse=True)
    binary = compile_source(api.emit(SPEC, target="sm90"), for_emulator=True)
    named = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
    buffers = [
        Buffer(
            address=t.data_ptr(),
            nbytes=t.array.nbytes,
            name=name,
            writable=name in ("o", "lse"),
            written_once=name in ("o", "lse"),
        )
        for name, t in named.items()
    ]
    with Emulator(str(binary.path), binary.symbol) as emulator:
        emulator.run(
            params=setup.launch.params,
            grid=setup.launch.grid[0],
            threads=setup.launch.block[0],
            smem_bytes=setup.launch.shared_bytes,
            buffers=buffers,
        )
    expected = api.reference(SPEC, q.array, k.array, v.array)
    comparison = compare(o.array, lse.array, *expected)
    assert comparison.within(tolerance_of("bf16")), comparison


def test_threads_share_a_kernel(staged: Setup) -> None:
    from concurrent.futures import ThreadPoolExecutor

    inputs = [tensors() for _ in range(8)]
    outs = [fake_torch.tensor(np.zeros((2, 197, 4, 128), ml_dtypes.bfloat16)) for _ in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            list(pool.map(lambda i: staged.kernel(*inputs[i], out=outs[i]), range(8)))
    assert staged.compiled == 1
    q_field = next(f for f in staged.plan.params if f.name == "q_map")
    o_field = next(f for f in staged.plan.params if f.name == "o_map")
    pairs = {inputs[i][0].data_ptr(): outs[i].data_ptr() for i in range(8)}
    for launch in staged.driver.launches:
        q_address, o_address = (
            int.from_bytes(launch.params[f.offset_bytes + 8 : f.offset_bytes + 16], "little")
            for f in (q_field, o_field)
        )
        assert pairs[q_address] == o_address


def test_devices_are_listed(setup: Setup) -> None:
    reports = devices.list_devices()
    cuda = [report for report in reports if report.memory == str(Memory.CUDA)]
    assert [report.architecture for report in cuda[:2]] == ["9.0", "9.0"]
    assert cuda[0].name == "NVIDIA H200"
    assert cuda[0].missing is None


def test_without_a_driver_the_error_says_so() -> None:
    class NoDriver:
        def cuInit(self, flags: int) -> None:
            raise RuntimeError("libcuda.so.1 not found")

    with pytest.raises(RuntimeUnavailableError, match="no NVIDIA driver here"):
        CudaBackend(NoDriver()).compute_units(0)


def test_the_fake_reads_params_as_the_driver_does() -> None:
    """kernelParams is the address of an array of pointers, not of the block."""
    driver = FakeDriver(params_bytes=4)
    pointers = (ctypes.c_char_p * 1)(b"abcd")
    config = ctypes.create_string_buffer(56)
    library, function = FakeLibrary(driver), ctypes.c_void_p(0x3000 + 0x1000)
    driver.contexts = [0x1000]
    library.cuLaunchKernelEx(ctypes.byref(config), function, ctypes.byref(pointers), None)
    assert driver.launches[0].params == b"abcd"


@pytest.mark.parametrize("guarded", [True, False])
def test_two_calls_of_other_layouts_never_share_a_launch(setup: Setup, guarded: bool) -> None:
    """With PyTorch's guards and without: what a layout bakes in follows each call."""
    if not guarded:
        del setup.torch._C._dynamo
    calls = [tensors(), tensors(rows=65), tensors(keys=64), tensors(heads_kv=1), tensors(batch=1)]
    fake_torch.TensorGuards.checks = 0
    for turn in range(3):
        for q, k, v in calls:
            for into in (False, True):
                out = fake_torch.tensor(np.zeros(q.shape, ml_dtypes.bfloat16)) if into else None
                for scale in (None, 0.5):
                    setup.kernel(q, k, v, out=out, scale=scale)
                    assert setup.field("seqlen_q") == q.shape[1]
                    assert setup.field("seqlen_k") == k.shape[1]
                    assert setup.field("heads_per_group") == 4 // k.shape[2]
                    assert setup.field("causal_offset") == k.shape[1] - q.shape[1]
                    wanted = (128**-0.5 if scale is None else scale) * math.log2(math.e)
                    assert setup.field("scale_log2") == pytest.approx(wanted, rel=1e-6), turn
    prepared = setup.kernel._calls._prepared
    assert len(prepared) == 2 * len(calls)
    assert {layout.is_guarded for layout in prepared.values()} == {guarded}
    assert (fake_torch.TensorGuards.checks > 0) == guarded


@pytest.mark.parametrize("devices", [1, 2])
def test_o_is_allocated_past_the_dispatcher_on_the_current_device_alone(
    setup: Setup, devices: int
) -> None:
    setup.torch.install_quick_allocation(devices=devices)
    q, k, v = tensors()
    setup.kernel(q, k, v)
    for current in (0, 1, 0)[:devices]:
        setup.torch.current = current
        before = setup.torch.quick
        o, lse = setup.kernel(q, k, v, return_lse=True)
        assert setup.torch.quick == before + (2 if current == 0 else 0)
        assert (o.shape, o.stride(), o.dtype) == (q.shape, q.stride(), q.dtype)
        assert (lse.shape, lse.dtype) == ((2, 4, 197), fake_torch.float32)
        assert o.device == lse.device == q.device


def test_an_allocator_that_does_something_else_is_not_used(setup: Setup) -> None:
    setup.torch.install_quick_allocation(devices=1, dtype=fake_torch.float16)
    q, k, v = tensors()
    assert setup.kernel(q, k, v).dtype == q.dtype


def test_a_gradient_is_seen_behind_a_guard(setup: Setup) -> None:
    q, k, v = tensors()
    setup.kernel(q, k, v)
    setup.kernel(q, k, v)
    q.requires_grad = True
    with pytest.raises(TensorError, match="requires_grad=True"):
        setup.kernel(q, k, v)
    setup.torch.grad_enabled = False
    setup.kernel(q, k, v)
    setup.torch.grad_enabled = True
    with pytest.raises(TensorError, match="requires_grad=True"):
        setup.kernel(q, k, v)
