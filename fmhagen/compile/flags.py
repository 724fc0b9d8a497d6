"""The one table of flags that each compiler is given."""

from __future__ import annotations

from typing import Literal

HostOptimisation = Literal["O0", "O1", "O2"]
"""Optimisation of an emulated kernel: O0 compiles fastest, O2 runs fastest.

At O0 the emulator itself is compiled apart from the kernel, once, at O2.
"""

# NOTE: sm_90a, not sm_90: wgmma and setmaxnreg exist only in the architecture-specific set.
ARCHITECTURES = {"sm90": "sm_90a", "gfx942": "gfx942"}

# -v makes ptxas print registers, spills and stack, which are read back. NVRTC keeps results on disk
# by itself, without that report, so a process that ends before it has read it would leave the next
# one without; the binaries are kept here anyway. --minimal leaves out declarations of textures, of
# launches from the device and of the runtime's types, which no kernel has, and changes no binary.
NVRTC = ("--std=c++17", "--ptxas-options=-v", "--no-cache", "--minimal")

# NOTE: no finite-math flag anywhere: the kernels use -inf for rows that see nothing.
AMDGPU = ("-O3", "-std=c++17", "-ffp-contract=fast")

# The header-free source needs no HIP installation.
HIP_OFFLINE = (
    "-x",
    "hip",
    "-nogpuinc",
    "-nogpulib",
    "--cuda-device-only",
    "--no-gpu-bundle-output",
)

# NOTE: -ffp-contract=off makes every host compiler give the same bits at every level. The pattern
# for uninitialised variables makes a read of an unset register visible.
HOST = (
    "-std=c++17",
    "-fno-exceptions",
    "-fno-rtti",
    "-ffp-contract=off",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-ftrivial-auto-var-init=pattern",
    "-DFMHAGEN_EMULATOR",
)

# The emulator and a kernel compiled apart; templates/prelude/emulator/core/report.h says how.
HOST_EMULATOR_ALONE = ("-c", "-DFMHAGEN_EMULATOR_ALONE")
HOST_KERNEL_ALONE = ("-DFMHAGEN_EMULATOR_ELSEWHERE",)

# NOTE: zig turns the undefined-behaviour sanitiser on at O0 and O1, whose run-time library takes
# 15 s to build the first time; and it would compile for this very CPU.
HOST_ZIG = ("-mcpu=baseline", "-fno-sanitize=undefined")
