"""Look at what was decided before any text exists, and at what the compilers made of it.

Run with `python examples/05_inspect_plan.py`. The same on the command line: `fmhagen explain` and
`fmhagen inspect`.
"""

from __future__ import annotations

import fmhagen
from fmhagen.compile import compile_source
from fmhagen.errors import CompilerNotFoundError


def main() -> None:
    """Print constants, parameter block, shared-memory map, grid, and resources."""
    spec = fmhagen.AttentionSpec(dtype="bf16", head_dim=128, causal=True)
    for target in fmhagen.TARGETS:
        plan = fmhagen.lower(spec, target=target.name)
        print(f"{plan.symbol}: {plan.threads} threads a block")
        blocks = plan.grid.blocks(
            plan.grid.tiles(seqlen_q=4096, heads=16, batch=2), target.compute_units
        )
        print(f"    grid {plan.grid}: {blocks} blocks for B=2 H=16 Sq=4096")

        print(f"    parameter block of {plan.params_bytes} bytes")
        for field in plan.params[:6]:
            print(
                f"        {field.offset_bytes:>4} {field.ctype:<10} {field.name}: {field.comment}"
            )

        limit = target.shared_memory_per_block_bytes
        print(f"    shared memory, {plan.shared_bytes} of {limit} bytes")
        for region in plan.shared:
            print(f"        {region.offset_bytes:>6} {region.size_bytes:>6}  {region.name}")

        try:
            binary = compile_source(fmhagen.emit(spec, target=target.name))
        except CompilerNotFoundError as error:
            print(f"    not compiled: {error}")
            continue
        print(f"    {binary.compiler}: {binary.kind} of {len(binary.image)} bytes")
        for name, value in binary.resources.to_dict().items():
            print(f"        {name} = {value}")
        assert binary.resources.clean  # no spills, no local memory
        print()


if __name__ == "__main__":
    main()
