"""The cache among real processes: races, kills, missing homes, unwritable directories."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fmhagen.compile import nvrtc

REPOSITORY = Path(__file__).parent.parent

# What each process runs before its own lines: a fake compilation that is slow enough to collide.
PREAMBLE = """
import json, os, random, sys, time, warnings
from pathlib import Path
from fmhagen.compile import Binary, Cache, Resources, compile_source, default_cache
from fmhagen.compile.smoke import smoke_source

def binary_of(key):
    resources = Resources(registers=1, spill_bytes=0, stack_bytes=0, static_shared_bytes=0,
                          dynamic_shared_bytes=0)
    return Binary(symbol="k" + key[:4], target="sm90", kind="cubin", image=key.encode() * 4096,
                  path=None, compiler="fake 1", flags=(), resources=resources, log="")
"""


def environment(**changes: str | None) -> dict[str, str]:
    """Return this process's environment with changes; None removes a variable."""
    merged = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONDONTWRITEBYTECODE": "1",
        **changes,
    }
    return {name: value for name, value in merged.items() if value is not None}


def start(code: str, *arguments: str, **changes: str | None) -> subprocess.Popen[str]:
    """Start a Python process that runs the preamble and some lines."""
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**changes),
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a process that must succeed and return what it printed."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


def wait_for(path: Path) -> None:
    """Wait until a process has made a file."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was never made"
        time.sleep(0.01)


RANK = """
    directory, start_file, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    keys = [format(i, "064x") for i in range(8)]
    cache = Cache(directory)
    Path(str(start_file) + f".{rank}").touch()
    while not start_file.exists():
        time.sleep(0.001)

    def build(directory):
        key = directory.name
        with open(directory / "builds.txt", "a") as file:
            file.write("built\\n")
        time.sleep(0.01)
        return binary_of(key)

    for repeat in range(50):
        order = keys[:]
        random.Random(f"{rank} {repeat}").shuffle(order)
        for key in order:
            found = cache.get_or_build(key, build)
            assert found.image == key.encode() * 4096, "wrong image"
            assert found.path.read_bytes() == found.image
    print("done")
