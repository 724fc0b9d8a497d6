"""A static model of a main loop: its instructions from a listing, their time from a simulation."""

from __future__ import annotations

from fmhagen.model.listing import Loop, Operation, find_loops, parse_listing
from fmhagen.model.report import LoopReport, report_loop
from fmhagen.model.simulation import Simulated, simulate

__all__ = [
    "Loop",
    "LoopReport",
    "Operation",
    "Simulated",
    "find_loops",
    "parse_listing",
    "report_loop",
    "simulate",
]
