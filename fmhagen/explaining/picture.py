"""Picture: a mask as SVG, with how the kernels visit each of its tiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fmhagen.explaining.key_runs import Place, key_runs, visible_keys
from fmhagen.spec import AttentionSpec

_SIDE = 320  # pixels of the longer side
_MARGIN = 22
_LEGEND = 18
_STYLE = (
    ".n{fill:#f3f3f3}.p{fill:#fbe3b3}.f{fill:#8fbce6}.v{fill:#2b5f8f}"
    ".g{stroke:#fff;stroke-width:1;fill:none}text{font:11px sans-serif;fill:#444}"
)
_KINDS = (("f", "full: no mask"), ("p", "partly: masked"), ("n", "hidden: not visited"))


def mask_picture(
    spec: AttentionSpec,
    place: Place,
    *,
    tile_m: int,
    tile_n: int,
    params: Mapping[str, Any] | None = None,
) -> str:
    """Return the mask of one head as an SVG document, query rows from the top.

    Args:
        spec: the mask.
        place: which head, and the lengths.
        tile_m: query rows of a tile of work.
        tile_n: keys of a key tile.
        params: what the mask reads at run time.

    Returns:
        The document; visible keys are dark, and each tile has the colour of how it is visited.
    """
    rows, keys = place.seqlen_q, place.seqlen_k
    scale = _SIDE / max(rows, keys, 1)
    width, height = max(keys * scale, 340), rows * scale
    seen = visible_keys(spec, place, params)
    shapes: dict[str, list[str]] = {"n": [_box(0, 0, keys, rows)], "p": [], "f": [], "v": []}
    for m_first in range(0, rows, tile_m):
        m_end = min(m_first + tile_m, rows)
        runs = key_runs(spec, place, m_first, tile_m=tile_m, tile_n=tile_n, params=params)
        for run in runs:
            first, end = run.begin * tile_n, min(run.end * tile_n, keys)
            shapes["f" if run.is_full else "p"].append(_box(first, m_first, end, m_end))
            if not run.is_full:
                shapes["v"] += _visible(seen, m_first, m_end, first, end)
    drawn = "".join(
        f'<path class="{kind}" d="{"".join(parts)}"/>\n' for kind, parts in shapes.items() if parts
    )
    grid = "".join(
        [f"M{n} 0V{rows}" for n in range(tile_n, keys, tile_n)]
        + [f"M0 {m}H{keys}" for m in range(tile_m, rows, tile_m)]
    )
    legend = "".join(
        f'<rect class="{kind}" x="{112 * i}" y="0" width="10" height="10"/>'
        f'<text x="{112 * i + 14}" y="9">{text}</text>\n'
        for i, (kind, text) in enumerate(_KINDS)
    )
    total = _MARGIN + height + _LEGEND
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_number(width + _MARGIN)}"'
        f' height="{_number(total)}" role="img">\n<style>{_STYLE}</style>\n'
        f'<text x="{_MARGIN}" y="12">keys 0..{keys - 1}</text>\n'
        f'<text x="-{_MARGIN}" y="12" transform="rotate(-90)" text-anchor="end">'
        f"queries 0..{rows - 1}</text>\n"
        f'<g transform="translate({_MARGIN} {_MARGIN - 4}) scale({_number(scale)})">\n{drawn}'
        f'<path class="g" vector-effect="non-scaling-stroke" d="{grid}"/>\n</g>\n'
        f'<g transform="translate({_MARGIN} {_number(total - 12)})">\n{legend}</g>\n</svg>\n'
    )


def _visible(seen: Any, m_first: int, m_end: int, first: int, end: int) -> Iterator[str]:
    """Yield a box for each run of visible keys in a row, joined over equal rows."""
    open_runs: dict[tuple[int, int], int] = {}
    for m in range(m_first, m_end + 1):
        found = set(_runs(seen[m], first, end)) if m < m_end else set()
        for run in sorted(open_runs.keys() - found):
            yield _box(run[0], open_runs.pop(run), run[1], m)
        for run in found - open_runs.keys():
            open_runs[run] = m


def _runs(row: Any, first: int, end: int) -> Iterator[tuple[int, int]]:
    begin = None
    for n in range(first, end + 1):
        is_seen = n < end and bool(row[n])
        if is_seen and begin is None:
            begin = n
        elif not is_seen and begin is not None:
            yield begin, n
            begin = None


def _box(left: int, top: int, right: int, bottom: int) -> str:
    return f"M{left} {top}H{right}V{bottom}H{left}z"


def _number(value: float) -> str:
    return f"{value:.4g}"
