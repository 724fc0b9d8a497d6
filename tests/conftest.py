"""Shared by all tests: one cache of binaries a session, and no gpu test where there is no GPU."""

import functools
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import hypothesis
import pytest

CACHE_VARIABLE = "FMHAGEN_CACHE_DIR"

# For `import scripts`; last, so that an installed fmhagen is tested rather than the checkout.
sys.path.append(str(Path(__file__).resolve().parent.parent))

# Derandomised: the same examples in every run, so that a red test stays red.
hypothesis.settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, print_blob=True
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


def pytest_configure(config: pytest.Config) -> None:
    """Give the session a cache of its own, unless the user named one; workers inherit it."""
    if CACHE_VARIABLE not in os.environ:
        directory = tempfile.mkdtemp(prefix="fmhagen-tests-")
        os.environ[CACHE_VARIABLE] = directory
        config.add_cleanup(lambda: _remove_cache(Path(directory)))


def _remove_cache(directory: Path) -> None:
    os.environ.pop(CACHE_VARIABLE, None)
    shutil.rmtree(directory, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip gpu tests, with the reason, where they cannot run."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    reason = missing_gpu() if marked else None
    if reason is not None:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=reason))


@functools.cache
def missing_gpu() -> str | None:
    """Return why tests marked gpu cannot run here, or None."""
    try:
        with warnings.catch_warnings(action="ignore"):
            import torch
    except ImportError:
        return "needs PyTorch, which is not installed"
    if not torch.cuda.is_available() or torch.version.hip:
        return "needs an NVIDIA GPU, and there is none"
    from fmhagen.errors import FmhagenError
    from fmhagen.runtime.devices import gpu_backend
    from fmhagen.runtime.tensors import Memory

    try:
        gpu_backend(Memory.CUDA).require("sm90")
    except FmhagenError as error:
        return str(error)
    return None
