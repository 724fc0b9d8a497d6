"""Lints of the templates and of the package's rooms, as style.md and design.md ask."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import jinja2
import pytest
from jinja2 import meta, nodes

from fmhagen.appending import AppendPlan, AppendSpec, lower_append
from fmhagen.emission.environment import environment
from fmhagen.expr.mods import MaskMod
from fmhagen.instance import Instance
from fmhagen.mapping import MapPlan, MapSpec, lower_map
from fmhagen.merging import MergePlan, MergeSpec, lower_merge
from fmhagen.plan.attention import Plan
from fmhagen.resources import templates_dir
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS

PACKAGE = Path(__file__).parent.parent / "fmhagen"
TEMPLATES = sorted(templates_dir().rglob("*.j2"))
every_template = pytest.mark.parametrize(
    "path", TEMPLATES, ids=[p.relative_to(templates_dir()).as_posix() for p in TEMPLATES]
)

# Every delimiter of Jinja is padded by a space, so a brace pair of C++ or PTX cannot be taken for
# one: `{{0}}` would render as 0 and `{#x}` would swallow text, both in silence.
UNPADDED = re.compile(r"\{\{(?![ -])|(?<![ -])\}\}|\{%(?![ +-])|\{#(?![ -])")
BANNED = {
    r"\{%-|-%\}|\{\{-|-\}\}": "whitespace control: the layout is wrong",
    r"\{%\s*set\b": "computed values belong in Plan",
    r"\bis\s+(not\s+)?defined\b": "StrictUndefined does not catch it",
    r"\|\s*default\b|\|\s*d\(": "StrictUndefined does not catch it",
    r"\brange\(": "iterate over a tuple of Plan",
    r"\{%\s*(extends|block)\b": "a misspelled block is ignored in silence",
    r"\t": "tabs",
}


def test_there_are_templates() -> None:
    assert len(TEMPLATES) > 10


@every_template
def test_delimiters_are_padded(path: Path) -> None:
    found = [line for line in path.read_text().splitlines() if UNPADDED.search(line)]
    assert not found


@pytest.mark.parametrize(
    ("text", "is_caught"),
    [
        ('"{%0, %1}"', True),
        ("float a[2][2] = {{0}};", True),
        ("{{#A, A}}", True),
        ("{#x}", True),
        ("{ {0} }", False),
        ("{{ plan.symbol }}", False),
        ("{% if plan.causal %}", False),
    ],
)
def test_the_padding_lint_catches_what_it_must(text: str, *, is_caught: bool) -> None:
    assert bool(UNPADDED.search(text)) == is_caught


@every_template
@pytest.mark.parametrize("pattern", BANNED, ids=list(BANNED.values()))
def test_no_banned_construct(path: Path, pattern: str) -> None:
    assert not re.search(pattern, path.read_text()), BANNED[pattern]


@every_template
def test_a_tag_that_ends_a_line_stands_alone(path: Path) -> None:
    # trim_blocks would eat the line's newline and join it with the next.
    for line in path.read_text().splitlines():
        if line.rstrip().endswith("%}"):
            assert line.lstrip().startswith("{%"), line


@every_template
def test_conditions_are_plain(path: Path) -> None:
    for condition in re.findall(r"\{%\s*(?:el)?if\s+(.*?)\s*%\}", path.read_text()):
        assert len(re.findall(r"\b(?:and|or)\b", condition)) <= 1, condition
        assert not re.search(r"[=!]=\s*[\"']", condition), condition


@every_template
def test_context_is_plan_alone(path: Path) -> None:
    tree = environment().parse(path.read_text())
    assert meta.find_undeclared_variables(tree) <= {"plan"}


@every_template
def test_every_field_of_plan_exists(path: Path) -> None:
    tree = environment().parse(path.read_text())
    names = {
        node.attr
        for node in tree.find_all(nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == "plan"
    }
    kinds = {"merge_states": MergePlan, "classify": MapPlan, "append": AppendPlan}
    kind = next((kind for name, kind in kinds.items() if name in str(path)), Plan)
    known = {*kind.__dataclass_fields__, *(n for n in dir(kind) if not n.startswith("_"))}
    assert names <= known


def test_every_template_is_used() -> None:
    used = {target.kernel_template for target in TARGETS}
    used |= {target.cache_template for target in TARGETS if target.cache_template}
    used |= {lower_merge(MergeSpec(), target).kernel_template for target in TARGETS}
    used |= {lower_append(AppendSpec(), target).kernel_template for target in TARGETS}
    mapping = MapSpec(mask=MaskMod("kv_idx <= q_idx"), tile_m=128, tile_n=128)
    used |= {lower_map(mapping, target).kernel_template for target in TARGETS}
    small = ("merge_states", "classify", "append")
    used |= {f"parts/{name}/vocabulary.j2" for name in small}
    used |= {f"parts/{loop}/vocabulary.j2" for t in TARGETS for loop in t.main_loops}
    pending = list(used)
    while pending:
        text = (templates_dir() / pending.pop()).read_text()
        for name in meta.find_referenced_templates(environment().parse(text)):
            assert name is not None, "the name of an included template is not a constant"
            if name not in used:
                used.add(name)
                pending.append(name)
    assert used == {path.relative_to(templates_dir()).as_posix() for path in TEMPLATES}


def test_environment_is_strict() -> None:
    env = environment()
    assert env.undefined is jinja2.StrictUndefined
    assert env.trim_blocks
    assert env.lstrip_blocks
    assert env.keep_trailing_newline
    assert not env.extensions
    with pytest.raises((jinja2.UndefinedError, TypeError)):
        env.from_string("{{ plan.typo }}").render(plan=Instance.of(AttentionSpec(), TARGETS[0]))
    with pytest.raises(jinja2.UndefinedError):
        env.from_string("{% if plan.typo %}x{% endif %}").render(plan=object())
    for ambiguous in (True, None, 1.0, ["a"], {"a"}):
        with pytest.raises(TypeError):
            env.from_string("{{ x }}").render(x=ambiguous)


def code_without_prose(path: Path) -> str:
    """Return a module's tokens without comments and docstrings."""
    text = path.read_text()
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join(
        token.string
        for token in tokens
        if token.type != tokenize.COMMENT and token.start not in docstrings
    )


def test_hardware_is_named_in_its_rooms_alone() -> None:
    capacities = "|".join(
        str(getattr(target, name))
        for target in TARGETS
        for name in ("shared_memory_per_block_bytes", "registers_per_block", "compute_units")
    )
    hardware = re.compile(rf"sm_90|gfx942|wgmma|mfma|\b(?:{capacities})\b")
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE).parts[0]
        if room not in ("targets", "compile", "runtime"):
            found += [
                f"{path.relative_to(PACKAGE)}: {match}"
                for match in hardware.findall(code_without_prose(path))
            ]
    assert not found


def test_no_asm_outside_the_prelude() -> None:
    for path in TEMPLATES:
        assert not re.search(r"\basm\b|__builtin_amdgcn", path.read_text()), path


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.relative_to(PACKAGE).as_posix()
)
def test_files_are_short(path: Path) -> None:
    assert path.read_text().count("\n") < 300
