"""Tensor maps of CUDA: how the copy engine sees a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmhagen.plan.attention import TensorMapPlan
from fmhagen.runtime.launch_values import Operand

MAP_BYTES = 128
MAX_STRIDE_BYTES = 2**40 - 16  # CUDA driver API, cuTensorMapEncodeTiled: globalStrides
MAX_SIZE = 2**32  # the same: globalDim


Encode = Callable[[int], tuple[Any, Any]]
"""Gives the driver's code and the map for an address."""


def encoder(driver: Any, map_plan: TensorMapPlan, operand: Operand) -> Encode:
    """Return the function that encodes `map_plan`'s boxes over a tensor.

    It is pure and runs on the host: no context, no device. Only the address is left to give, so
    that a new address costs little more than the driver's own time.
    """
    swizzle = f"{map_plan.swizzle_bytes}B" if map_plan.swizzle_bytes else "NONE"
    dtype = {"bf16": "BFLOAT16", "fp16": "FLOAT16"}.get(operand.dtype, "UINT8")
    data_type = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype}")
    rank = len(map_plan.box)
    promotion = f"L2_{map_plan.promotion_bytes}B" if map_plan.promotion_bytes else "NONE"
    layout = (
        [driver.cuuint64_t(n) for n in operand.map_sizes],
        [driver.cuuint64_t(n) for n in operand.map_strides_bytes],
        [driver.cuuint32_t(n) for n in map_plan.box],
        [driver.cuuint32_t(1)] * rank,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"),
        getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    encode = driver.cuTensorMapEncodeTiled

    def encode_at(address: int) -> tuple[Any, Any]:
        result: tuple[Any, Any] = encode(data_type, rank, address, *layout)
        return result

    return encode_at
