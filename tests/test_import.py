"""`import fmhagen` is quick and touches neither a driver nor a vendor's package."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
LIMIT_SECONDS = 0.3


def run(code: str) -> str:
    done = subprocess.run(
        (sys.executable, "-c", code), cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_import_touches_no_vendor_package() -> None:
    modules = run(
        "import sys, fmhagen\nfmhagen.AttentionSpec(causal=True)\nprint('\\n'.join(sys.modules))"
    ).split()
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & {"cuda", "hip", "rocm", "torch", "cupy", "ziglang", "numpy", "jax"}


def test_the_command_line_touches_no_vendor_package() -> None:
    modules = run("import sys, fmhagen.cli\nprint('\\n'.join(sys.modules))").split()
    roots = {name.partition(".")[0] for name in modules}
    assert not roots & {"cuda", "hip", "rocm", "torch", "cupy", "numpy", "jax"}


def test_import_is_quick() -> None:
    def seconds(code: str) -> float:
        started = time.perf_counter()
        run(code)
        return time.perf_counter() - started

    # The best of several, without what the interpreter itself takes: other tests share the cores.
    assert (
        min(seconds("import fmhagen") for _ in range(5)) - min(seconds("pass") for _ in range(5))
        < LIMIT_SECONDS
    )


def test_every_public_name_resolves() -> None:
    import fmhagen

    for name in fmhagen.__all__:
        assert getattr(fmhagen, name) is not None
