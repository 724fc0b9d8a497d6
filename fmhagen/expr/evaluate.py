"""NumPy evaluation of expressions: ints in int64, floats in float64, over broadcast positions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fmhagen.errors import TensorError
from fmhagen.expr.nodes import Node, Type, walk


def evaluate(root: Node, leaves: Mapping[str, Any], params: Mapping[str, Any] | None = None) -> Any:
    """Evaluate an expression.

    Args:
        root: the expression.
        leaves: an int, a float or an array for each leaf that it reads; they broadcast.
        params: array or number for each parameter that it reads. Indices beyond a tensor's size
            read the nearest element, as in the kernels; a size of 1 serves every index.

    Returns:
        A NumPy scalar or array of bools, int64 or float64.

    Raises:
        TensorError: a parameter is missing or has other dimensions.
    """
    import numpy as np

    values: dict[Node, Any] = {}
    with np.errstate(all="ignore"):
        for node in walk(root):
            match node.op:
                case "const":
                    values[node] = node.value
                case "leaf":
                    values[node] = np.asarray(leaves[node.value])
                case "param" | "load":
                    indices = [values[arg] for arg in node.args]
                    values[node] = _read(node, indices, params or {})
                case "cast":
                    values[node] = _cast(values[node.args[0]], node.type)
                case _:
                    function = _functions(node.args[-1].type)[node.op]
                    values[node] = function(*(values[arg] for arg in node.args))
    return _cast(values[root], root.type)


def _cast(value: Any, to: Type) -> Any:
    import numpy as np

    array = np.asarray(value)
    if to == Type.I32 and array.dtype.kind == "f":
        array = np.trunc(array)
    return array.astype({Type.BOOL: np.bool_, Type.I32: np.int64, Type.F32: np.float64}[to])


def _read(node: Node, indices: list[Any], params: Mapping[str, Any]) -> Any:
    import numpy as np

    parameter = node.value
    if parameter.name not in params:
        limit = "is read by a mask or score function and was not passed"
        raise TensorError(parameter.name, None, limit, "pass it in params")
    array = np.asarray(params[parameter.name])
    if array.ndim != parameter.ndim:
        raise TensorError(parameter.name, array.shape, f"must have {parameter.ndim} dimensions")
    clamped = tuple(
        np.clip(index, 0, size - 1) for index, size in zip(indices, array.shape, strict=True)
    )
    return _cast(array[clamped] if clamped else array, node.type)


def _functions(operands: Type) -> Mapping[str, Callable[..., Any]]:
    import numpy as np

    is_bool = operands == Type.BOOL
    return {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "quotient": np.divide,
        "floor_div": np.floor_divide,
        "floor_mod": np.mod,
        "neg": np.negative,
        "abs": np.abs,
        "min": np.fmin,
        "max": np.fmax,
        "and": np.logical_and if is_bool else np.bitwise_and,
        "or": np.logical_or if is_bool else np.bitwise_or,
        "xor": np.logical_xor if is_bool else np.bitwise_xor,
        "not": np.logical_not if is_bool else np.bitwise_not,
        "shl": np.left_shift,
        "shr": np.right_shift,
        "lt": np.less,
        "le": np.less_equal,
        "eq": np.equal,
        "ne": np.not_equal,
        "where": np.where,
        "exp": np.exp,
        "exp2": np.exp2,
        "log": np.log,
        "log2": np.log2,
        "tanh": np.tanh,
        "sigmoid": lambda x: 0.5 * np.tanh(0.5 * x) + 0.5,
        "sqrt": np.sqrt,
        "root": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "floor": np.floor,
    }
