"""The HIP backend against the real libamdhip64, where it can be loaded: see hip_library.py.

On this machine if it has ROCm and no AMD GPU; else in the root directory that `.ci/run` makes, or
the one that FMHAGEN_HIPRTC_ROOT names.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
CHECKS = ("calls", "signatures", "symbols", "codes", "errors")


def root_directory() -> Path | None:
    """Return a root directory with the library, if there is one that this user may enter."""
    named = os.environ.get("FMHAGEN_HIPRTC_ROOT")
    root = Path(named) if named else REPOSITORY / "build" / "ci" / "hiprtc-root"
    return root if (root / ".fmhagen-hiprtc-root").is_file() and os.geteuid() == 0 else None


def has_library() -> bool:
    """Return whether libamdhip64 and its bindings are installed here."""
    if importlib.util.find_spec("rocm") is None:
        return False
    code = "from rocm.bindings import hip; hip.hipInit(0)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_the_backend_and_the_library_agree() -> None:
    root = root_directory()
    if has_library():
        command = [sys.executable, str(REPOSITORY / "tests" / "hip_library.py")]
    elif root is not None:
        command = [str(REPOSITORY / ".ci" / "hip-library"), str(root)]
    else:
        pytest.skip(
            "libamdhip64 is not here; as root, .ci/hiprtc-root DIR makes a directory with it"
            " and FMHAGEN_HIPRTC_ROOT names it"
        )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line.split()[1].rstrip(":") for line in done.stdout.splitlines()]
    assert dict.fromkeys(passed) == dict.fromkeys(CHECKS), done.stdout
