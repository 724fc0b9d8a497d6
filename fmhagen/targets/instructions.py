"""Classes of machine instructions by mnemonic, for counting them in a disassembly."""

from __future__ import annotations

# The first pattern (a regular expression, matched at the start) that fits gives the class.
_CLASSES: dict[str, tuple[tuple[str, str], ...]] = {
    "sm90": (
        (r"HGMMA|QGMMA|HMMA|IGMMA", "matrix"),
        (r"MUFU", "transcendental"),
        (r"F2FP|F2F|I2F|F2I|I2I", "convert"),
        (r"FFMA|FADD|FMUL|FMNMX|FSEL|FSET|FCHK|HFMA2|HADD2|HMUL2|DADD|DMUL|DFMA", "float"),
        (r"UTMA|UBLKCP", "tensor copy"),
        (r"SYNCS|BAR|WARPGROUP|WARPSYNC|DEPBAR|MEMBAR|FENCE|ERRBAR|NANOSLEEP", "synchronise"),
        (r"LDS|STS|LDSM|ATOMS", "shared memory"),
        (r"LDG|STG|LD\b|ST\b|ATOM|RED", "global memory"),
        (r"LDL|STL", "local memory"),
        (r"LDC|ULDC", "constant"),
        (r"SHFL|VOTE|REDUX|MATCH|MOVM|PRMT|R2UR|ELECT|S2R|S2UR|CS2R", "lane and register moves"),
        (r"BRA|BRX|JMP|CALL|RET|EXIT|BSSY|BSYNC|BREAK|YIELD|NOP|USETMAXREG|KILL", "control"),
    ),
    "gfx942": (
        (r"v_mfma|v_smfmac", "matrix"),
        (r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", "transcendental"),
        (r"v_cvt_|v_pack_|v_perm_", "convert"),
        (r"v_(pk_)?(fma|fmac|add|sub|mul|max3?|min3?|mad)_f", "float"),
        (r"buffer_load.*lds", "copy to LDS"),
        (
            r"ds_(bpermute|permute|swizzle)|v_.*_dpp|v_readlane|v_writelane|v_readfirstlane",
            "lane and register moves",
        ),
        (r"v_accvgpr|v_mov_|v_swap", "lane and register moves"),
        (r"ds_", "shared memory"),
        (r"scratch_", "local memory"),
        (r"buffer_|global_|flat_", "global memory"),
        (r"s_load|s_buffer", "constant"),
        (r"s_waitcnt|s_barrier|s_sleep|s_setprio", "synchronise"),
        (r"s_nop", "idle"),
        (r"s_c?branch|s_endpgm|s_setpc|s_swappc|s_getpc|s_call|s_trap", "control"),
    ),
}
OTHER_CLASS = "integer and address"


def instruction_classes(target_name: str) -> tuple[tuple[str, str], ...]:
    """Return (pattern, class) pairs of a target, in order; no match means `OTHER_CLASS`."""
    return _CLASSES[target_name]
