"""The calls that NVRTC and hipRTC share: the same names after a prefix, the same tuples back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fmhagen.compile.toolchain import Job
from fmhagen.errors import CompileError


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCompiler:
    """One run-time compiler's Python binding.

    Attributes:
        module: the binding, with functions such as `nvrtcCompileProgram`.
        prefix: what its functions begin with: "nvrtc" or "hiprtc".
        image: how it calls the image in its functions: "CUBIN" or "Code".
        destroys_by_reference: whether the destructor takes a pointer to the program.
        clean_log: makes a log's paths those of the source on disk.
    """

    module: ModuleType
    prefix: str
    image: str
    destroys_by_reference: bool
    clean_log: Callable[[str], str]

    def version(self) -> tuple[int, int]:
        """Return the major and minor version.

        Raises:
            CompileError: the library does not answer.
        """
        major, minor = self._call("Version")
        return major, minor

    def compile(self, job: Job) -> tuple[bytes, str]:
        """Compile a job's text under the name of its file; return image and log.

        Raises:
            CompileError: the compiler refused the text; carries its log.
        """
        path = str(job.source_path)
        text = job.source.text.encode()
        try:
            (program,) = self._call("CreateProgram", text, path.encode(), 0, None, None)
            try:
                return self._compile(program, job)
            finally:
                self._call(
                    "DestroyProgram", program.createRef() if self.destroys_by_reference else program
                )
        except CompileError as error:
            if error.path is not None:
                raise
            raise CompileError(str(error), path=path) from error

    def _compile(self, program: object, job: Job) -> tuple[bytes, str]:
        """Compile a program that exists."""
        options = [flag.encode() for flag in job.flags]
        refusal: CompileError | None = None
        try:
            self._call("CompileProgram", program, len(options), options)
        except CompileError as error:
            refusal = error
        text = self._read("ProgramLog", program).rstrip(b"\0").decode(errors="replace")
        log = self.clean_log(text).strip()
        if refusal is not None:
            raise CompileError(str(refusal), log=log, path=str(job.source_path)) from refusal
        return self._read(self.image, program), log

    def _read(self, what: str, program: object) -> bytes:
        """Read the log or the image of a program."""
        (size,) = self._call(f"Get{what}Size", program)
        buffer = bytearray(size)
        if size:
            self._call(f"Get{what}", program, buffer)
        return bytes(buffer)

    def _call(self, name: str, *arguments: object) -> tuple[Any, ...]:
        """Call one function and return what follows its status.

        Raises:
            CompileError: the status is not success.
        """
        status, *values = getattr(self.module, self.prefix + name)(*arguments)
        if int(status) != 0:
            raise CompileError(f"{self.prefix}{name}: {status.name}")
        return tuple(values)
