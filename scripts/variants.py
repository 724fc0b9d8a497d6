"""The variants that docs/language.md shows: Python, picture, and what is emitted for each.

Everything is computed from the Python that is printed, so the page cannot say what is not so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fmhagen import masks, scores
from fmhagen.explaining.key_runs import Place
from fmhagen.explaining.picture import mask_picture
from fmhagen.lowering.language import lower_language
from fmhagen.plan.language import Language
from fmhagen.spec import AttentionSpec

_LENGTH = 64
_TILE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One row of the table.

    Attributes:
        name: also of its picture.
        code: arguments of AttentionSpec; sizes are those of the picture.
        note: what is worth knowing.
        speed: as measured, see MEASURED; "" if it was not.
    """

    name: str
    code: str
    note: str = ""
    speed: str = ""

    @property
    def spec(self) -> AttentionSpec:
        """The spec that the code makes."""
        names: dict[str, Any] = {**_names(), "AttentionSpec": AttentionSpec}
        spec: AttentionSpec = eval(f"AttentionSpec({self.code})", names)
        return spec

    @property
    def picture_name(self) -> str:
        """File of its picture under docs/pictures."""
        return self.name.lower().replace(" ", "-").replace(",", "") + ".svg"

    def picture(self) -> str:
        """Return its mask as SVG."""
        spec = self.spec
        return mask_picture(
            spec,
            Place(seqlen_q=_LENGTH, seqlen_k=_LENGTH),
            tile_m=_TILE,
            tile_n=_TILE,
            params=spec.mask_mod.bound if spec.mask_mod is not None else {},
        )


