"""The cache within one process: keys, corruption, fallbacks, locks."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest

from fmhagen.compile import Binary, Cache, CacheWarning, Resources, compile_source, default_cache
from fmhagen.compile import cache as cache_module
from fmhagen.compile import driver as driver_module
from fmhagen.compile import entry as entry_module
from fmhagen.compile.smoke import smoke_source
from fmhagen.compile.toolchain import Compiler, Job
from fmhagen.errors import CacheError

KEY = "a" * 64
OTHER_KEY = "b" * 64


def make_binary(image: bytes = b"image") -> Binary:
    """Return a binary that no compiler made."""
    return Binary(
        symbol="kernel",
        target="sm90",
        kind="cubin",
        image=image,
        path=None,
        compiler="fake 1.0",
        flags=("-a", "-b"),
        resources=Resources(
            registers=168,
            spill_bytes=0,
            stack_bytes=0,
            static_shared_bytes=1,
            dynamic_shared_bytes=2,
            max_threads=384,
        ),
        log="said nothing",
    )


class CountingBuild:
    """A build that counts its calls."""

    def __init__(self, image: bytes = b"image") -> None:
        self.image = image
        self.calls = 0

    def __call__(self, directory: Path) -> Binary:
        """Make the binary."""
        self.calls += 1
        return make_binary(self.image)


def test_second_call_reads_what_the_first_wrote(tmp_path: Path) -> None:
    """A hit returns the very record that was built, from another Cache too."""
    build = CountingBuild()
    first = Cache(tmp_path).get_or_build(KEY, build)
    second = Cache(tmp_path).get_or_build(KEY, build)
    assert build.calls == 1
    assert first == second
    assert first.path == tmp_path / KEY / "kernel.cubin"
    assert dataclasses.replace(second, path=None) == make_binary()


def truncate(directory: Path) -> None:
    image = directory / "kernel.cubin"
    image.write_bytes(image.read_bytes()[:-1])


def flip_a_bit(directory: Path) -> None:
    image = directory / "kernel.cubin"
    content = bytearray(image.read_bytes())
    content[0] ^= 1
    image.write_bytes(content)


def remove_image(directory: Path) -> None:
    (directory / "kernel.cubin").unlink()


def cut_sidecar(directory: Path) -> None:
    sidecar = directory / "entry.json"
    sidecar.write_bytes(sidecar.read_bytes()[:40])


def change_sidecar(directory: Path) -> None:
    sidecar = directory / "entry.json"
    fields = json.loads(sidecar.read_bytes())
    fields["resources"]["unheard_of"] = 1
    sidecar.write_text(json.dumps(fields))


def replace_sidecar_by_a_list(directory: Path) -> None:
    (directory / "entry.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip_a_bit,
        remove_image,
        cut_sidecar,
        change_sidecar,
        replace_sidecar_by_a_list,
    ],
)
def test_damaged_entry_is_built_again(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """Case B84: nothing is loaded whose digest does not vouch for it."""
    build = CountingBuild()
    cache = Cache(tmp_path)
    cache.get_or_build(KEY, build)
    damage(tmp_path / KEY)
    assert cache.get_or_build(KEY, build).image == b"image"
    assert build.calls == 2
    cache.get_or_build(KEY, build)
    assert build.calls == 2


def test_list_and_clear(tmp_path: Path) -> None:
    """`list` shows whole entries; `clear` removes all of them and nothing else."""
    cache = Cache(tmp_path)
    cache.get_or_build(OTHER_KEY, CountingBuild())
    cache.get_or_build(KEY, CountingBuild(b"longer image"))
    (tmp_path / ("c" * 64)).mkdir()  # what a killed build leaves
    (tmp_path / "notes.txt").write_text("not an entry")
    assert [(entry.key, entry.image_bytes) for entry in cache.list()] == [(KEY, 12), (OTHER_KEY, 5)]
    assert cache.clear() == 3
    assert cache.list() == ()
    assert (tmp_path / "notes.txt").exists()


def test_failed_build_leaves_no_entry(tmp_path: Path) -> None:
    """An error of the build passes through and is not remembered."""

    def fail(directory: Path) -> Binary:
        raise KeyError("mistake")

    cache = Cache(tmp_path)
    with pytest.raises(KeyError):
        cache.get_or_build(KEY, fail)
    assert cache.list() == ()
    assert cache.get_or_build(KEY, CountingBuild()).image == b"image"


def test_key_covers_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B88: text, flags, symbol, compiler and versions each lead to another entry."""
    compiler = Compiler(name="nvrtc", target="sm90", version="1", identity="nvrtc 1", path="x")
    paths = []

    def build(compiler: Compiler, job: Job) -> Binary:
        assert job.source_path.read_text() == job.source.text
        return make_binary()

    def compile_with(found: Compiler = compiler, **changes: object) -> None:
        options = {
            key: changes.pop(key) for key in ("architecture", "extra_flags") if key in changes
        }
        monkeypatch.setitem(
            driver_module._DRIVERS,
            "nvrtc",
            driver_module._Driver(target="sm90", detect=lambda: found, build=build),
        )
        source = dataclasses.replace(smoke_source("sm90"), **changes)  # type: ignore[arg-type]
        cache = Cache(tmp_path)
        paths.append(compile_source(source, cache=cache, **options).path)  # type: ignore[arg-type]

    compile_with()
    compile_with(text=smoke_source("sm90").text + "\n")
    compile_with(symbol="other")
    compile_with(dynamic_shared_bytes=1024)
    compile_with(architecture="sm_100a")
    compile_with(extra_flags=("-lineinfo",))
    compile_with(dataclasses.replace(compiler, identity="nvrtc 1 (other bytes)"))
    monkeypatch.setattr(driver_module, "package_version", lambda: "999")
    compile_with()
    assert len(set(paths)) == len(paths) == 8
    compile_with()
    assert paths[-1] == paths[-2]


