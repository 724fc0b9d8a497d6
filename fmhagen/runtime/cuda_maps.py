"""Tensor maps of CUDA: how the copy engine sees a tensor."""

from __future__ import annotations

from typing import Any

from fmhagen.plan import TensorMapPlan
from fmhagen.runtime.launch_values import Operand

MAP_BYTES = 128
MAX_STRIDE_BYTES = 2**40 - 16  # CUDA driver API, cuTensorMapEncodeTiled: globalStrides
MAX_SIZE = 2**32  # the same: globalDim


def encode(driver: Any, map_plan: TensorMapPlan, operand: Operand, address: int) -> tuple[Any, Any]:
    """Return the driver's code and the map: `map_plan`'s boxes over a (d, row, head, batch) tensor.

    A pure function of its arguments that runs on the host: no context, no device.
    """
    dtypes = driver.CUtensorMapDataType
    swizzles = driver.CUtensorMapSwizzle
    size, step, count = driver.cuuint64_t, driver.cuuint64_t, driver.cuuint32_t
    swizzle = f"{map_plan.swizzle_bytes}B" if map_plan.swizzle_bytes else "NONE"
    dtype = {"bf16": "BFLOAT16", "fp16": "FLOAT16"}[operand.dtype]
    result: tuple[Any, Any] = driver.cuTensorMapEncodeTiled(
        getattr(dtypes, f"CU_TENSOR_MAP_DATA_TYPE_{dtype}"),
        len(map_plan.box),
        address,
        [size(n) for n in operand.map_sizes],
        [step(n) for n in operand.map_strides_bytes],
        [count(n) for n in map_plan.box],
        [count(1)] * len(map_plan.box),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(swizzles, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return result
