"""What the oracle takes besides q, k and v, as NumPy arrays on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fmhagen.errors import TensorError
from fmhagen.expr.mods import Mod
from fmhagen.expr.nodes import Type
from fmhagen.formula import ALIBI_SLOPES, spec_parameters

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fmhagen.spec import AttentionSpec

    Array = npt.NDArray[np.float64]


def as_float64(tensor: Any) -> Array:
    """Return any framework's tensor as a float64 NumPy array on the host."""
    import numpy as np

    if hasattr(tensor, "data_ptr"):  # torch; NumPy has no bf16 of its own
        import torch

        return np.asarray(tensor.detach().to("cpu", torch.float64).numpy())
    if type(tensor).__module__.partition(".")[0] == "cupy":
        tensor = tensor.get()
    return np.asarray(tensor).astype(np.float64)


def as_integers(tensor: Any) -> Any:
    """Return any framework's tensor of ints or bools as a NumPy array on the host."""
    import numpy as np

    if hasattr(tensor, "data_ptr"):  # torch
        return np.asarray(tensor.detach().cpu().numpy())
    if type(tensor).__module__.partition(".")[0] == "cupy":
        tensor = tensor.get()
    return np.asarray(tensor)


def parameter_values(
    spec: AttentionSpec, params: Mapping[str, Any] | None, alibi_slopes: Any
) -> dict[str, Any]:
    """Return what mask and score function read: captured tensors, and on top of them the given.

    Raises:
        TensorError: something is given that neither reads, or slopes are missing.
    """
    known = {parameter.name: parameter for parameter in spec_parameters(spec)}
    given = dict(params or {})
    if alibi_slopes is not None:
        slopes = as_float64(alibi_slopes)
        given[ALIBI_SLOPES.name] = slopes[None] if slopes.ndim == 1 else slopes
    for name in given:
        if name not in known:
            hint = "it reads " + ", ".join(known) if known else "it reads nothing"
            raise TensorError(name, None, "neither mask nor score function reads it", hint)
    captured = {**_bound(spec.mask_mod), **_bound(spec.score_mod)}
    values = {name: given.get(name, captured.get(name)) for name in known}
    if values.get(ALIBI_SLOPES.name, 0) is None:
        raise TensorError("alibi_slopes", None, "must be given: (H,) or (B, H)")
    return {
        name: as_float64(value) if known[name].type == Type.F32 else as_integers(value)
        for name, value in values.items()
        if value is not None
    }


def _bound(mod: Mod | None) -> Mapping[str, Any]:
    return {} if mod is None else mod.bound


def sink_logits(spec: AttentionSpec, sinks: Any) -> Array | None:
    """Return the sinks of a call in float64, or None.

    Raises:
        TensorError: they are missing, or the spec has none.
    """
    if (sinks is not None) != spec.sink:
        limit = "must be given: (H,)" if spec.sink else "needs a spec with sink=True"
        raise TensorError("sinks", None, limit)
    return None if sinks is None else as_float64(sinks)


def sequence_offsets(name: str, offsets: Any) -> npt.NDArray[np.int64]:
    """Return the offsets of packed sequences.

    Raises:
        TensorError: they are missing.
    """
    import numpy as np

    if offsets is None:
        raise TensorError(name, None, "must be given: (B + 1,)")
    return np.asarray(as_integers(offsets), np.int64)


def used_rows(offsets: npt.NDArray[np.int64], used: Any) -> list[slice]:
    """Return the rows of each packed sequence that are used."""
    starts, ends = offsets[:-1], offsets[1:]
    if used is not None:
        ends = starts + as_integers(used)
    return [slice(int(a), int(z)) for a, z in zip(starts, ends, strict=True)]
