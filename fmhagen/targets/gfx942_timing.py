"""Timing of CDNA 3 instructions for the static model of a main loop; numbers with sources."""

from __future__ import annotations

from fmhagen.targets.timing import Kind, Timing

_CALCULATOR = "ROCm amd_matrix_instruction_calculator, architecture cdna3, 'Execution cycles'"
_ISA = "AMD Instinct MI300 Instruction Set Architecture Reference Guide (CDNA 3)"

TIMING = Timing(
    name="gfx942",
    simds=4,
    compute_units=304,
    clock_ghz=1.2,
    matrix_flops=32 * 32 * 8 * 2,
    # The first pattern that matches a mnemonic at its start decides: (pattern, kind, clocks).
    instructions=(
        (r"v_mfma_f32_32x32x(8|16)_?(bf16|f16|fp8|bf8)", Kind.MATRIX, 32),
        (r"v_mfma_f32_16x16x(16|32)_?(bf16|f16|fp8|bf8)", Kind.MATRIX, 16),
        (r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", Kind.TRANSCENDENTAL, 16),
        (r"v_(mul_lo|mul_hi|mad_u64|mad_i64)_", Kind.VECTOR, 16),
        (r"v_accvgpr", Kind.REGISTER_MOVE, 4),
        (r"v_", Kind.VECTOR, 4),
        (r"ds_read_b128", Kind.LDS, 8),
        (r"ds_read_b64", Kind.LDS, 4),
        (r"ds_write_b128", Kind.LDS, 8),
        (r"ds_write_b64", Kind.LDS, 4),
        (r"ds_", Kind.LDS, 4),
        (r"(buffer|global|flat)_load", Kind.LOAD, 4),
        (r"(buffer|global|flat)_(store|atomic)", Kind.LOAD, 4),
        (r"scratch_", Kind.LOAD, 4),
        (r"s_waitcnt", Kind.WAIT, 4),
        (r"s_barrier", Kind.BARRIER, 4),
        (r"s_nop", Kind.IDLE, 4),
        (r"s_setprio", Kind.PRIORITY, 4),
        (r"s_c?branch", Kind.BRANCH, 4),
        (r"s_load|s_buffer_load", Kind.SCALAR_LOAD, 4),
        (r"s_", Kind.SCALAR, 4),
    ),
    issue_clk=4,
    branch_clk=16,
    lds_latency_clk=96,
    load_latency_clk=700,
    barrier_clk=16,
    sources=(
        ("matrix clocks", _CALCULATOR),
        ("vector clocks", _ISA + ": 16 lanes a clock, so 4 clocks a wave; packed fp32 the same"),
        ("transcendental clocks", "a quarter of the vector rate; not published for this chip"),
        ("LDS clocks", _ISA + ", 'Local Data Share': 128 bytes a clock"),
        ("lds_latency_clk, load_latency_clk, branch_clk, barrier_clk", "assumed"),
        ("clock_ghz", "clock of published GEMM measurements at full power, 1.12 to 1.21 GHz"),
    ),
)
