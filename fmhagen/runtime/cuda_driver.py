"""The driver's manners: error codes as exceptions, and contexts that come back."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from fmhagen.errors import LaunchError, RuntimeUnavailableError


def check(driver: Any, call: str, result: tuple[Any, ...]) -> Any:
    """Return what a driver call gave beside its error code: nothing, one value, or a tuple.

    Raises:
        LaunchError: the code is not success; the text names the call and the driver's reason.
    """
    code, *values = result
    if int(code) != 0:
        raise LaunchError(f"{call}: {describe(driver, code)}")
    return values[0] if len(values) == 1 else tuple(values)


def describe(driver: Any, code: Any) -> str:
    """Return an error code with the driver's own words for it."""
    _, text = driver.cuGetErrorString(code)
    words = text.decode() if isinstance(text, bytes) else str(text)
    return f"{getattr(code, 'name', code)} ({words})"


@contextlib.contextmanager
def entered(driver: Any, context: Any) -> Iterator[None]:
    """Make a context current, and the caller's again at the end."""
    check(driver, "cuCtxPushCurrent", driver.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        check(driver, "cuCtxPopCurrent", driver.cuCtxPopCurrent())


def import_driver() -> Any:
    """Return `cuda.bindings.driver`.

    Raises:
        RuntimeUnavailableError: the package is not here.
    """
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise RuntimeUnavailableError(
            f"cuda-python is not here ({error}); install fmhagen[cuda]"
        ) from error
