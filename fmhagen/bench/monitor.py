"""Monitor: clock and power of an NVIDIA GPU through its management library, if that is here."""

from __future__ import annotations

import ctypes
from typing import Any

_CLOCK_SM = 1


class Monitor:
    """Reads the SM clock and the power of one device; gives None where it cannot."""

    def __init__(self, device: int = 0, *, bus_id: str | None = None) -> None:
        """Open the library; `bus_id` names the device where some are hidden from CUDA."""
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2():
                return
            handle = ctypes.byref(self._handle)
            if bus_id is not None:
                code = library.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), handle)
            else:
                code = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(device), handle)
        except (OSError, AttributeError):
            return
        if not code:
            self._library = library

    def clock_mhz(self) -> float | None:
        """Return the SM clock now."""
        return self._read("nvmlDeviceGetClockInfo", ctypes.c_int(_CLOCK_SM))

    def watts(self) -> float | None:
        """Return the power draw now."""
        milliwatts = self._read("nvmlDeviceGetPowerUsage")
        return None if milliwatts is None else milliwatts / 1000

    def watts_limit(self) -> float | None:
        """Return the power limit in force."""
        milliwatts = self._read("nvmlDeviceGetEnforcedPowerLimit")
        return None if milliwatts is None else milliwatts / 1000

    def _read(self, name: str, *arguments: Any) -> float | None:
        if self._library is None:
            return None
        value = ctypes.c_uint()
        function = getattr(self._library, name)
        if function(self._handle, *arguments, ctypes.byref(value)):
            return None
        return float(value.value)
