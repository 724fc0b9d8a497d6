"""What the documents say is so: quotations, examples, commands, links, words."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import fmhagen
from fmhagen.cli import app
from fmhagen.committed.inventory import digest_holds
from fmhagen.committed.support import support_matrix
from fmhagen.emission import BODY_LINE
from fmhagen.targets import TARGETS, Target

REPOSITORY = Path(__file__).parent.parent
README = REPOSITORY / "README.md"
DOCUMENTS = (README, *sorted((REPOSITORY / "docs").glob("*.md")))
LATER: tuple[str, ...] = ()  # may be linked before they are written

FORBIDDEN = {
    "a registry's host": r"pypi\.org|pythonhosted|(?:docker|ghcr|quay)\.io|anaconda\.org",
    "a machine's path": r"(?<![\w$}.\])])/(?:work|home|root|Users|mnt|scratch)/",
    "a character outside ASCII": r"[^\x00-\x7f]",
    "a placeholder": r"\b(?:TODO|FIXME|XXX|TBD)\b",
}
SPOKEN = (
    "README.md",
    "pyproject.toml",
    "docs",
    "examples",
    "scripts",
    ".ci",
    "fmhagen",
    "templates",
)
SUFFIXES = ("", ".md", ".py", ".toml", ".j2", ".h", ".cuh")


def load_docs_script() -> ModuleType:
    path = REPOSITORY / "scripts" / "docs.py"
    spec = importlib.util.spec_from_file_location("docs_script", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DOCS = load_docs_script()


def spoken_files() -> list[Path]:
    files: list[Path] = []
    for name in SPOKEN:
        path = REPOSITORY / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        files += [
            f
            for f in found
            if f.is_file() and f.suffix in SUFFIXES and "__pycache__" not in f.parts
        ]
    return files


def quotation(name: str) -> str:
    found = re.search(
        rf"^<!-- quote: {name} -->\n(.*?)^<!-- end of quote -->$",
        README.read_text(encoding="ascii"),
        re.DOTALL | re.MULTILINE,
    )
    assert found is not None, f"README.md quotes no {name}"
    return found[1]


def test_documents_are_what_is_written_today() -> None:
    for path, wanted in DOCS.documents().items():
        name = path.relative_to(REPOSITORY)
        assert path.read_text(encoding="ascii") == wanted, f"{name}: run python -m scripts.docs"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_quoted_main_loop_stands_in_a_generated_file(target: Target) -> None:
    quoted = quotation(f"main loop of {target.name}")
    link = re.search(r"\[(generated/[\w/.]+)\]\((generated/[\w/.]+)\)", quoted)
    assert link is not None
    assert link[1] == link[2]
    text = (REPOSITORY / link[1]).read_text(encoding="ascii")
    assert digest_holds(text)
    code = re.search(r"```cpp\n(.*?)```", quoted, re.DOTALL)
    assert code is not None
    wanted = [line.strip() for line in code[1].splitlines()]
    body = [line.strip() for line in text.partition(BODY_LINE)[2].splitlines()]
    assert any(body[i : i + len(wanted)] == wanted for i in range(len(body)))
    assert len(wanted) > 12
    words = {
        "sm90": ("issue_step(", "softmax(", "finish_step("),
        "gfx942": ("multiply(", "raise(", "take_pair("),
    }
    for word in words[target.name]:
        assert word in code[1]


def test_support_matrix_is_the_generated_one() -> None:
    assert quotation("support matrix") == support_matrix()
    support = (REPOSITORY / "docs" / "support.md").read_text(encoding="ascii")
    assert support_matrix() in support


def test_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="ascii"), re.DOTALL)
    assert len(blocks) == 1
    lines = [line for line in blocks[0].splitlines() if line]
    assert len(lines) <= 12
    names: dict[str, object] = {}
    exec(blocks[0], names)
    printed = capsys.readouterr().out
    assert "__gfx942" in printed
    assert float(printed.split()[-1]) < 2e-2


def python_blocks() -> list[tuple[str, ast.Module]]:
    """Return every block of Python in the documents, parsed, under its document's name."""
    return [
        (f"{path.name}: {text.splitlines()[0]}", ast.parse(text))
        for path in DOCUMENTS
        for text in re.findall(r"```python\n(.*?)```", path.read_text(encoding="ascii"), re.DOTALL)
    ]


