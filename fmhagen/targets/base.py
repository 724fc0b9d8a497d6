"""Target: the frozen facts of one chip, each with its unit in the name and its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Facts of one chip that decisions are made from.

    Attributes:
        name: canonical name, as in `--target`.
        chips: products that this target covers.
        aliases: other spellings that select it.
        compiler_arch: what the compiler is told.
        symbol_suffix: last part of a kernel's symbol.
        file_suffix: suffix of an emitted file.
        language: "CUDA C++" or "HIP C++".
        prelude: folder of the chip's prelude under `templates/prelude`.
        main_loops: the main loops that its prelude serves, the usual one first.
        kernel_template: skeleton under `templates/kernels` of the forward kernel.
        cache_template: the same of the kernels over a key/value cache; "" where there are none.
        prelude_suffix: suffix of the prelude's files.
        lanes_per_warp: threads of a warp or wave.
        compute_units: SMs or CUs of the reference product.
        shared_memory_per_block_bytes: most shared memory (LDS) that one block can have.
        shared_memory_per_unit_bytes: shared memory of a compute unit; 0 where nothing asks for it.
        shared_memory_reserved_bytes: what each block takes of it besides what it asks for.
        registers_per_block: 32-bit registers that one block can have.
        max_registers_per_thread: most registers that one thread can have.
        max_threads_per_block: most threads of one block.
        max_blocks_x: most blocks in the first grid dimension.
        l2_bytes: last cache that all compute units share.
        sources: for each fact, where it is stated.
        head_dims: head dims that its kernels take.
        head_dims_differ: whether `head_dim_v` may differ from `head_dim`.
        p_roundings: roundings of P that its kernels know.
        features: what its kernels do beyond plain and causal attention: "window", "score_mod",
            "mask_mod", "sink", "varlen", "max_logit", "paged".
        cache_features: the same of its kernels over a key/value cache: "kv_cache", "paged", ...
        cache_copies: how these can load K and V, see `schedule.Copy`.
        float8_kind: "" for the 8-bit floats of OCP, "fnuz" for those without infinities and -0.
    """

    name: str
    chips: tuple[str, ...]
    aliases: tuple[str, ...]
    compiler_arch: str
    symbol_suffix: str
    file_suffix: str
    language: str
    prelude: str
    main_loops: tuple[str, ...]
    kernel_template: str
    prelude_suffix: str
    lanes_per_warp: int
    compute_units: int
    shared_memory_per_block_bytes: int
    registers_per_block: int
    max_registers_per_thread: int
    max_threads_per_block: int
    max_blocks_x: int
    l2_bytes: int
    sources: tuple[tuple[str, str], ...]
    head_dims: tuple[int, ...] = (64, 128)
    head_dims_differ: bool = False
    p_roundings: tuple[str, ...] = ("auto", "rtne")
    features: frozenset[str] = frozenset()
    cache_features: frozenset[str] = frozenset()
    cache_template: str = ""
    cache_copies: tuple[str, ...] = ()
    float8_kind: str = ""
    shared_memory_per_unit_bytes: int = 0
    shared_memory_reserved_bytes: int = 0
