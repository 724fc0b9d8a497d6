"""The emulator's warp instructions, conversions and driver against NumPy."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from emulator_support import SYMBOL, TYPES, aligned, buffer, build, fault_of, matrix_map, pack

from fmhagen.compile.driver import find_compiler
from fmhagen.compile.flags import HOST
from fmhagen.errors import EmulatorError
from fmhagen.resources import prelude_dir
from fmhagen.runtime.emulator import Buffer, Emulator, Report, encode_tensor_map, run

THREADS = 32
SMEM_BYTES = 8192

TEXT = """
struct alignas(64) Params {
  TensorMap out;
  f32* values;
  const u32* in;
  f32* results;
  u32 what;
  u32 pitch;
  u32 swizzled;
};

extern "C" __global__ void __launch_bounds__(32, 1) mini_kernel(FMHAGEN_PARAMS(Params)) {
  const u32 lane = thread_index(), smem = smem_base();
  if (params.what == 0) {  // registers to rows: register m of lane l is 256 m + l, and 1000 more
    const u32 row = smem + lane % 16 * params.pitch +
                    (lane / 16 ^ (params.swizzled ? lane % 8 : 0)) * 16;
    const u32 base = lane | lane + 1000 << 16;
    store_matrix_x4(row, base, base + 256 * 65537, base + 512 * 65537, base + 768 * 65537);
    u32 r[4];
    load_matrix_x4(r, row);
    store_global_f32(params.results + lane, static_cast<f32>(r[2]));
    proxy_fence();
    warp_sync();
    if (lane == 0) {
      tma_store_4d(&params.out, smem, 0, 0, 0, 0);
      tma_store_commit();
      tma_store_wait();
    }
  } else if (params.what < 3) {  // one 16 x 8 x 16 product
    u32 a[4];
    for (u32 i = 0; i < 4; i++) a[i] = params.in[lane * 6 + i];
    const u32 b0 = params.in[lane * 6 + 4], b1 = params.in[lane * 6 + 5];
    f32 d[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    if (params.what == 1) {
      mma_m16n8k16_bf16(d[0], d[1], d[2], d[3], a, b0, b1);
    } else {
      mma_m16n8k16_f16(d[0], d[1], d[2], d[3], a, b0, b1);
    }
    for (u32 i = 0; i < 4; i++) store_global_f32(params.results + lane * 4 + i, d[i]);
  } else {  // shuffles, votes, conversions
    f32* result = params.results + lane * 8;
    const f32 x = params.values[lane * 2], y = params.values[lane * 2 + 1];
    store_global_f32(result, shuffle_xor(static_cast<f32>(lane), 5));
    store_global_f32(result + 1, static_cast<f32>(warp_uniform(lane + 7)));
    store_global_f32(result + 2, warp_any(lane == 31) && !warp_any(lane == 32) ? 1.0f : 0.0f);
    const u32 packed[2] = {pack_bf16x2(x, y), pack_f16x2(x, y)};
    for (u32 i = 0; i < 2; i++) {
      store_global_f32(result + 3 + 2 * i, static_cast<f32>(packed[i] & 0xffff));
      store_global_f32(result + 4 + 2 * i, static_cast<f32>(packed[i] >> 16));
    }
    store_global_f32(result + 7, maximum(exp2_approx(-infinity()), reciprocal_approx(2.0f)));
  }
}
"""


def execute(
    what: int,
    *,
    out: npt.NDArray[np.generic],
    results: npt.NDArray[np.generic],
    values: npt.NDArray[np.generic] | None = None,
    inputs: npt.NDArray[np.generic] | None = None,
    pitch: int = 128,
    swizzled: bool = False,
) -> Report:
    """Run one branch of the kernel."""
    nothing = aligned((1,), np.uint32)
    values = nothing if values is None else values
    inputs = nothing if inputs is None else inputs
    outcome = fault_of(
        build(TEXT, THREADS, SMEM_BYTES),
        params=pack(
            matrix_map(out, 16, out.shape[1], 128 if swizzled else 0),
            ("3Q", (values.ctypes.data, inputs.ctypes.data, results.ctypes.data)),
            ("3I28x", (what, pitch, swizzled)),
        ),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("out", out, output=True), buffer("results", results, output=True)),
        seed=0,
    )
    assert isinstance(outcome, Report), outcome
    return outcome


def test_stmatrix_layout_and_ldmatrix_inverse() -> None:
    out, results = aligned((16, 16), np.uint16), aligned((32,), np.float32)
    report = execute(0, out=out, results=results, pitch=32)
    lane = np.arange(32)
    expected = np.zeros((16, 16), np.uint16)
    for matrix in range(4):
        rows, columns = matrix % 2 * 8 + lane // 4, matrix // 2 * 8 + lane % 4 * 2
        expected[rows, columns] = 256 * matrix + lane
        expected[rows, columns + 1] = 256 * matrix + lane + 1000
    assert np.array_equal(out, expected)
    word = (512 + lane) | (512 + lane + 1000) << 16
    assert np.array_equal(results, word.astype(np.float32))
    assert report.instructions["stmatrix"] == report.instructions["ldmatrix"] == 1


@pytest.mark.parametrize(("swizzled", "extra"), [(False, 28), (True, 0)])
def test_bank_conflicts_come_from_addresses(swizzled: bool, extra: int) -> None:
    """Rows 128 bytes apart share their banks: eight passes a matrix, unless chunks are swizzled."""
    out, results = aligned((16, 64), np.uint16), aligned((32,), np.float32)
    with pytest.raises(AssertionError, match="nobody wrote"):  # 16 of 64 columns are written
        execute(0, out=out, results=results, swizzled=swizzled)
    narrow = aligned((16, 8), np.uint16)
    report = fault_of(
        build(TEXT.replace("proxy_fence();", "return;"), THREADS, SMEM_BYTES),
        params=pack(
            matrix_map(narrow, 16, 8, 0),
            ("3Q", (0, 0, results.ctypes.data)),
            ("3I28x", (0, 128, swizzled)),
        ),
        threads=THREADS,
        smem_bytes=SMEM_BYTES,
        buffers=(buffer("results", results, output=True),),
        seed=0,
    )
    assert isinstance(report, Report), report
    assert [(use.name, use.wavefronts) for use in report.banks] == [
        ("stmatrix", 4 + extra),
        ("ldmatrix", 4 + extra),
    ]
    assert report.extra_wavefronts == 2 * extra


@pytest.mark.parametrize(("what", "dtype"), [(1, ml_dtypes.bfloat16), (2, np.float16)])
def test_mma_sync(what: int, dtype: npt.DTypeLike) -> None:
    random = np.random.default_rng(what)
    a = random.standard_normal((16, 16)).astype(dtype)
    b = random.standard_normal((16, 8)).astype(dtype)
    inputs = aligned((32, 6), np.uint32)
    for lane in range(32):
        group, pair = divmod(lane, 4)
        corners = ((0, 0), (8, 0), (0, 8), (8, 8))
        left = [a[group + row, column + 2 * pair :][:2] for row, column in corners]
        right = [b[row + 2 * pair :, group][:2] for row in (0, 8)]
        inputs[lane] = [
            int.from_bytes(np.ascontiguousarray(two).tobytes(), "little") for two in (*left, *right)
        ]
    results = aligned((32, 4), np.float32)
    execute(what, out=aligned((16, 8), np.uint16), results=results, inputs=inputs)
    for lane in range(32):
        for i in range(4):
            row, column = lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2
            total = np.float32(i + 1)
            for k in range(16):
                total += a[row, k].astype(np.float32) * b[k, column].astype(np.float32)
            assert results[lane, i] == total


def test_shuffles_votes_and_conversions() -> None:
    special = [0.0, -0.0, 1e-8, 6e-8, 2.0**-24, 2.0**-25, 65519.9, 65520.0, 1e30, np.inf, -np.inf]
    special += [1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11, 3.4e38]
    values = aligned((32, 2), np.float32)
    values[...] = np.random.default_rng(0).standard_normal((32, 2)) * 1e-4
    values.reshape(-1)[: len(special)] = special
    results = aligned((32, 8), np.float32)
    execute(3, out=aligned((16, 8), np.uint16), results=results, values=values)
    assert np.array_equal(results[:, 0], np.arange(32) ^ 5)
    assert (results[:, 1] == 7).all()
    assert (results[:, 2] == 1).all()
    with np.errstate(over="ignore"):
        half = values.astype(np.float16).view(np.uint16)
    assert np.array_equal(results[:, 3:5], values.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert np.array_equal(results[:, 5:7], half)
    assert (results[:, 7] == 0.5).all()


def test_portable_context_switch_gives_the_same_run(tmp_path: Path) -> None:
    """ucontext is for processors without a hand-written switch; it must not rot."""
    library = tmp_path / "portable.so"
    text = tmp_path / "kernel.cpp"
    text.write_text(TYPES + TEXT)
    compiler = find_compiler("emulator", "host")
    if compiler.path is None or " " in compiler.path:
        pytest.skip("needs g++ or clang++ on PATH")
    subprocess.run(
        [
            compiler.path,
            *("-O0", *HOST, "-DFMHAGEN_EMULATOR_UCONTEXT", "-I", str(prelude_dir())),
            *("-include", "emulator/sm90.h", str(text), "-o", str(library)),
        ],
        check=True,
    )
    reports = []
    for path in (library, build(TEXT, THREADS, SMEM_BYTES).library_path):
        results = aligned((32, 8), np.float32)
        values = aligned((32, 2), np.float32)
        with Emulator(path, SYMBOL) as emulator:
            report = fault_of(
                emulator,
                params=pack(
                    bytes(128),
                    ("3Q", (values.ctypes.data, 0, results.ctypes.data)),
                    ("3I28x", (3, 0, 0)),
                ),
                threads=THREADS,
                smem_bytes=SMEM_BYTES,
                buffers=(buffer("results", results, output=True),),
                seed=5,
            )
        reports.append(report)
    assert isinstance(reports[0], Report), reports[0]
    assert reports[0] == reports[1]


def test_driver_refuses_what_it_cannot_load() -> None:
    with pytest.raises(EmulatorError, match="cannot load") as caught:
        run("/nonexistent.so", "kernel", b"", 1, 32, 0, ())
    assert caught.value.kind == "launch"
    emulator = build(TEXT, THREADS, SMEM_BYTES)
    path = emulator.library_path
    with pytest.raises(EmulatorError, match="no_such_kernel"):
        Emulator(path, "no_such_kernel")
    other = Emulator(path, SYMBOL)
    other.close()
    other.close()
    with pytest.raises(EmulatorError, match="closed"):
        other.run(
            params=b"",
            grid=1,
            threads=32,
            smem_bytes=0,
            buffers=(Buffer(address=0, nbytes=0, name="nothing"),),
        )


def test_tensor_map_is_the_packed_struct() -> None:
    packed = encode_tensor_map(
        address=4096,
        element_bytes=2,
        sizes=(64, 100, 3, 1),
        stride_bytes=(128, 0, 1 << 33),
        box=(64, 16, 1, 1),
        swizzle_bytes=128,
    )
    assert len(packed) == 128
    assert struct.unpack_from("<QQ4I5Q4Q5I", packed)[1:] == (
        *(4096, 4, 2, 128, 0),
        *(64, 100, 3, 1, 1),
        *(128, 0, 1 << 33, 0),
        *(64, 16, 1, 1, 1),
    )
    assert not any(packed[124:])
    with pytest.raises(ValueError, match="n sizes"):
        encode_tensor_map(
            address=0, element_bytes=2, sizes=(1,), stride_bytes=(), box=(), swizzle_bytes=0
        )