def _names() -> dict[str, Any]:
    import numpy as np

    import fmhagen

    at = np.arange(64)
    ids = np.repeat([0, 1, 0, 2, 1, 1, 2, 0], 8).astype(np.int32)
    return {
        "fmhagen": fmhagen,
        "masks": masks,
        "scores": scores,
        "np": np,
        "prefix": np.array([12], np.int32),
        "document_id": ids,
        "allowed": (np.add.outer(at // 6, at // 10) % 3) == 0,
        "slopes": np.array(scores.alibi_slopes(8), np.float32),
        "table": np.zeros((8, 65), np.float32),
        "bias": np.zeros((1, 8, 64, 64), np.float32),
        "factors": np.ones(8, np.float32),
    }


MASKS: tuple[Variant, ...] = (
    Variant(
        name="Causal",
        code="causal=True",
        note="The loop of before: one bound on the right.",
        speed="750; x2.09; x1.06",
    ),
    Variant(
        name="Causal and window",
        code="causal=True, window_left=20",
        speed="1024 keys: 604; x2.37; x1.24",
    ),
    Variant(name="Window to both sides", code="window_left=12, window_right=6"),
    Variant(
        name="Sink tokens and window",
        code="mask_mod=(masks.sink_tokens(5) | masks.sliding_window(20)) & masks.causal()",
        note="Where the window meets the sink tokens the two bands become one.",
        speed="4 and 1024 keys: 469; x1.86",
    ),
    Variant(name="Prefix LM", code="mask_mod=masks.prefix_lm(prefix)"),
    Variant(name="Chunked", code="causal=True, mask_mod=masks.chunked(24)"),
    Variant(
        name="Packed documents",
        code="causal=True, mask_mod=masks.documents([0, 7, 12, 40, 64])",
        note="The bounds of each position are read from two tensors that never fall, so they bound"
        " tiles, too: no block mask.",
        speed="8 documents: 591; x2.17",
    ),
    Variant(
        name="Documents by id",
        code="causal=True, mask_mod=masks.document(document_id)",
        note="Ids in any order: nothing is known of a tile without its keys, so all that causal"
        " leaves are masked.",
        speed="8 documents: 611; x2.24",
    ),
    Variant(
        name="Dilated blocks",
        code="causal=True, mask_mod=masks.dilated_blocks(8, 3)",
        note="Bands know nothing of a modulo: `rest_of_tile` says which tiles it leaves out.",
    ),
    Variant(
        name="Neighbours in a plane",
        code="mask_mod=lambda b, h, q, k: (abs(q // 8 - k // 8) <= 1) & (abs(q % 8 - k % 8) <= 1)",
        note="Rows of the plane become a band, columns the rest.",
    ),
    Variant(
        name="Another window for some heads",
        code="causal=True, mask_mod=lambda b, h, q, k: fmhagen.where(h % 2 == 0, q - k < 16, True)",
    ),
    Variant(name="Dense", code="mask_mod=masks.dense(allowed)"),
)

SCORES: tuple[Variant, ...] = (
    Variant(name="Soft cap", code="soft_cap=50.0", speed="634; x3.33"),
    Variant(
        name="ALiBi",
        code="alibi=True, causal=True",
        note="The slope is read once for a tile of work.",
        speed="736; x2.26",
    ),
    Variant(name="Relative bias", code="score_mod=scores.relative_bias(table)"),
    Variant(name="Additive bias", code="score_mod=scores.additive(bias)"),
    Variant(name="Temperature of each head", code="score_mod=scores.temperature(factors)"),
    Variant(
        name="Cap, then ALiBi, then a function",
        code="soft_cap=30.0, alibi=True, score_mod=lambda s, b, h, q, k:"
        " np.where(q - k > 1000, s * 0.5, s)",
    ),
)


MEASURED = (
    "Speed: TFLOP/s over visible pairs, then as a multiple of FlexAttention's Triton kernel, then"
    " of FA3, in the same run: one H200, 2026-11-30, commit 8c24323, b1 h16 s16384, head_dim 128,"
    " bf16; how, and how far such figures move from run to run, says [sm90.md](sm90.md#measured)."
    " Empty: not measured.\n"
)


def pictures() -> dict[str, str]:
    """Return every picture by its file name."""
    return {variant.picture_name: variant.picture() for variant in MASKS}


def table_of_masks() -> str:
    """Return a Markdown table of the masks, and a section with the emitted lines of each."""
    rows = ["| mask | bands | rest | speed | picture |", "|---|---|---|---|---|"]
    sections = []
    for variant in MASKS:
        language = lower_language(variant.spec)
        picture = f'<img src="pictures/{variant.picture_name}" alt="{variant.name}" width="220">'
        rest = "no" if language.rest is None else "by tile"
        rest = "block map" if language.mapped else rest
        rows.append(
            f"| {variant.name} | {len(language.bands)} | {rest} | {variant.speed} | {picture} |"
        )
        sections.append(_section(variant, language))
    return MEASURED + "\n" + "\n".join(rows) + "\n\n" + "\n".join(sections)


def sections_of_scores() -> str:
    """Return a table of the score functions, and a section with the emitted lines of each."""
    rows = [
        "| score function | speed |",
        "|---|---|",
        *(f"| {v.name} | {v.speed} |" for v in SCORES),
    ]
    sections = (_section(variant, lower_language(variant.spec)) for variant in SCORES)
    return "\n".join(rows) + "\n\n" + "\n".join(sections)


def _section(variant: Variant, language: Language) -> str:
    call = f"AttentionSpec({variant.code})"
    if len(call) > 100:  # as a formatter would break it
        call = f"AttentionSpec(\n    {variant.code}\n)"
    parts = [f"### {variant.name}\n", f"```python\n{call}\n```\n"]
    if variant.note:
        parts.append(variant.note + "\n")
    if language.score is not None:
        shown = [language.score]
    else:
        shown = [f for f in language.functions if f is not language.score]
    if variant in SCORES and language.mask is not None:
        shown = [f for f in shown if f is language.score]
    texts = "\n\n".join(function.text for function in shown)
    parts.append(f"```cpp\n{texts}\n```\n")
    return "\n".join(parts)
