"""Pictures of masks: what is drawn is what is visible, in the class in which it is visited."""

from __future__ import annotations

import re
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from language_cases import MASKS
from typer.testing import CliRunner

from fmhagen.cli import app
from fmhagen.explaining.key_runs import Place, visible_keys
from fmhagen.explaining.picture import mask_picture
from fmhagen.spec import AttentionSpec

PLACE = Place(b=1, h=2, seqlen_q=61, seqlen_k=90)


def drawn(svg: str) -> dict[str, Any]:
    """Return which keys of which rows each class of shapes covers."""
    covered = {kind: np.zeros((PLACE.seqlen_q, PLACE.seqlen_k), int) for kind in "npfv"}
    for kind, path in re.findall(r'<path class="([npfv])" d="([^"]*)"', svg):
        for left, top, right, bottom in re.findall(r"M(\d+) (\d+)H(\d+)V(\d+)H\1z", path):
            covered[kind][int(top) : int(bottom), int(left) : int(right)] += 1
    return covered


@pytest.mark.parametrize("name", list(MASKS))
def test_what_is_drawn_is_what_is_visible(name: str) -> None:
    case = MASKS[name]
    svg = mask_picture(case.spec, PLACE, tile_m=16, tile_n=8, params=case.params)
    xml.etree.ElementTree.fromstring(svg)
    covered = drawn(svg)
    assert all((count <= 1).all() for count in covered.values()), "shapes overlap"
    shown = (covered["f"] + covered["v"]) > 0
    np.testing.assert_array_equal(shown, visible_keys(case.spec, PLACE, case.params))
    assert not (covered["v"] & ~(covered["p"] > 0)).any()


def test_the_command_writes_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "mask.svg"
    arguments = ["explain", "-t", "sm90", "--causal", "--mask-mod", "q_idx // 256 == kv_idx // 256"]
    result = CliRunner().invoke(
        app, [*arguments, "--picture", str(path), "--seqlen-q", "300", "--seqlen-k", "300"]
    )
    assert result.exit_code == 0, result.output
    assert path.read_text().startswith("<svg")
    other = tmp_path / "mask.png"
    result = CliRunner().invoke(app, [*arguments, "--picture", str(other)])
    assert result.exit_code == 2
    assert "the name must end in .svg" in result.output
    assert not other.exists()


def test_an_empty_mask_has_a_picture() -> None:
    svg = mask_picture(AttentionSpec(), Place(seqlen_q=0, seqlen_k=0), tile_m=8, tile_n=8)
    xml.etree.ElementTree.fromstring(svg)
