"""Every error that fmhagen raises on purpose: one class for each user mistake.

    FmhagenError
    |-- UnsupportedSpecError   (ValueError)      a field's value is not supported by a target
    |-- InvalidSpecError       (ValueError)      a field's value has no meaning
    |-- ScheduleError          (ValueError)      a schedule does not fit the spec or the chip
    |-- UnknownTargetError     (ValueError)      a target name that nothing answers to
    |-- TraceError             (ValueError)      a mask or score function that no kernel can compute
    |-- TemplateError          (RuntimeError)    a template failed; a defect of fmhagen
    |-- TensorError            (ValueError)      a tensor's shape, dtype, stride or device
    |-- UnsupportedArgumentError (ValueError)    an argument of another library's function
    |-- PagingError            (ValueError)      an argument of the paged cache means nothing
    |-- OutOfPagesError        (RuntimeError)    the paged cache is full; nothing was changed
    |-- CompileError           (RuntimeError)    a compiler refused the source; carries the log
    |   `-- CompilerNotFoundError                no compiler for the target is installed
    |-- SpillError             (RuntimeError)    the binary spills registers or uses scratch
    |-- CacheError             (RuntimeError)    the cache is locked for too long or unusable
    |-- RuntimeUnavailableError (RuntimeError)   no device, driver or vendor package
    |-- LaunchError            (RuntimeError)    the driver refused a launch
    |-- CaptureError           (RuntimeError)    a cold call inside graph capture
    `-- EmulatorError          (RuntimeError)    the emulator found a fault in a kernel

Errors about a value are built by `refusal`, which states field, value, limit and the nearest
thing that works; `to_dict` gives the same as data.
"""

from __future__ import annotations


class FmhagenError(Exception):
    """The base class of every error that fmhagen raises on purpose."""

    def to_dict(self) -> dict[str, object]:
        """Return the error as JSON-ready data: its kind and its message."""
        return {"error": type(self).__name__, "message": str(self)}


class _FieldError(FmhagenError, ValueError):
    """An error about the value of one named field."""

    def __init__(
        self, field: str, value: object, limit: str, suggestion: str | None = None
    ) -> None:
        self.field = field
        self.value = value
        self.limit = limit
        self.suggestion = suggestion
        text = f"{field}={value!r}: {limit}"
        super().__init__(f"{text}; {suggestion}" if suggestion else text)

    def __reduce__(self) -> tuple[type[_FieldError], tuple[object, ...]]:
        return type(self), (self.field, self.value, self.limit, self.suggestion)

    def to_dict(self) -> dict[str, object]:
        """Return field, value, limit and suggestion beside the message."""
        return {
            **FmhagenError.to_dict(self),
            "field": self.field,
            "value": self.value if isinstance(self.value, int | float | bool) else str(self.value),
            "limit": self.limit,
            "suggestion": self.suggestion,
        }


class InvalidSpecError(_FieldError):
    """A field of a spec has a value that means nothing on any chip."""


class UnsupportedSpecError(_FieldError):
    """A field of a spec has a meaningful value that this target does not support yet."""


class ScheduleError(_FieldError):
    """A schedule does not fit the spec or the chip."""


class UnknownTargetError(_FieldError):
    """No target answers to that name."""


class TensorError(_FieldError):
    """A tensor argument has a wrong shape, dtype, stride, alignment or device."""


class PagingError(_FieldError):
    """An argument of the paged cache means nothing: an unknown sequence, a negative count."""


class OutOfPagesError(FmhagenError, RuntimeError):
    """The paged cache has too few free pages for a request, which changed nothing.

    Attributes:
        needed: pages that the request would have taken.
        available: pages that are free or hold only unreferenced prefixes.
        total: pages of the cache.
    """

    def __init__(self, needed: int, available: int, total: int, sequences: int) -> None:
        """State what was needed and what there is."""
        self.needed = needed
        self.available = available
        self.total = total
        self.sequences = sequences
        super().__init__(
            f"{needed} pages are needed and {available} of {total} are available, the others"
            f" are held by {sequences} sequences; nothing was changed; free or truncate a sequence,"
            " or make the cache larger"
        )

    def __reduce__(self) -> tuple[type[OutOfPagesError], tuple[int, ...]]:  # noqa: D105
        return type(self), (self.needed, self.available, self.total, self.sequences)

    def to_dict(self) -> dict[str, object]:
        """Return the counts of pages beside the message."""
        return {
            **FmhagenError.to_dict(self),
            "needed": self.needed,
            "available": self.available,
            "total": self.total,
            "sequences": self.sequences,
        }


