"""Appending: new rows of keys and values written behind those of a cache, rotated on the way.

spec     what is appended: element types, depths, which columns are rotated
plan     spec + target -> what a template prints and a launch needs
checks   which tensors fit one another, and the sizes of a call
launch   a layout of a call: its kernel, values and outputs
calls    append_kv(...): checks a layout once, launches
"""

from fmhagen.appending.calls import AppendResult, append_kv
from fmhagen.appending.plan import AppendPlan, emit_append, lower_append
from fmhagen.appending.spec import AppendSpec

__all__ = ["AppendPlan", "AppendResult", "AppendSpec", "append_kv", "emit_append", "lower_append"]
