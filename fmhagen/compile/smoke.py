"""Trivial kernels that use what only the target's own instruction set has."""

from __future__ import annotations

from fmhagen.source import Source

_SM90 = r"""
#ifndef FMHAGEN_EMULATOR
// wgmma and setmaxnreg exist in sm_90a only.
extern "C" __global__ void __launch_bounds__(128, 1) fmhagen_smoke(float* out) {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 168;");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  out[threadIdx.x] = 1.0f;
}
#else
extern "C" __attribute__((visibility("default"))) void fmhagen_smoke(const void*) {}
#endif
"""

_GFX942 = r"""
#ifndef __global__
#define __global__ __attribute__((global))
#endif
#ifndef __launch_bounds__
#define __launch_bounds__(threads, blocks) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#endif
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef short i16x4 __attribute__((ext_vector_type(4)));
extern "C" __global__ void __launch_bounds__(64, 1) fmhagen_smoke(float* out, i16x4 a, i16x4 b) {
  const f32x4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
  const f32x4 c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, zero, 0, 0, 0);
  out[__builtin_amdgcn_workitem_id_x()] = c[0] + c[1] + c[2] + c[3];
}
"""


def smoke_source(target: str) -> Source:
    """Return a trivial kernel for "sm90" or "gfx942"."""
    is_cuda = target == "sm90"
    return Source(
        text=_SM90 if is_cuda else _GFX942,
        symbol="fmhagen_smoke",
        target=target,
        filename=f"fmhagen_smoke.{'cu' if is_cuda else 'hip'}",
        digest="0" * 16,
        constructor="",
        threads=128 if is_cuda else 64,
        dynamic_shared_bytes=0,
    )
