"""Mapping: block maps, for masks that are known only when their tensors are read.

spec     what one classifier kernel decides: a mask, and the tiles that it is asked of
plan     spec + target -> what a template prints and a launch needs
calls    Mapper: checks, compiles once, launches: tensors -> BlockMap
flex     BlockMap of what PyTorch calls a BlockMask
"""

from fmhagen.mapping.plan import MapPlan, emit_map, lower_map
from fmhagen.mapping.spec import MapSpec

__all__ = ["MapPlan", "MapSpec", "emit_map", "lower_map"]
