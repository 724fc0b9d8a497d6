"""Merging: attention over several sets of keys made attention over all of them.

spec     what is merged: element type, depth, how many parts
plan     spec + target -> what a template prints and a launch needs
memory   which tensors overlap, and what a launch may touch
calls    merge_states(os, lses): checks, compiles once, launches
"""

from fmhagen.merging.calls import merge_states
from fmhagen.merging.plan import MergePlan, emit_merge, lower_merge
from fmhagen.merging.spec import MAX_PARTS, MergeSpec

__all__ = ["MAX_PARTS", "MergePlan", "MergeSpec", "emit_merge", "lower_merge", "merge_states"]
