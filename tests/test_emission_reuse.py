"""What emission keeps: byte code of templates between processes, definitions within one.

Work is counted rather than timed, so that a busy machine cannot make these tests fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

from fmhagen.api import emit
from fmhagen.compile.cache import Cache
from fmhagen.emission import definitions
from fmhagen.emission.byte_code import ByteCode
from fmhagen.emission.environment import environment
from fmhagen.places import COMPILED_TEMPLATES
from fmhagen.spec import AttentionSpec

TEMPLATES = {"outer": "{% include 'inner' %}{{ x }}", "inner": "{% if y %}yes {% endif %}"}
VALUES = {"x": 3, "y": True}
COUNT = """
import jinja2, sys
real, count = jinja2.Environment.compile, 0
def counted(*arguments, **options):
    global count
    count += 1
    return real(*arguments, **options)
jinja2.Environment.compile = counted
from fmhagen.api import emit
from fmhagen.spec import AttentionSpec
print(emit(AttentionSpec(causal=True), target="sm90").digest, count)
"""


class CountingEnvironment(jinja2.Environment):
    """Counts the templates that are compiled."""

    compiled = 0

    def compile(self, *arguments: object, **options: object) -> object:  # type: ignore[override]
        """Count, and compile."""
        self.compiled += 1
        return super().compile(*arguments, **options)  # type: ignore[call-overload]


def rendered(
    directory: Path, options: str = "", templates: dict[str, str] | None = None
) -> tuple[str, int]:
    """Render in a new environment; return the text and how many templates were compiled."""
    env = CountingEnvironment(
        loader=jinja2.DictLoader(templates or TEMPLATES),
        bytecode_cache=ByteCode(directory, options),
    )
    return env.get_template("outer").render(VALUES), env.compiled


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_a_second_environment_compiles_nothing(tmp_path: Path) -> None:
    assert rendered(tmp_path / "not" / "there") == ("yes 3", 2)
    assert rendered(tmp_path / "not" / "there") == ("yes 3", 0)
    assert len(files(tmp_path)) == 2  # and no temporary file


def test_an_edited_template_is_compiled_again(tmp_path: Path) -> None:
    rendered(tmp_path)
    edited = {**TEMPLATES, "inner": "no "}
    assert rendered(tmp_path, templates=edited) == ("no 3", 1)
    assert rendered(tmp_path, templates=edited) == ("no 3", 0)


def test_other_options_share_nothing(tmp_path: Path) -> None:
    rendered(tmp_path, "trim_blocks")
    assert rendered(tmp_path, "no trim_blocks") == ("yes 3", 2)


@pytest.mark.parametrize("damage", ["empty", "short", "changed", "foreign", "directory"])
def test_damaged_files_are_compiled_again(tmp_path: Path, damage: str) -> None:
    rendered(tmp_path)
    for path in files(tmp_path):
        content = path.read_bytes()
        path.unlink()
        if damage == "directory":
            path.mkdir()
        else:
            changed = content[:-1] + bytes([content[-1] ^ 1])
            kinds = {"empty": b"", "short": content[:50], "changed": changed, "foreign": b"j2" * 40}
            path.write_bytes(kinds[damage])
    assert rendered(tmp_path) == ("yes 3", 2)
    assert rendered(tmp_path) == ("yes 3", 2 if damage == "directory" else 0)


def test_a_place_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert rendered(tmp_path / "file") == ("yes 3", 2)


def test_two_processes_compile_the_templates_once(tmp_path: Path) -> None:
    """The second process prints the same file from byte code; `clear` takes it away."""

    def run() -> list[str]:
        root = str(Path(__file__).parent.parent)
        environment = {**os.environ, "FMHAGEN_CACHE_DIR": str(tmp_path)}
        command = (sys.executable, "-c", COUNT)
        return subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=True
        ).stdout.split()

    digest, compiled = run()
    assert int(compiled) > 5
    assert run() == [digest, "0"]
    assert files(tmp_path / COMPILED_TEMPLATES)
    assert Cache(tmp_path).clear() == 0
    assert not (tmp_path / COMPILED_TEMPLATES).exists()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts whose words are looked for, from now on."""
    texts: list[str] = []
    real = definitions.words_of

    def counted(text: str) -> frozenset[str]:
        texts.append(text)
        return real(text)

    monkeypatch.setattr(definitions, "words_of", counted)
    return texts


@pytest.mark.parametrize("target", ["sm90", "gfx942"])
def test_a_second_kernel_parses_its_own_text_alone(target: str, parsed: list[str]) -> None:
    """A warm load's emission reads what is new: the skeleton and no definition of the prelude."""
    spec = AttentionSpec(causal=True)
    first = emit(spec, target=target)
    parsed.clear()
    assert emit(spec, target=target) == first
    assert len(parsed) == 1
    emit(AttentionSpec(causal=True, dtype="fp16"), target=target)
    assert len(parsed) < 30


def test_a_warm_load_renders_twice_and_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One skeleton, one vocabulary, and the compiler is not asked."""
    pytest.importorskip("cuda.bindings.nvrtc")
    from fmhagen.compile import compile_source, nvrtc

    source = emit(AttentionSpec(head_dim=16), target="sm90")
    cache = Cache(tmp_path)
    binary = compile_source(source, cache=cache)
    count = 0
    real = type(environment().get_template("kernels/fmha_fwd.cu.j2")).render

    def render(*arguments: object, **values: object) -> str:
        nonlocal count
        count += 1
        return real(*arguments, **values)  # type: ignore[arg-type]

    monkeypatch.setattr(jinja2.Template, "render", render)
    monkeypatch.setattr(nvrtc, "_api", lambda: pytest.fail("NVRTC was asked"))
    again = compile_source(emit(AttentionSpec(head_dim=16), target="sm90"), cache=cache)
    assert again.image == binary.image
    assert count == 2
