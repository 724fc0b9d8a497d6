"""The warpgroup matrix instructions of sm90: operand lists too long to be written by hand."""

from __future__ import annotations

import textwrap

_SUMMARIES = {
    "ss": "D = A B (+ D), A and B K-major in shared memory",
    "rs": "D = A B (+ D), A in registers, B K-major in shared memory",
    "rs_t": "D = A B (+ D), A in registers, B MN-major in shared memory",
}


def instruction_name(n: int, dtype: str, form: str) -> str:
    """Return the isa function of a 64 x n x 16 product; see `MatrixShape` for dtype and form."""
    return f"wgmma_m64n{n}k16_{dtype}_{form}"


def instruction_text(n: int, dtype: str, form: str) -> str:
    """Return the definition of that function: one wgmma.mma_async (PTX ISA 9.7.15.5)."""
    count = n // 2
    registers = [f"%{i}" for i in range(count)]
    if form == "ss":
        a, arguments = [f"%{count}"], "u64 a"
        inputs = ['"l"(a)', '"l"(b)', '"r"(accumulate)']
    else:
        a, arguments = [f"%{count + i}" for i in range(4)], "const u32 (&a)[4]"
        inputs = [*(f'"r"(a[{i}])' for i in range(4)), '"l"(b)', '"r"(accumulate)']
    b, flag = f"%{count + len(a)}", f"%{count + len(a) + 1}"
    a_operand = a[0] if form == "ss" else "{" + ", ".join(a) + "}"
    immediates = {"ss": "1, 1, 0, 0", "rs": "1, 1, 0", "rs_t": "1, 1, 1"}[form]
    instruction = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype} "
    name = instruction_name(n, dtype, form)
    return "\n".join(
        (
            f"// {_SUMMARIES[form]} (PTX ISA 9.7.15.5).",
            f"FMHAGEN_DEVICE void {name}(f32 (&d)[{count}], {arguments}, u64 b, u32 accumulate) {{",
            f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, {flag}, 0;\\n"',
            f'               "{instruction}"',
            *_quoted("{" + ", ".join(registers) + f"}}, {a_operand}, {b}, p, {immediates}; }}"),
            *_operands(": ", [f"FMHAGEN_8(d, {i})" for i in range(0, count, 8)]),
            f"               : {', '.join(inputs)});",
            "}",
        )
    )


def _quoted(text: str) -> list[str]:
    return [f'               "{line} "' for line in textwrap.wrap(text, 101)]


def _operands(prefix: str, items: list[str]) -> list[str]:
    wrapped = textwrap.wrap(", ".join(items), 103, break_long_words=False)
    return [f"               {prefix if i == 0 else '  '}{line}" for i, line in enumerate(wrapped)]