def imported(name: str) -> ModuleType:
    """Import a module; skip the test where it needs another package that is not here."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("fmhagen"):
            raise
        pytest.skip(str(error))


def meaning_of(node: ast.expr, names: dict[str, object]) -> object:
    """Return what a dotted name stands for, or None if it is none of fmhagen's."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = meaning_of(node.value, names)
    if inspect.ismodule(owner) or isinstance(owner, type):
        found = getattr(owner, node.attr, None)
        assert found is not None, f"{ast.unparse(node)} does not exist"
        return found
    return None


@pytest.mark.parametrize(("place", "block"), python_blocks(), ids=[at for at, _ in python_blocks()])
def test_python_of_the_documents_names_what_exists(place: str, block: ast.Module) -> None:
    """Imports, attributes and keywords: the fragments are not whole programs."""
    names: dict[str, object] = {name: getattr(fmhagen, name) for name in fmhagen.__all__}
    names["fmhagen"] = fmhagen
    for node in ast.walk(block):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imported(alias.name)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("fmhagen"):
            for alias in node.names:
                owner = imported(str(node.module))
                found = getattr(owner, alias.name, None)
                name = f"{node.module}.{alias.name}"
                names[alias.asname or alias.name] = imported(name) if found is None else found
    for node in ast.walk(block):
        if isinstance(node, ast.Attribute):
            meaning_of(node, names)
        called = meaning_of(node.func, names) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and callable(called):
            taken = inspect.signature(called).parameters
            free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())
            for keyword in node.keywords:
                text = f"{place}: {ast.unparse(node.func)} takes no {keyword.arg}"
                assert free or keyword.arg is None or keyword.arg in taken, text


def command_lines() -> list[tuple[str, ...]]:
    """Return the words of every fmhagen command in the documents' code blocks."""
    found = set()
    for path in DOCUMENTS:
        for line in path.read_text(encoding="ascii").splitlines():
            for command in re.findall(r"(?:^ {4}(?:\$ )?|&& |`)(fmhagen [a-z][^`]*)", line):
                found.add(tuple(re.split(r" {2,}| &&", command)[0].split()[1:]))
    return sorted(found)


def test_commands_exist() -> None:
    commands = command_lines()
    assert len(commands) > 10
    known: dict[str, str] = {}
    for words in commands:
        name = words[0]
        if name not in known:
            shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
            assert shown.exit_code == 0, f"fmhagen {name}: {shown.output}"
            known[name] = shown.output
        for flag in words[1:]:
            if flag.startswith("-"):
                assert flag in known[name], f"fmhagen {' '.join(words)}"


def test_links_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="ascii")):
            if link.startswith(("http://", "https://")):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.exists() and target.relative_to(REPOSITORY).as_posix() in LATER:
                continue
            assert target.exists(), f"{path.name}: {link}"
            if anchor:
                headings = re.findall(
                    r"^#+ (.+)$", target.read_text(encoding="ascii"), re.MULTILINE
                )
                assert anchor in [
                    re.sub(r"[^a-z0-9-]", "", h.lower().replace(" ", "-")) for h in headings
                ]


def test_paths_in_the_documents_exist() -> None:
    """Paths of this repository in code spans; the placeholders of the guide are left out."""
    for path in DOCUMENTS:
        for name in re.findall(
            r"`((?:fmhagen|templates|docs|examples|scripts|\.ci)/[\w/.-]+)`",
            path.read_text(encoding="ascii"),
        ):
            if any(word in name for word in ("TARGET", "LOOP", "_templates")):
                continue
            assert (REPOSITORY / name).exists(), f"{path.name}: {name}"


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_forbidden_words(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what])
    hits = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in spoken_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not hits, "\n".join(hits)


def test_ci_script_runs_the_readmes_commands() -> None:
    readme = README.read_text(encoding="ascii")
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="ascii")
    for line in re.findall(r"^ {4}(pip install '.*)$", readme, re.MULTILINE):
        install, _, command = line.partition(" && ")
        assert install in script
        assert command in script
