"""Inspection of a binary: its machine code, what it counts up to, how many blocks fit a chip."""

from __future__ import annotations

from fmhagen.inspection.disassembly import Disassembly, count_classes, disassemble
from fmhagen.inspection.occupancy import Occupancy, occupancy

__all__ = ["Disassembly", "Occupancy", "count_classes", "disassemble", "occupancy"]
