"""Plant faults in emitted files and watch the emulator name them.

Run with `python examples/06_races.py`. On a GPU each of these faults may pass unseen for months:
it shows only when the timing is bad. The emulator reports it whatever the timing.
"""

from __future__ import annotations

import dataclasses
import re

import fmhagen
from fmhagen.checking.verification import Case, random_tensors
from fmhagen.compile import compile_source
from fmhagen.errors import EmulatorError
from fmhagen.instance import Instance
from fmhagen.runtime.calls import Calls
from fmhagen.runtime.emulator_backend import EmulatorBackend, EmulatorOptions
from fmhagen.runtime.launcher import Launcher

CASE = Case(batch=1, heads=1, heads_kv=1, seqlen_q=200, seqlen_k=300)

# What goes wrong, the target, what is replaced in the kernel's text, and what it becomes.
FAULTS = (
    ("nothing: the file as it is emitted", "sm90", "", ""),
    ("nobody waits for V", "sm90", r"wait_full<STAGES>\(smem \+ V_FULL\b[^;]*;", ""),
    ("S is read while wgmma still writes it", "sm90", r"^ +wgmma_wait<1>\(\);\n", ""),
    ("a consumer never gives K back", "sm90", r"^ +release<STAGES>\(smem \+ K_EMPTY\b.*\n", ""),
    ("nothing: the file as it is emitted", "gfx942", "", ""),
    ("the waves do not meet", "gfx942", r"^ +block_barrier\(\);\n", ""),
    ("nobody waits for the LDS", "gfx942", r"^ +wait_lds\(\);\n", ""),
)


def run(instance: Instance, pattern: str, replacement: str, seed: int) -> None:
    """Run an instance on the emulator after an edit of its text; raises what the emulator finds."""
    source = instance.source()
    if pattern:
        text, count = re.subn(pattern, replacement, source.text, flags=re.MULTILINE)
        assert count, f"{pattern!r} is not in {source.filename}"
        source = dataclasses.replace(source, text=text)
    launcher = Launcher(
        instance.plan(),
        EmulatorBackend(EmulatorOptions(seed=seed)),
        lambda: compile_source(source, for_emulator=True, host_optimisation="O0"),
    )
    calls = Calls(instance.spec, lambda _: launcher)
    calls(*random_tensors(instance.spec, CASE), return_lse=True)


def main() -> None:
    """Run every faulty file with a few seeds and print the diagnosis."""
    spec = fmhagen.AttentionSpec(dtype="bf16", head_dim=64)
    for title, target, pattern, replacement in FAULTS:
        instance = Instance.of(spec, fmhagen.find_target(target))
        print(f"{target}: {title}")
        found = 0
        for seed in range(3):
            try:
                run(instance, pattern, replacement, seed)
            except EmulatorError as error:
                found += 1
                if found == 1:
                    for line in str(error).splitlines()[:4]:  # a deadlock lists every warp
                        print(f"    {line}")
        print(f"    found with {found} of 3 seeds\n")
        assert found == (3 if pattern else 0)


if __name__ == "__main__":
    main()
