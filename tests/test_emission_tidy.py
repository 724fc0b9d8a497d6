"""What emission does with lines: long statements of a user's functions, and a template's faults."""

import pytest

from fmhagen.emission import tidy
from fmhagen.errors import TemplateError

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