"""


@pytest.mark.parametrize("kill_one", [False, True], ids=["all_live", "one_killed"])
def test_eight_processes_build_each_entry_once(tmp_path: Path, kill_one: bool) -> None:
    """Case B84: 8 processes, one empty cache, the same 8 keys 50 times, one killed at random."""
    cache, start_file = tmp_path / "cache", tmp_path / "start"
    ranks = [start(RANK, str(cache), str(start_file), str(rank)) for rank in range(8)]
    for rank in range(8):
        wait_for(Path(f"{start_file}.{rank}"))
    start_file.touch()
    if kill_one:
        time.sleep(0.03)
        ranks[3].send_signal(signal.SIGKILL)
        ranks[3].communicate()
        ranks.pop(3)
    assert [finish(rank).strip() for rank in ranks] == ["done"] * len(ranks)
    entries = sorted(child for child in cache.iterdir() if len(child.name) == 64)
    assert len(entries) == 8
    builds = [(entry / "builds.txt").read_text().count("built") for entry in entries]
    assert max(builds) <= (2 if kill_one else 1)
    leftovers = [path for entry in entries for path in entry.glob(".*")]
    assert len(leftovers) <= (1 if kill_one else 0)


@pytest.mark.parametrize("moment", ["building", "publishing"])
def test_killed_holder_blocks_nobody(tmp_path: Path, moment: str) -> None:
    """Case B86: kill -9 while holding the lock; the next process builds at once."""
    code = """
        from fmhagen.compile import entry
        directory, ready, moment = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

        def hang(*arguments):
            ready.touch()
            time.sleep(600)

        if moment == "publishing":
            entry._flush_directory = hang
            real = entry.write_atomically
            def write(path, content):
                if path.name == "entry.json":
                    path.write_bytes(content[: len(content) // 2])
                    hang()
                real(path, content)
            entry.write_atomically = write
            Cache(directory).get_or_build("d" * 64, lambda _: binary_of("dead"))
        Cache(directory).get_or_build("d" * 64, hang)
    """
    ready = tmp_path / "ready"
    holder = start(code, str(tmp_path / "cache"), str(ready), moment)
    wait_for(ready)
    waiter_code = """
        started = time.monotonic()
        cache = Cache(sys.argv[1], lock_timeout_seconds=60)
        print(cache.get_or_build("d" * 64, lambda _: binary_of("alive")).symbol)
    """
    waiter = start(waiter_code, str(tmp_path / "cache"))
    with pytest.raises(subprocess.TimeoutExpired):
        waiter.wait(timeout=0.7)  # it waits as long as the holder lives
    holder.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    assert finish(waiter).strip() == "kaliv"
    assert time.monotonic() - killed < 5
    holder.communicate()


def test_waiting_is_reported_on_standard_error(tmp_path: Path) -> None:
    """Case B86: without any logging set up, a user sees which lock file is waited for."""
    ready = tmp_path / "ready"
    holder = start(
        """
        def hang(directory):
            Path(sys.argv[2]).touch()
            time.sleep(600)
        Cache(sys.argv[1]).get_or_build("e" * 64, hang)
        """,
        str(tmp_path / "cache"),
        str(ready),
    )
    wait_for(ready)
    waiter = start(
        """
        cache = Cache(sys.argv[1], lock_message_seconds=0.1, lock_timeout_seconds=0.3)
        cache.get_or_build("e" * 64, lambda _: binary_of("late"))
        """,
        str(tmp_path / "cache"),
    )
    _, errors = waiter.communicate(timeout=60)
    holder.kill()
    holder.communicate()
    lock_file = str(tmp_path / "cache" / "locks" / f"{'e' * 64}.lock")
    assert f"another process has held {lock_file} for 0 s; fmhagen waits" in errors
    assert f"CacheError: another process has held {lock_file}" in errors


REPORT = """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            binary = compile_source(smoke_source("sm90"))
    path = default_cache().path
    print(json.dumps({
        "bytes": len(binary.image),
        "warnings": [str(w.message) for w in caught],
        "path": str(path),
        "mode": path.stat().st_mode & 0o777,
        "entries": len(default_cache().list()),
    }))
"""

needs_nvrtc = pytest.mark.skipif(not nvrtc.detect().available, reason="NVRTC is not here")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Return a directory that every user may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="fmhagen-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def check_fallback(output: str) -> None:
    """Check that a process fell back to a private directory, warned once and removed it."""
    report = json.loads(output)
    assert report["bytes"] > 0
    assert len(report["warnings"]) == 1
    assert "FMHAGEN_CACHE_DIR" in report["warnings"][0]
    assert report["mode"] == 0o700
    assert report["entries"] == 1
    assert not Path(report["path"]).exists()


@needs_nvrtc
@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null", ""])
def test_missing_home(home: str) -> None:
    """Case B90: HOME names no directory."""
    process = start(REPORT, HOME=home, XDG_CACHE_HOME=None, FMHAGEN_CACHE_DIR=None)
    check_fallback(finish(process))


@needs_nvrtc
def test_file_in_place_of_the_cache(tmp_path: Path) -> None:
    """Case B90: FMHAGEN_CACHE_DIR names a file."""
    (tmp_path / "file").write_text("")
    check_fallback(finish(start(REPORT, FMHAGEN_CACHE_DIR=str(tmp_path / "file"))))


@needs_nvrtc
def test_home_unset_uses_the_passwd_entry_or_the_variable(tmp_path: Path) -> None:
    """Case B90: without HOME the override still decides, and nothing is warned of."""
    output = finish(
        start(REPORT, HOME=None, XDG_CACHE_HOME=None, FMHAGEN_CACHE_DIR=str(tmp_path / "cache"))
    )
    report = json.loads(output)
    assert report["warnings"] == []
    assert report["path"] == str(tmp_path / "cache")
    assert len([child for child in (tmp_path / "cache").iterdir() if len(child.name) == 64]) == 1


def run_as(user: int, code: str, **changes: str | None) -> str:
    """Run lines as another user, which only root can; the user needs no passwd entry.

    NOTE: the process changes its user after everything is imported and one kernel is compiled,
    because the other user may not be able to read this Python.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    become = f"""
    import filelock, platformdirs
    platformdirs.user_cache_path("fmhagen", appauthor=False)
    compile_source(smoke_source("sm90"), cache=Cache(os.environ["WARM_UP"]))
    os.setgroups([])
    os.setgid({user})
    os.setuid({user})
    """
    with tempfile.TemporaryDirectory() as directory:
        process = start(
            textwrap.dedent(become) + textwrap.dedent(code), WARM_UP=directory, **changes
        )
        return finish(process)


@needs_nvrtc
def test_unwritable_directory(open_directory: Path) -> None:
    """Case B90: the cache's directory exists, belongs to another user and is read-only."""
    (open_directory / "cache").mkdir(mode=0o555)
    output = run_as(65534, REPORT, FMHAGEN_CACHE_DIR=str(open_directory / "cache"))
    check_fallback(output)


@needs_nvrtc
def test_user_without_passwd_entry() -> None:
    """Case B90: neither HOME nor a passwd entry tells where a home would be."""
    output = run_as(
        54321, REPORT, HOME=None, XDG_CACHE_HOME=None, FMHAGEN_CACHE_DIR=None, USER=None
    )
    check_fallback(output)


@needs_nvrtc
def test_import_and_detection_need_no_driver() -> None:
    """Importing the compile room loads no vendor package."""
    code = """
        vendor = [name for name in sys.modules if name.split(".")[0] in ("cuda", "rocm", "hip")]
        print(vendor)
    """
    assert finish(start(code)).strip() == "[]"
