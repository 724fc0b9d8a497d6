"""Draws: random tensors for one call of a spec, with all that its mask and score functions read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fmhagen.expr.nodes import Type
from fmhagen.lowering.language import lower_language
from fmhagen.plan.language import Argument
from fmhagen.spec import AttentionSpec, DType, Layout

if TYPE_CHECKING:
    import numpy as np

    from fmhagen.checking.verification import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The tensors of one call, as NumPy arrays.

    Attributes:
        q, k, v: in the spec's layout, which has no batch if packed.
        extras: keyword arguments that both a kernel and the reference take.
        hints: keyword arguments of the kernel alone: the longest packed sequences.
    """

    q: Any
    k: Any
    v: Any
    extras: dict[str, Any]
    hints: dict[str, int]


def draw(spec: AttentionSpec, case: Case) -> Draw:
    """Return random tensors for a call.

    Q, K and V are standard normal numbers, and so are sinks and float parameters; int parameters
    are positions. Packed sequences have random lengths up to those of the case; of three or more
    one is empty. Parameters that the functions captured are not drawn.
    """
    import numpy as np

    generator = np.random.default_rng(case.seed)
    extras: dict[str, Any] = {}
    hints: dict[str, int] = {}
    rows, keys = case.seqlen_q, case.seqlen_k
    if spec.varlen:
        for side, longest in (("q", rows), ("k", keys)):
            lengths = generator.integers(min(1, longest), longest + 1, case.batch)
            if case.batch > 2:
                lengths[generator.integers(0, case.batch)] = 0
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            extras[f"cu_seqlens_{side}"] = offsets
            hints[f"max_seqlen_{side}"] = longest
        rows, keys = int(extras["cu_seqlens_q"][-1]), int(extras["cu_seqlens_k"][-1])
    q = _tensor(spec, case, generator, case.heads, rows, spec.d)
    k = _tensor(spec, case, generator, case.heads_kv, keys, spec.d)
    v = _tensor(spec, case, generator, case.heads_kv, keys, spec.dv)
    if spec.sink:
        extras["sinks"] = generator.standard_normal(case.heads, np.float32)
    if spec.alibi:
        extras["alibi_slopes"] = generator.uniform(0.0, 0.5, case.heads).astype(np.float32)
    bound = {
        name for mod in (spec.mask_mod, spec.score_mod) if mod is not None for name in mod.bound
    }
    params = {
        argument.parameter.name: _parameter(argument, case, generator)
        for argument in lower_language(spec).arguments
        if argument.parameter.name not in bound | {"alibi_slopes"}
    }
    if params:
        extras["params"] = params
    return Draw(q=q, k=k, v=v, extras=extras, hints=hints)


def _tensor(
    spec: AttentionSpec,
    case: Case,
    generator: np.random.Generator,
    heads: int,
    rows: int,
    depth: int,
) -> Any:
    import ml_dtypes
    import numpy as np

    dtype = {DType.BF16: ml_dtypes.bfloat16, DType.FP16: np.float16}[spec.dtype]
    shape: tuple[int, ...] = (heads, rows, depth)
    if spec.layout == Layout.BSHD:
        shape = (rows, heads, depth)
    if not spec.varlen:
        shape = (case.batch, *shape)
    return generator.standard_normal(shape, np.float32).astype(dtype)


def _parameter(argument: Argument, case: Case, generator: np.random.Generator) -> Any:
    """Return one parameter: a number, or a tensor as large as its indices ask for."""
    import ml_dtypes
    import numpy as np

    parameter = argument.parameter
    longest = max(case.seqlen_q, case.seqlen_k, 1)
    sizes = {
        "b": case.batch,
        "h": case.heads,
        "q_idx": case.seqlen_q,
        "kv_idx": case.seqlen_k,
        "seqlen_q": case.seqlen_q + 1,
        "seqlen_k": case.seqlen_k + 1,
        "computed": longest,
    }
    shape = tuple(
        max(1, *(int(kind) + 1 if kind.isdigit() else sizes[kind] for kind in axis))
        for axis in argument.axes
    )
    numbers: Any
    if parameter.type == Type.F32:
        numbers = generator.standard_normal(shape, np.float32)
    elif parameter.type == Type.BOOL:
        numbers = generator.uniform(size=shape) < 0.7
    else:
        numbers = generator.integers(0, longest, shape)
    if parameter.non_decreasing:
        numbers = np.sort(numbers, axis=-1)
    if not parameter.ndim:
        return float(numbers) if parameter.type == Type.F32 else int(numbers)
    dtypes: dict[str, Any] = {
        "f32": np.float32,
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "i32": np.int32,
        "i64": np.int64,
        "u8": np.uint8,
        "bool": np.bool_,
    }
    return np.asarray(numbers).astype(dtypes[parameter.dtype])
