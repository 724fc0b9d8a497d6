"""Templates as byte code on disk, so that a process need not compile what another one has.

    <cache>/templates/<versions>/<template>     SHA-256 of what follows, then Jinja's byte code

`<versions>` stands for all that decides what is made of a template's text: Jinja, the interpreter
and the environment's options. Jinja stores a digest of the text with the byte code, so a template
that was edited is compiled again. Files are renamed into place and checked when read: a reader sees
a whole one or compiles for itself. Nothing here is ever an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

_DIGEST_BYTES = hashlib.sha256().digest_size


class ByteCode(jinja2.BytecodeCache):
    """Jinja's byte code below a directory.

    Args:
        directory: where; it need not exist.
        options: what the environment was made with, as text.
    """

    def __init__(self, directory: Path, options: str) -> None:  # noqa: D107 (described above)
        versions = repr((jinja2.__version__, importlib.util.MAGIC_NUMBER, options))
        self._directory = directory / hashlib.sha256(versions.encode()).hexdigest()[:16]

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill a bucket, if there is a whole file of this template's text."""
        with contextlib.suppress(OSError):
            content = (self._directory / bucket.key).read_bytes()
            digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if hashlib.sha256(code).digest() == digest:
                bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write a bucket, where that is possible."""
        code = bucket.bytecode_to_string()
        with contextlib.suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._directory, prefix=".")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(hashlib.sha256(code).digest() + code)
                os.replace(temporary, self._directory / bucket.key)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
