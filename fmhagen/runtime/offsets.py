"""Offsets: what is wrong with the contents of cu_seqlens and seqused.

Reading them waits for the device. Kernels never leave the tensors, whatever the offsets say, but
rows are then computed for the wrong sequence or not at all.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from fmhagen.errors import TensorError
from fmhagen.runtime.arguments import Given
from fmhagen.runtime.checks import Problem
from fmhagen.runtime.tensors import Framework, Memory, TensorView

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Lengths = npt.NDArray[np.int64]


def check_offsets(problem: Problem, given: Given) -> bool:
    """Read the offsets and lengths of packed sequences.

    Args:
        problem: the sizes of the call.
        given: its arguments.

    Returns:
        Whether every row of O belongs to a sequence, so that a kernel must write it.

    Raises:
        TensorError: an offset decreases, the first is not 0, the last is not the number of rows, a
            length is outside its sequence, or max_seqlen is smaller than a length.
    """
    for side, total in (("q", problem.rows_q), ("k", problem.rows_k)):
        if f"cu_seqlens_{side}" not in given.tensors:  # keys in a cache
            continue
        lengths = _sequence_lengths(f"cu_seqlens_{side}", given.tensors, total)
        used = given.tensors.get(f"seqused_{side}")
        if used is not None:
            lengths = _used_lengths(f"seqused_{side}", read_numbers(used), lengths)
        name = f"max_seqlen_{side}"
        longest = int(lengths.max(initial=0))
        if given.numbers.get(name, longest) < longest:
            limit = f"must be at least the longest sequence, {longest}"
            raise TensorError(name, given.numbers[name], limit)
    return "seqused_q" not in given.tensors


def read_numbers(tensor: TensorView) -> Lengths:
    """Return a dense int32 tensor's numbers; waits for the device."""
    import numpy as np

    if tensor.framework == Framework.TORCH:
        return np.asarray(tensor.tensor.detach().cpu().numpy()).astype(np.int64)
    if tensor.framework == Framework.CUPY:
        return np.asarray(tensor.tensor.get()).astype(np.int64)
    if tensor.memory != Memory.HOST:
        limit = "cannot be read: fmhagen cannot copy this framework's device memory"
        raise TensorError(tensor.name, tensor.place, limit, "use validate=False")
    count = tensor.shape[0]
    if count == 0:
        return np.zeros(0, np.int64)
    numbers: Any = (ctypes.c_int32 * count).from_address(tensor.address)
    return np.array(numbers, np.int64)


def _sequence_lengths(name: str, tensors: dict[str, TensorView], total: int) -> Lengths:
    import numpy as np

    offsets = read_numbers(tensors[name])
    lengths = np.diff(offsets)
    if offsets[0] != 0:
        raise TensorError(name, int(offsets[0]), "the first offset must be 0")
    if (lengths < 0).any():
        at = int(np.argmax(lengths < 0)) + 1
        limit = f"offset {at} must not be below the one before it, {int(offsets[at - 1])}"
        raise TensorError(name, int(offsets[at]), limit)
    if offsets[-1] != total:
        tensor = "q" if name.endswith("q") else "k"
        limit = f"the last offset must be the rows of {tensor}, {total}"
        raise TensorError(name, int(offsets[-1]), limit, f"slice {tensor}, or correct the offsets")
    return lengths


def _used_lengths(name: str, used: Lengths, lengths: Lengths) -> Lengths:
    import numpy as np

    wrong = (used < 0) | (used > lengths)
    if wrong.any():
        at = int(np.argmax(wrong))
        limit = f"sequence {at} has {int(lengths[at])} rows; must be from 0 to that"
        raise TensorError(name, int(used[at]), limit)
    return used
