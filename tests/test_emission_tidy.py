"""What emission does with lines: long statements of a user's functions, and a template's faults."""

from pathlib import Path

import jinja2
import pytest
from emulated import plan_of

from fmhagen.emission import environment as printing
from fmhagen.emission import tidy
from fmhagen.errors import TemplateError
from fmhagen.spec import AttentionSpec

TERM = "params.arg_table[(place.h + 1) * 8 + q_idx]"


def test_a_long_statement_is_broken_at_spaces() -> None:
    statement = f"  all_keys.position_0[row] = {' + '.join([TERM] * 9)};"
    text = tidy(f"{{\n{statement}\n}}\n")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[1].startswith("  all_keys")
    assert all(line.startswith("      ") for line in lines[2:-1])
    assert " ".join(text.split()) == f"{{ {' '.join(statement.split())} }}"


@pytest.mark.parametrize(
    "line",
    [
        f"// {' comment' * 20}",
        f'asm volatile("{"x " * 70}");',
        "a\tb",
        "caf\u00e9",
        f"if ({'a + ' * 40}a) {{",
    ],
)
def test_what_a_template_may_not_print(line: str) -> None:
    with pytest.raises(TemplateError, match="line 2"):
        tidy(f"int a;\n{line}\n")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("u32 b = {{ plan.typo }};", "has no attribute 'typo'"),
        ("u32 b = {{ plan.causal }};", "bool"),
        ("u32 b = {{ plan.causal | cxx_bool };", "unexpected '}'"),
    ],
)
def test_a_template_that_fails_says_where_and_of_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    """Place and reason first, then the lines around it; the plan is beside the message."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "bad.j2").write_text(f"u32 a;\n{line}\nu32 c;\n")
    env = printing.environment().overlay(loader=jinja2.FileSystemLoader(tmp_path))
    monkeypatch.setattr(printing, "environment", lambda: env)
    monkeypatch.setattr(printing, "templates_dir", lambda: tmp_path)
    plan = plan_of(AttentionSpec(causal=True), "gfx942")
    with pytest.raises(TemplateError) as caught:
        printing.render("parts/bad.j2", plan)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith("parts/bad.j2, line 2: ")
    assert reason in first
    assert rest == ["     1 u32 a;", f">    2 {line}", "     3 u32 c;", f"of {plan.constructor}"]
    assert caught.value.to_dict()["plan"] == repr(plan)
