"""Facts of NVIDIA Hopper (H100, H200), compute capability 9.0."""

from __future__ import annotations

from fmhagen.targets.base import Target

_PROGRAMMING_GUIDE = "CUDA C++ Programming Guide, 'Compute Capabilities', technical specifications"

SM90 = Target(
    name="sm90",
    chips=("H100", "H200"),
    aliases=("sm90a", "sm_90", "sm_90a", "90", "90a", "9.0", "9.0a", "compute_90a", "h100", "h200"),
    compiler_arch="sm_90a",
    symbol_suffix="sm90a",
    file_suffix=".cu",
    language="CUDA C++",
    prelude="sm90",
    main_loops=("warp_specialised", "split_kv"),
    head_dims=tuple(range(16, 257, 16)),
    head_dims_differ=True,
    kernel_template="kernels/fmha_fwd.cu.j2",
    cache_template="kernels/fmha_cache.cu.j2",
    cache_copies=("bulk", "gather"),
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
    prelude_suffix=".cuh",
    features=frozenset(("window", "score_mod", "mask_mod", "sink", "varlen", "max_logit")),
    lanes_per_warp=32,
    compute_units=132,
    shared_memory_per_block_bytes=232448,
    shared_memory_per_unit_bytes=233472,
    shared_memory_reserved_bytes=1024,
    registers_per_block=65536,
    max_registers_per_thread=255,
    max_threads_per_block=1024,
    max_blocks_x=2**31 - 1,
    l2_bytes=50 * 2**20,
    sources=(
        ("compiler_arch", "PTX ISA, 'Target-specific features': wgmma and setmaxnreg need sm_90a"),
        ("lanes_per_warp", _PROGRAMMING_GUIDE),
        ("compute_units", "NVIDIA H100 Tensor Core GPU Architecture whitepaper: SXM5 has 132 SMs"),
        ("shared_memory_per_block_bytes", _PROGRAMMING_GUIDE + ": 227 KB"),
        ("registers_per_block", _PROGRAMMING_GUIDE + ": 64 K"),
        ("max_registers_per_thread", _PROGRAMMING_GUIDE),
        ("shared_memory_per_unit_bytes", _PROGRAMMING_GUIDE + ": 228 KB"),
        ("shared_memory_reserved_bytes", "CUDA C++ Programming Guide, 'Compute Capability 9.0'"),
        ("max_threads_per_block", _PROGRAMMING_GUIDE),
        ("max_blocks_x", _PROGRAMMING_GUIDE),
        ("l2_bytes", "NVIDIA H100 Tensor Core GPU Architecture whitepaper: 50 MB"),
    ),
)
