"""Lowering of the mask and the score function: a spec -> C++ functions that templates call.

    Place place_of(params, b, h, seqlen_q, seqlen_k)           with what is read for a tile of work
    f32  score_mod(params, place, score, q_idx, kv_idx)        natural units, after the scale
    f32  score_gain(params, place, q_idx)                      of a score function that is a line:
    f32  score_slope(params, place, q_idx)                     gain * score + slope * kv_idx + rest
    bool mask_mod(params, place, q_idx, kv_idx)                the mask but the end of the keys
    bool rest_mod(params, place, q_idx, kv_idx)                in its place: what bands do not say
    i32  row_label(params, place, q_idx)                       the same, where it asks whether two
    i32  key_label(params, place, kv_idx)                      numbers are equal
    i32  first_key_J(params, place, q_idx)                     band J = 0..: row q_idx sees at most
    i32  end_key_J(params, place, q_idx)                       the keys [first, end) of their union
    u32  rest_of_tile(params, place, m_first, m_last, n_first, n_last)
    MapWord map_word(params, place, row, word)                 of the block map, in place of bands

The bounds of a band never fall as q_idx grows, and are not clamped to [0, seqlen_k).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fmhagen.expr.bands import Band, bounds_of
from fmhagen.expr.cap import cap_of
from fmhagen.expr.cxx import TILE, CxxFunction, function, is_clamped
from fmhagen.expr.cxx_place import place_names, place_text
from fmhagen.expr.finite import may_hide
from fmhagen.expr.line import line_of
from fmhagen.expr.nodes import Node, Type, walk
from fmhagen.expr.products import START, STOP
from fmhagen.expr.tiles import tile_class
from fmhagen.formula import is_mapped, mask_of, score_of, spec_parameters
from fmhagen.plan.language import Argument, CxxBand, CxxLabels, CxxLine, Language
from fmhagen.spec import AttentionSpec

_WHOLE = (Type.I32, Type.I32)
_EVERYTHING = (Band(first=START, end=STOP),)


def lower_language(
    spec: AttentionSpec, *, mapped: bool | None = None, by_bands: bool = False
) -> Language:
    """Print the mask and the score function of a spec.

    Args:
        spec: what is computed.
        mapped: whether a block map says what tiles show; None means where the mask needs one.
        by_bands: the keys that a row sees come from the bands, a block map or not, and a function
            is asked about a key for the rest of the mask alone.

    Raises:
        InvalidSpecError: two parameters that differ share one name.
    """
    mask, score = mask_of(spec), score_of(spec)
    roots = tuple(node for node in (mask, score) if node is not None)
    bounds = bounds_of(mask)
    mapped = is_mapped(spec) if mapped is None else mapped
    printer = _Printer(place_names(*roots))
    rest_key = bounds.rest if by_bands else None
    return Language(
        place=place_text(printer.members),
        score=None if score is None else printer.score(score),
        line=printer.line(score),
        cap=cap_of(score),
        mask=None if mask is None else printer.mask(mask),
        rest_key=None if rest_key is None else printer.rest_key(rest_key),
        labels=None if rest_key is None else printer.labels(rest_key),
        bands=tuple(
            CxxBand(
                first=printer.bound(f"first_key_{j}", "First key", band.first, j),
                end=printer.bound(f"end_key_{j}", "One past the last key", band.end, j),
            )
            for j, band in enumerate(_EVERYTHING if mapped and not by_bands else bounds.bands)
        ),
        rest=None if bounds.rest is None or mapped else printer.rest(bounds.rest),
        mapped=mapped,
        exact=bounds.exact and not mapped,
        right_only=bounds.right_only and not mapped,
        may_hide=may_hide(score),
        score_ops=() if score is None else operations(score),
        arguments=_arguments(spec, roots),
        bounds=bounds,
    )


@dataclass(frozen=True, slots=True)
class _Printer:
    """Prints functions that read some values from the place."""

    members: dict[Node, str]

    def score(self, score: Node) -> CxxFunction:
        summary = "What becomes of a scaled score."
        leaves = ("score", "q_idx", "kv_idx")
        return function("score_mod", summary, "f32", leaves, score, self.members)

    def line(self, score: Node | None) -> CxxLine | None:
        line = None if may_hide(score) else line_of(score)
        if line is None:
            return None
        what = "What a score is multiplied by: the score function is a line in score and key."
        step = "By how much the score function grows from one key to the next."
        row = ("q_idx",)
        slope = line.slope
        return CxxLine(
            gain=function("score_gain", what, "f32", row, line.gain, self.members),
            slope=None
            if slope is None
            else function("score_slope", step, "f32", row, slope, self.members),
            is_level=line.is_level,
        )

    def mask(self, mask: Node) -> CxxFunction:
        summary = "Whether query q_idx sees key kv_idx, the end of the keys aside."
        return function("mask_mod", summary, "bool", ("q_idx", "kv_idx"), mask, self.members)

    def rest_key(self, rest: Node) -> CxxFunction:
        summary = "Whether query q_idx sees key kv_idx, as far as the bands do not say."
        return function("rest_mod", summary, "bool", ("q_idx", "kv_idx"), rest, self.members)

    def labels(self, rest: Node) -> CxxLabels | None:
        row, key = rest.args if rest.op == "eq" else (rest, rest)
        row, key = (key, row) if row.reads("kv_idx") else (row, key)
        if row.reads("kv_idx") or key.reads("q_idx") or (row.type, key.type) != _WHOLE:
            return None
        what = "What stands for query q_idx: it sees the keys that have the same, as far as bands"
        return CxxLabels(
            row=function("row_label", f"{what} do not say.", "i32", ("q_idx",), row, self.members),
            key=function(
                "key_label", "What stands for key kv_idx.", "i32", ("kv_idx",), key, self.members
            ),
        )

    def bound(self, name: str, what: str, bound: Node, band: int) -> CxxFunction:
        summary = f"{what} of band {band} that query q_idx sees; never falls as q_idx grows."
        return function(name, summary, "i32", ("q_idx",), bound, self.members)

    def rest(self, rest: Node) -> CxxFunction:
        summary = "Class of a tile by what bands do not say: 0 hidden, 1 partly, 2 fully visible."
        return function("rest_of_tile", summary, "u32", TILE, tile_class(rest), self.members)


def operations(score: Node) -> tuple[tuple[str, int], ...]:
    """Return how often each operation is done for one score, by name; see `fmhagen.expr.build`.

    What depends on neither score nor key is done once a row or a tile of work.
    """
    nodes = (node for node in walk(score) if node.reads("score", "kv_idx") and node.args)
    return tuple(sorted(Counter(node.op for node in nodes).items()))


def _arguments(spec: AttentionSpec, roots: tuple[Node, ...]) -> tuple[Argument, ...]:
    """Return the parameters with what indexes them."""
    loads = [node for node in walk(*roots) if node.op == "load"]
    return tuple(
        Argument(
            parameter=parameter,
            axes=tuple(
                tuple(
                    sorted(
                        {
                            "computed"
                            if is_clamped(node.args[axis])
                            else str(node.args[axis].value)
                            for node in loads
                            if node.value == parameter
                        }
                    )
                )
                for axis in range(parameter.ndim)
            ),
        )
        for parameter in spec_parameters(spec)
    )