class TraceError(FmhagenError, ValueError):
    """A mask or score function asks for what no kernel can compute.

    Attributes:
        path: file of the user's function.
        line: line in it.
        suggestion: what works instead, or None.
    """

    def __init__(
        self, message: str, *, path: str, line: int, suggestion: str | None = None
    ) -> None:
        """Put the place before the message, and what works after it."""
        self.reason = message
        self.path = path
        self.line = line
        self.suggestion = suggestion
        text = f"{path}:{line}: {message}"
        super().__init__(f"{text}; {suggestion}" if suggestion else text)

    def __reduce__(self) -> tuple[object, ...]:  # noqa: D105
        return _trace_error, (self.reason, self.path, self.line, self.suggestion)

    def to_dict(self) -> dict[str, object]:
        """Return place and suggestion beside the message."""
        return {
            **FmhagenError.to_dict(self),
            "path": self.path,
            "line": self.line,
            "suggestion": self.suggestion,
        }


def _trace_error(message: str, path: str, line: int, suggestion: str | None) -> TraceError:
    return TraceError(message, path=path, line=line, suggestion=suggestion)


class UnsupportedArgumentError(_FieldError):
    """A front end does not support an argument of the function that it stands in for."""


class TemplateError(FmhagenError, RuntimeError):
    """A template could not be rendered: a defect of fmhagen, not of its caller.

    Attributes:
        plan: the whole plan as text, which is too long for the message; "" if there was none.
    """

    def __init__(self, message: str, *, plan: str = "") -> None:
        """Keep the plan beside the message."""
        self.plan = plan
        super().__init__(message)

    def to_dict(self) -> dict[str, object]:
        """Return the plan beside the message."""
        return {**FmhagenError.to_dict(self), "plan": self.plan}


class CompileError(FmhagenError, RuntimeError):
    """A compiler refused a generated source.

    Attributes:
        log: what the compiler printed.
        path: where the source that it was given lies, or None.
    """

    def __init__(self, message: str, *, log: str = "", path: str | None = None) -> None:
        """Join the message, the source's path and the compiler's log into one text."""
        self.log = log
        self.path = path
        parts = [message]
        if path:
            parts.append(f"source: {path}")
        if log:
            parts.append(log.rstrip())
        super().__init__("\n".join(parts))

    def to_dict(self) -> dict[str, object]:
        """Return log and path beside the message."""
        return {**FmhagenError.to_dict(self), "log": self.log, "path": self.path}


class CompilerNotFoundError(CompileError):
    """No compiler for the target is installed; the message says what to install."""


class SpillError(FmhagenError, RuntimeError):
    """A binary spills registers or uses scratch, so it is not the kernel that was meant."""


class CacheError(FmhagenError, RuntimeError):
    """The cache of binaries cannot be used, or another process holds its lock for too long."""


class RuntimeUnavailableError(FmhagenError, RuntimeError):
    """There is no such device, driver or vendor package here."""


class LaunchError(FmhagenError, RuntimeError):
    """A driver refused to load or launch a kernel."""


class CaptureError(FmhagenError, RuntimeError):
    """A kernel was called for the first time inside graph capture."""


class EmulatorError(FmhagenError, RuntimeError):
    """The emulator found a fault in a kernel: a race, a deadlock, a bad address.

    Attributes:
        kind: the fault's short name, such as "race", "deadlock" or "out_of_bounds".
    """

    def __init__(self, message: str, *, kind: str = "fault") -> None:
        """Keep the fault's kind beside its message."""
        self.kind = kind
        super().__init__(message)

    def to_dict(self) -> dict[str, object]:
        """Return the fault's kind beside the message."""
        return {**FmhagenError.to_dict(self), "kind": self.kind}
