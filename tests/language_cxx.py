"""The C++ of mask and score functions, compiled for the host and called from NumPy."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fmhagen.compile.clang import ZIG
from fmhagen.compile.host import detect
from fmhagen.explaining.key_runs import Place
from fmhagen.lowering.language import lower_language
from fmhagen.plan.attention import ParamField, pack_params
from fmhagen.plan.language import Language
from fmhagen.resources import templates_dir
from fmhagen.spec import AttentionSpec

_HEAD = """
#include <math.h>
#include <string.h>
#define FMHAGEN_DEVICE inline
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using i32 = int;
using i64 = long long;
using f32 = float;
inline i32 clamp(i32 value, i32 low, i32 high) {
  return value < low ? low : value > high ? high : value;
}
inline f32 infinity() { return INFINITY; }
inline f32 exp2_approx(f32 x) { return exp2f(x); }
inline f32 log2_approx(f32 x) { return log2f(x); }
inline f32 tanh_approx(f32 x) { return tanhf(x); }
inline f32 sqrt_approx(f32 x) { return sqrtf(x) * 1.0000001f; }
inline f32 sqrt_exact(f32 x) { return sqrtf(x); }
inline f32 reciprocal_approx(f32 x) { return 1.0f / x; }
inline f32 minimum(f32 a, f32 b) { return fminf(a, b); }
inline f32 maximum(f32 a, f32 b) { return fmaxf(a, b); }
inline f32 absolute(f32 x) { return fabsf(x); }
inline f32 floor_f32(f32 x) { return floorf(x); }
template <class T>
inline T read(const void* base, i64 index) {
  T value;
  memcpy(&value, static_cast<const char*>(base) + index * static_cast<i64>(sizeof(T)), sizeof(T));
  return value;
}
inline f32 load_param_f32(const void* base, i64 index) { return read<f32>(base, index); }
inline f32 load_param_f16(const void* base, i64 index) { return read<_Float16>(base, index); }
inline f32 load_param_bf16(const void* base, i64 index) {
  const u32 bits = static_cast<u32>(read<u16>(base, index)) << 16;
  f32 value;
  memcpy(&value, &bits, 4);
  return value;
}
inline i32 load_param_i32(const void* base, i64 index) { return read<i32>(base, index); }
inline i32 load_param_i64(const void* base, i64 index) {
  return static_cast<i32>(read<i64>(base, index));
}
inline i32 load_param_u8(const void* base, i64 index) { return read<u8>(base, index); }
"""

_RESULTS = {"mask_mod": "u8", "score_mod": "f32"}
_TYPES = {"u8": np.uint8, "f32": np.float32, "i32": np.int32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The functions of one spec in a loaded library.

    Attributes:
        language: what was printed.
        library: it.
        number: of the spec in the library.
        fields: the parameter block.
        size: its bytes.
    """

    language: Language
    library: ctypes.CDLL
    number: int
    fields: tuple[ParamField, ...]
    size: int

    def call(
        self,
        name: str,
        place: Place,
        params: Mapping[str, Any],
        *arguments: npt.ArrayLike,
    ) -> npt.NDArray[Any]:
        """Call one function on arrays of ints (and floats, for the score) that broadcast."""
        is_score = name == "score_mod"
        arrays = np.broadcast_arrays(*arguments)
        dtypes = [np.float32 if is_score and i == 0 else np.int32 for i in range(len(arrays))]
        taken = [np.ascontiguousarray(a, t) for a, t in zip(arrays, dtypes, strict=True)]
        result = np.zeros(arrays[0].shape, _TYPES[_RESULTS.get(name, "i32")])
        block, keep = self.block(params)
        function = getattr(self.library, f"{name}_{self.number}")
        place_of = (place.b, place.h, place.seqlen_q, place.seqlen_k)
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in taken]
        count = ctypes.c_int64(result.size)
        function(block, *place_of, *pointers, result.ctypes.data_as(ctypes.c_void_p), count)
        del keep
        return result

    def block(self, params: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Return the packed parameter block, and what must live as long as it is used."""
        block = ctypes.create_string_buffer(max(self.size, 1))
        keep = []
        for field in self.fields:
            name, kind, axis = _field(field.name)
            value = np.asarray(params[name])
            keep.append(value)
            number: Any = {
                "": value.ctypes.data if field.ctype.endswith("*") else value[()],
                "stride": value.strides[axis] // value.itemsize if kind == "stride" else 0,
                "size": value.shape[axis] if kind == "size" else 0,
            }[kind]
            if kind == "stride" and value.shape[axis] == 1:
                number = 0
            code = {"i64": "q", "i32": "i", "f32": "f"}.get(field.ctype, "P")
            data = {"q": ctypes.c_int64, "i": ctypes.c_int32, "f": ctypes.c_float}.get(
                code, ctypes.c_void_p
            )(number)
            ctypes.memmove(
                ctypes.addressof(block) + field.offset_bytes, ctypes.byref(data), field.size_bytes
            )
        return block, keep


def _field(name: str) -> tuple[str, str, int]:
    """Split arg_NAME, arg_NAME_stride_I and arg_NAME_size_I."""
    match = re.fullmatch(r"arg_(\w+?)(?:_(stride|size)_(\d+))?", name)
    assert match is not None
    return match[1], match[2] or "", int(match[3] or 0)


def compile_specs(specs: Mapping[str, AttentionSpec], directory: Path) -> dict[str, Compiled]:
    """Compile the functions of some specs into one library."""
    text = _HEAD + (templates_dir() / "prelude" / "language.h").read_text()
    found = {}
    for number, (name, spec) in enumerate(specs.items()):
        language = lower_language(spec, mapped=False)  # what the functions say by themselves
        fields, size = pack_params(language.fields)
        members = "".join(f"  {f.ctype} {f.name};\n" for f in fields)
        text += f"namespace n{number} {{\nstruct Params {{\n{members}}};\n{language.text}"
        if fields:
            text += f"static_assert(sizeof(Params) == {size}, {chr(34)}size{chr(34)});\n"
        text += "}\n" + "".join(_wrapper(f.name, f.text, number) for f in language.functions)
        found[name] = (language, number, fields, size)
    source, output = directory / "language.cpp", directory / "language.so"
    source.write_text(text)
    path = detect().path
    assert path is not None
    program = (*ZIG, "c++") if path == " ".join(ZIG) else (path,)
    flags = ("-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")
    done = subprocess.run(
        (*program, *flags, "-Wno-unused-function", str(source), "-o", str(output), "-lm"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(output))
    return {
        name: Compiled(language=language, library=library, number=number, fields=fields, size=size)
        for name, (language, number, fields, size) in found.items()
    }


def _wrapper(name: str, text: str, number: int) -> str:
    """Print a loop over arrays that calls one function."""
    count = text[text.index("FMHAGEN_DEVICE") : text.index(") {")].count(",") - 1
    kinds = ["f32" if name == "score_mod" and i == 0 else "i32" for i in range(count)]
    result = _RESULTS.get(name, "i32")
    pointers = "".join(f", const {kind}* a{i}" for i, kind in enumerate(kinds))
    values = "".join(f", a{i}[at]" for i in range(count))
    space = f"n{number}"
    return (
        f'extern "C" void {name}_{number}(const void* block, i32 b, i32 h, i32 seqlen_q,'
        f" i32 seqlen_k{pointers}, {result}* out, i64 count) {{\n"
        f"  const {space}::Params& params = *static_cast<const {space}::Params*>(block);\n"
        f"  const {space}::Place place = {space}::place_of(params, b, h, seqlen_q, seqlen_k);\n"
        f"  for (i64 at = 0; at < count; ++at) {{\n"
        f"    out[at] = static_cast<{result}>({space}::{name}(params, place{values}));\n"
        "  }\n}\n"
    )