def test_waiting_names_the_lock_file_then_gives_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Case B86: a long wait says which file it waits for, and ends in an error."""
    cache = Cache(tmp_path, lock_message_seconds=0.1, lock_timeout_seconds=0.4)
    lock_file = tmp_path / "locks" / f"{KEY}.lock"
    started = time.monotonic()
    with (
        filelock.FileLock(lock_file),
        caplog.at_level(logging.WARNING, logger="fmhagen"),
        pytest.raises(CacheError, match="another process has held") as caught,
    ):
        cache.get_or_build(KEY, CountingBuild())
    assert 0.4 <= time.monotonic() - started < 5
    assert str(lock_file) in str(caught.value)
    assert str(lock_file) in caplog.text
    assert cache.get_or_build(KEY, CountingBuild()).image == b"image"


def test_lock_file_that_stays_means_nothing(tmp_path: Path) -> None:
    """Case B86: a lock file of a process long dead does not delay anyone."""
    cache = Cache(tmp_path, lock_timeout_seconds=0)
    lock_file = tmp_path / "locks" / f"{KEY}.lock"
    lock_file.parent.mkdir(exist_ok=True)
    lock_file.write_text("4194304\n")
    assert cache.get_or_build(KEY, CountingBuild()).image == b"image"


def test_threads_build_once(tmp_path: Path) -> None:
    """Threads of one process exclude one another as processes do."""
    build = CountingBuild()
    caches = [Cache(tmp_path) for _ in range(2)]

    def slow(directory: Path) -> Binary:
        time.sleep(0.1)
        return build(directory)

    threads = [
        threading.Thread(target=caches[i % 2].get_or_build, args=(KEY, slow)) for i in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.calls == 1


def test_environment_variable_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FMHAGEN_CACHE_DIR decides where the default cache lies."""
    monkeypatch.setenv("FMHAGEN_CACHE_DIR", str(tmp_path / "deep" / "er"))
    assert default_cache().path == tmp_path / "deep" / "er"
    assert default_cache() is default_cache()
    assert (tmp_path / "deep" / "er").is_dir()


def test_file_in_place_of_the_directory(tmp_path: Path) -> None:
    """Case B90: a file stands where the directory should be: one warning, and all works."""
    blocked = tmp_path / "cache"
    blocked.write_text("a file")
    with pytest.warns(CacheWarning, match="cannot be used") as caught:
        cache = Cache(blocked)
    assert len(caught) == 1
    binary = cache.get_or_build(KEY, CountingBuild())
    assert str(blocked) in str(caught[0].message)
    assert cache.path is not None
    assert cache.path.stat().st_mode & 0o077 == 0
    assert binary.path is not None
    assert binary.path.is_relative_to(cache.path)
    assert [entry.key for entry in cache.list()] == [KEY]
    shutil.rmtree(cache.path)


def test_memory_when_nothing_is_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B90: with no temporary directory either, binaries stay in memory."""

    def refuse(*arguments: object, **options: object) -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    (tmp_path / "file").write_text("")
    build = CountingBuild()
    with pytest.warns(CacheWarning, match="in memory for this process"):
        cache = Cache(tmp_path / "file" / "cache")
    binaries = [cache.get_or_build(KEY, build) for _ in range(2)]
    assert binaries[0] is binaries[1]
    assert binaries[0].path is None
    assert build.calls == 1
    assert [entry.key for entry in cache.list()] == [KEY]
    assert cache.clear() == 1


def test_nvrtc_works_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVRTC needs no file, so it compiles where nothing can be written."""
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(tmp_path / "absent"))
    monkeypatch.setattr(cache_module, "_require_usable", _refuse)
    with pytest.warns(CacheWarning):
        cache = Cache(tmp_path)
    assert compile_source(smoke_source("sm90"), cache=cache).image.startswith(b"\x7fELF")


def _refuse(path: Path) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B90: a disk that fills up while publishing costs the cache, not the binary."""
    real = entry_module.write_atomically

    def write(path: Path, content: bytes) -> None:
        if path.is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, content)

    monkeypatch.setattr(entry_module, "write_atomically", write)
    build = CountingBuild()
    cache = Cache(tmp_path)
    with pytest.warns(CacheWarning, match="No space left"):
        binary = cache.get_or_build(KEY, build)
    assert binary.image == b"image"
    assert build.calls == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.get_or_build(KEY, build)
        cache.get_or_build(OTHER_KEY, build)
    assert build.calls == 2
    assert cache.path is not None
    shutil.rmtree(cache.path)


def test_home_that_does_not_exist_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case B90: HOME names nothing: no directory is made for it."""
    monkeypatch.delenv("FMHAGEN_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "absent"))
    assert cache_module.default_path() is None
    with pytest.warns(CacheWarning, match="no home directory"):
        cache = Cache()
    assert cache.get_or_build(KEY, CountingBuild()).image == b"image"
    assert not (tmp_path / "absent").exists()


def test_compilers_get_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home, zig is told where its own cache may lie."""
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    environment = cache_module.tool_environment(tmp_path)
    assert environment["ZIG_GLOBAL_CACHE_DIR"] == str(tmp_path / "zig")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "ZIG_GLOBAL_CACHE_DIR" not in cache_module.tool_environment(tmp_path)
