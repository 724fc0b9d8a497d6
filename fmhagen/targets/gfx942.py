"""Facts of AMD CDNA 3 (MI300X, MI300A, MI325X), gfx942."""

from __future__ import annotations

from fmhagen.targets.base import Target

_ISA = "AMD Instinct MI300 Instruction Set Architecture Reference Guide (CDNA 3)"
_WHITEPAPER = "AMD CDNA 3 architecture whitepaper"

GFX942 = Target(
    name="gfx942",
    chips=("MI300X", "MI300A", "MI325X"),
    aliases=("mi300x", "mi300a", "mi325x", "mi300", "cdna3", "gfx_942"),
    compiler_arch="gfx942",
    symbol_suffix="gfx942",
    file_suffix=".hip",
    language="HIP C++",
    prelude="gfx942",
    main_loops=("wave_pipelined", "wave_ping_pong", "wave_interleaved", "split_kv"),
    kernel_template="kernels/fmha_fwd.hip.j2",
    cache_template="kernels/fmha_cache.hip.j2",
    cache_copies=("direct",),
    cache_features=frozenset(
        {
            "kv_cache",
            "paged",
            "kv_dtype",
            "kv_dtype_many",
            "window",
            "mask_mod",
            "score_mod",
            "sink",
            "varlen",
            "max_logit",
        }
    ),
    float8_kind="fnuz",
    prelude_suffix=".h",
    lanes_per_warp=64,
    compute_units=304,
    shared_memory_per_block_bytes=65536,
    shared_memory_per_unit_bytes=65536,
    registers_per_block=131072,
    max_registers_per_thread=512,
    max_threads_per_block=1024,
    max_blocks_x=2**22 - 1,
    l2_bytes=256 * 2**20,
    head_dims=tuple(range(16, 257, 16)),
    head_dims_differ=True,
    p_roundings=("auto", "rtne", "rtna", "rtz_corrected"),
    features=frozenset({"window", "score_mod", "mask_mod", "sink", "varlen", "max_logit"}),
    sources=(
        ("compiler_arch", "LLVM, 'User Guide for AMDGPU Backend', processors"),
        ("lanes_per_warp", _ISA + ": wave64"),
        ("compute_units", _WHITEPAPER + ": MI300X has 8 XCDs of 38 CUs (MI300A: 6 of 38)"),
        ("shared_memory_per_block_bytes", _ISA + ", 'Local Data Share': 64 KB"),
        ("shared_memory_per_unit_bytes", _ISA + ", 'Local Data Share': 64 KB"),
        ("float8_kind", _ISA + ", 'FP8 and BF8': bias 8 and 16, 0x80 is NaN"),
        ("registers_per_block", _ISA + ": 512 VGPRs a lane on each of 4 SIMDs of 64 lanes"),
        ("max_registers_per_thread", _ISA + ": 256 architectural and 256 accumulation VGPRs"),
        ("max_threads_per_block", "LLVM, 'User Guide for AMDGPU Backend': flat work-group size"),
        ("max_blocks_x", "HIP: grid size times block size stays below 2^32 (1024 threads a block)"),
        ("l2_bytes", _WHITEPAPER + ": 256 MB Infinity Cache behind 4 MB of L2 an XCD"),
    ),
)
