"""Every example runs to its end, on the emulator, from a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
FINDINGS = {
    "01_emit": ("__gfx942.hip", "__sm90a.cu", "refused: head_dim=72"),
    "02_compile_and_run": ("sm90: ", "gfx942: ", "LSE: worst"),
    "03_schedule": ("chosen: Schedule(", "changed from the default", "refused: stages=9"),
    "04_torch": (),
    "05_inspect_plan": ("parameter block of", "spill_bytes = 0"),
    "08_custom_mods": ("MaskMod('", "refused: params['temperature']=None: must be given"),
    "09_flex_attention": (
        "flex_attention: O: worst",
        "flash_attn_func: (2, 120, 4, 64)",
        "refused",
    ),
    "06_races": ("SMEM_V", "deadlock", "found with 0 of 3 seeds"),
    "07_paged_generation": ("8 different", "256 slots reserved", "64 of its 79 tokens"),
}


def run(example: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example with this process's modules and warnings as errors."""
    return subprocess.run(
        (sys.executable, "-W", "error", str(example), *arguments),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_examples_are_numbered_and_known() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(FINDINGS)
    assert [path.stem[:2] for path in EXAMPLES] == [f"{i:02}" for i in range(1, len(EXAMPLES) + 1)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    text = example.read_text(encoding="ascii")
    assert "def main() -> None:" in text
    assert text.startswith('"""')
    done = run(example, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for finding in FINDINGS[example.stem]:
        assert finding in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_emit_writes_where_it_is_told(tmp_path: Path) -> None:
    done = run(EXAMPLES[0], tmp_path, "out")
    assert done.returncode == 0, done.stderr
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".cu", ".hip"}
