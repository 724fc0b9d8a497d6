"""Lowering of the mask and the score function: a spec -> C++ functions that templates call.

    f32  score_mod(params, place, score, q_idx, kv_idx)        natural units, after the scale
    bool mask_mod(params, place, q_idx, kv_idx)                the mask but the end of the keys
    i32  first_key_J(params, place, q_idx)                     band J = 0..: row q_idx sees at most
    i32  end_key_J(params, place, q_idx)                       the keys [first, end) of their union
    u32  rest_of_tile(params, place, m_first, m_last, n_first, n_last)

The bounds of a band never fall as q_idx grows, and are not clamped to [0, seqlen_k).
"""

from __future__ import annotations

from fmhagen.expr.bands import bounds_of
from fmhagen.expr.cxx import CxxFunction, function, is_clamped
from fmhagen.expr.finite import may_hide
from fmhagen.expr.nodes import Node, walk
from fmhagen.expr.tiles import tile_class
from fmhagen.formula import mask_of, score_of, spec_parameters
from fmhagen.language import Argument, CxxBand, Language
from fmhagen.spec import AttentionSpec


def lower_language(spec: AttentionSpec) -> Language:
    """Print the mask and the score function of a spec.

    Raises:
        InvalidSpecError: two parameters that differ share one name.
    """
    mask, score = mask_of(spec), score_of(spec)
    bounds = bounds_of(mask)
    return Language(
        score=None if score is None else _score(score),
        mask=None if mask is None else _mask(mask),
        bands=tuple(
            CxxBand(
                first=_bound(f"first_key_{j}", "First key", band.first, j),
                end=_bound(f"end_key_{j}", "One past the last key", band.end, j),
            )
            for j, band in enumerate(bounds.bands)
        ),
        rest=None if bounds.rest is None else _rest(bounds.rest),
        exact=bounds.exact,
        right_only=bounds.right_only,
        may_hide=may_hide(score),
        arguments=_arguments(spec, tuple(node for node in (mask, score) if node is not None)),
        bounds=bounds,
    )


def _score(score: Node) -> CxxFunction:
    summary = "What becomes of a scaled score."
    return function("score_mod", summary, "f32", ("score", "q_idx", "kv_idx"), score)


def _mask(mask: Node) -> CxxFunction:
    summary = "Whether query q_idx sees key kv_idx, the end of the keys aside."
    return function("mask_mod", summary, "bool", ("q_idx", "kv_idx"), mask)


def _bound(name: str, what: str, bound: Node, band: int) -> CxxFunction:
    summary = f"{what} of band {band} that query q_idx sees; never falls as q_idx grows."
    return function(name, summary, "i32", ("q_idx",), bound)


def _rest(rest: Node) -> CxxFunction:
    summary = "Class of a tile by what the bands do not say: 0 hidden, 1 partly, 2 fully visible."
    tile = ("m_first", "m_last", "n_first", "n_last")
    return function("rest_of_tile", summary, "u32", tile, tile_class(rest))


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
