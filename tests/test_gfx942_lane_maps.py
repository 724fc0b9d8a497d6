"""The emulator's matrix instructions against A @ B, through lane maps written down as data."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from fmhagen.compile import compile_source
from fmhagen.errors import CompilerNotFoundError
from fmhagen.resources import prelude_dir
from fmhagen.runtime.emulator import Buffer, run
from fmhagen.source import Source

LANES = 64
ISA = (prelude_dir() / "gfx942" / "isa.h").read_text(encoding="ascii")


@dataclass(frozen=True, kw_only=True)
class LaneMap:
    """One matrix instruction, l = lane, g = register, h = 16-bit half of a register.

    Attributes:
        size: rows and columns of D.
        depth: columns of A, rows of B.
        registers: of C and D in each lane.
        a: (l, g, h) -> (i, k) of A; B is the same with (j, k).
        d: (l, g) -> (i, j) of C and D.
    """

    size: int
    depth: int
    registers: int
    a: Callable[[int, int, int], tuple[int, int]]
    d: Callable[[int, int], tuple[int, int]]


# https://github.com/ROCm/amd_matrix_instruction_calculator, architecture cdna3
MAPS = {
    "32x32x8": LaneMap(
        size=32,
        depth=8,
        registers=16,
        a=lambda l, g, h: (l % 32, 4 * (l // 32) + 2 * g + h),  # noqa: E741
        d=lambda l, g: (8 * (g // 4) + 4 * (l // 32) + g % 4, l % 32),  # noqa: E741
    ),
    "16x16x16": LaneMap(
        size=16,
        depth=16,
        registers=4,
        a=lambda l, g, h: (l % 16, 4 * (l // 16) + 2 * g + h),  # noqa: E741
        d=lambda l, g: (4 * (l // 16) + g, l % 16),  # noqa: E741
    ),
}
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}

KERNEL = """
struct Params {
  const u32* operands;  // [2][64][2]: A and B as the lanes hold them
  f32* d;               // [64][REGISTERS], C at first
};

extern "C" __global__ void __launch_bounds__(64, 1) multiply(const Params& params) {
  const u32 lane = thread_index();
  const BufferResource operands = make_buffer(params.operands, 1024);
  const u32x2 a = {buffer_load_b32(operands, lane * 8), buffer_load_b32(operands, lane * 8 + 4)};
  const u32x2 b = {buffer_load_b32(operands, 512 + lane * 8),
                   buffer_load_b32(operands, 512 + lane * 8 + 4)};
  Accumulator c;
  for (u32 i = 0; i < REGISTERS; ++i) c[i] = static_cast<f32>(i);
  c = INSTRUCTION(a, b, c);
  for (u32 i = 0; i < REGISTERS; ++i) store_global_f32(params.d + lane * REGISTERS + i, c[i]);
}
"""


def test_isa_functions_are_those_of_the_emulator() -> None:
    emulated = (prelude_dir() / "emulator" / "gfx942.h").read_text(encoding="ascii")
    heads = re.findall(r"^FMHAGEN_DEVICE ([^{]+?) \{", ISA, re.MULTILINE)
    assert len(heads) > 30
    text = re.sub(r"\s+", " ", emulated)
    for head in heads:
        signature = re.sub(r"\s+", " ", head.replace("[[maybe_unused]] ", ""))
        assert re.search(rf"(static inline|FMHAGEN_MODEL) {re.escape(signature)}", text), signature


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", MAPS)
def test_matrix_instruction_multiplies(shape: str, dtype: str) -> None:
    lanes = MAPS[shape]
    source = Source(
        text=f"constexpr u32 REGISTERS = {lanes.registers};\n"
        f"using Accumulator = f32x{lanes.registers};\n"
        f"#define INSTRUCTION mfma_{shape}_{dtype}\n{KERNEL}",
        symbol="multiply",
        target="gfx942",
        filename=f"multiply_{shape}_{dtype}.hip",
        digest="",
        constructor="",
        threads=LANES,
        dynamic_shared_bytes=0,
    )
    binary = compile_source(source, for_emulator=True, host_optimisation="O0")
    rng = np.random.default_rng(0)
    a = rng.standard_normal((lanes.size, lanes.depth)).astype(DTYPES[dtype])
    b = rng.standard_normal((lanes.depth, lanes.size)).astype(DTYPES[dtype])
    operands = np.zeros((2, LANES, 2, 2), DTYPES[dtype])
    for lane, register, half in np.ndindex(LANES, 2, 2):
        line, k = lanes.a(lane, register, half)
        operands[0, lane, register, half] = a[line, k]
        operands[1, lane, register, half] = b[k, line]
    held = np.zeros((LANES, lanes.registers), np.float32)
    run(
        binary.path or "",
        "multiply",
        np.array([operands.ctypes.data, held.ctypes.data], np.uint64).tobytes(),
        1,
        LANES,
        0,
        (
            Buffer(address=operands.ctypes.data, nbytes=operands.nbytes, name="operands"),
            Buffer(
                **{"address": held.ctypes.data, "nbytes": held.nbytes, "name": "d"},
                writable=True,
                written_once=True,
            ),
        ),
    )
    d = np.full((lanes.size, lanes.size), np.nan)
    c = np.zeros_like(d)
    for lane, register in np.ndindex(LANES, lanes.registers):
        d[lanes.d(lane, register)] = held[lane, register]
        c[lanes.d(lane, register)] = register
    product = a.astype(np.float64) @ b.astype(np.float64)
    assert np.allclose(d, c + product, rtol=1e-5, atol=1e-5)


def test_every_isa_function_compiles_for_the_device() -> None:
    keywords = "".join(
        f"#define {name} __attribute__(({attribute}))\n"
        for name, attribute in (
            ("__global__", "global"),
            ("__device__", "device"),
            ("__shared__", "shared"),
        )
    )
    types = "".join(
        f"using {name} = {spelling};\n"
        for name, spelling in (
            ("u8", "unsigned char"),
            ("u16", "unsigned short"),
            ("u32", "unsigned int"),
            ("u64", "unsigned long long"),
            ("i32", "int"),
            ("i64", "long long"),
            ("f32", "float"),
        )
    )
    source = Source(
        text=f"{keywords}{types}#define FMHAGEN_DEVICE static __device__ inline\n{ISA}"
        'extern "C" __global__ void nothing(u32* out) { *out = 1; }\n',
        symbol="nothing",
        target="gfx942",
        filename="every_isa_function.hip",
        digest="",
        constructor="",
        threads=LANES,
        dynamic_shared_bytes=0,
    )
    try:
        assert compile_source(source, compiler="zig").resources.clean
    except CompilerNotFoundError as missing:
        pytest.skip(str(missing))
