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


def accumulator_name(n: int) -> str:
    """Return the macro that holds the operand list of a 64 x n accumulator."""
    return f"FMHAGEN_REGISTERS_{n // 2}"


def accumulator_text(n: int) -> str:
    """Return the definition of that macro: `{%0, %1, ...}`, an instruction's first operands."""
    listed = ", ".join(f"%{i}" for i in range(n // 2))
    lines = [f'  "{line}"' for line in _wrapped("{" + listed + "}", 112)]
    head = f"// The {n // 2} registers of an accumulator in the text of an instruction."
    return " \\\n".join((f"{head}\n#define {accumulator_name(n)}", *lines))


def instruction_text(n: int, dtype: str, form: str) -> str:
    """Return the definition of that function: one wgmma.mma_async (PTX ISA 9.7.15.5)."""
    count = n // 2
    if form == "ss":
        a, arguments = f"%{count}", "u64 a"
        inputs = ['"l"(a)', '"l"(b)', '"r"(add)']
    else:
        a, arguments = ", ".join(f"%{count + i}" for i in range(4)), "const u32 (&a)[4]"
        a = f"{{{a}}}"
        inputs = [*(f'"r"(a[{i}])' for i in range(4)), '"l"(b)', '"r"(add)']
    b = count + len(inputs) - 2
    immediates = {"ss": "1, 1, 0, 0", "rs": "1, 1, 0", "rs_t": "1, 1, 1"}[form]
    instruction = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{dtype}.{dtype} "
    name = instruction_name(n, dtype, form)
    return "\n".join(
        (
            f"// {_SUMMARIES[form]} (PTX ISA 9.7.15.5).",
            f"FMHAGEN_DEVICE void {name}(f32 (&d)[{count}], {arguments}, u64 b, u32 add) {{",
            f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{b + 1}, 0; {instruction}"',
            f'               {accumulator_name(n)} ", {a}, %{b}, p, {immediates}; }}"',
            *(f"               {line}" for line in _operands(count, inputs)),
            "}",
        )
    )


def _operands(count: int, inputs: list[str]) -> list[str]:
    """Return the lines that name an instruction's operands, outputs first."""
    whole = count // 32 * 32
    outputs = [f"FMHAGEN_32(d, {i})" for i in range(0, whole, 32)]
    outputs += [f"FMHAGEN_8(d, {i})" for i in range(whole, count, 8)]
    return _wrapped(f": {', '.join(outputs)} : {', '.join(inputs)});", 104)


def _wrapped(text: str, width: int) -> list[str]:
    """Break text behind commas, which stay, with the space after them, at the end of a line."""
    lines = textwrap.wrap(text, width, break_long_words=False)
    return [f"{line} " for line in lines[:-1]] + lines[-1:]
