"""MapPlan: a classifier kernel, decided; and its text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fmhagen.emission import assemble
from fmhagen.emission.definitions import Definition, parse
from fmhagen.emission.environment import render
from fmhagen.lowering.language import lower_language
from fmhagen.mapping.spec import WORD_TILES, MapSpec
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.language import Language
from fmhagen.plan.params import pack_params
from fmhagen.plan.small import THREADS, SmallPlan, numbers
from fmhagen.resources import templates_dir
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, Target, find_target

BYTE_TILES = 8  # key tiles of a wave: a byte of each bitmap
CHUNK_ROWS = 16  # query rows between two looks at whether a tile is decided already
_OWN_FIELDS = (
    ("u8*", "block_map", "[B or 1, H or 1, num_m_tiles, num_words, 2], as u32"),
    ("u32", "num_bytes", "of one bitmap: B * H * num_m_tiles * num_words * 4"),
    ("u32", "num_heads", "H, or 1 if the mask is that of every head"),
    ("u32", "num_m_tiles", "ceil(Sq / TILE_M)"),
    ("u32", "num_words", "ceil(Sk / (TILE_N * WORD_TILES))"),
    ("u32", "seqlen_q", "Sq"),
    ("u32", "seqlen_k", "Sk"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPlan(SmallPlan):
    """One classifier kernel; a tile of its grid is what the waves of a block classify at once.

    Attributes:
        language: the mask as C++.
    """

    SKELETON = "classify"
    EMIT = "emit_map"

    spec: MapSpec
    language: Language


def lower_map(spec: MapSpec, target: Target) -> MapPlan:
    """Decide everything that the text and the launch of a classifier need."""
    language = lower_language(AttentionSpec(mask_mod=spec.mask), mapped=False)
    lanes = target.lanes_per_warp
    keys = min(lanes, spec.tile_n & -spec.tile_n) if spec.tile_n < lanes else lanes
    params, size = pack_params((*_OWN_FIELDS, *language.fields))
    digest = hashlib.sha256(str(spec.mask).encode()).hexdigest()[:6]
    return MapPlan(
        spec=spec,
        target=target,
        symbol=f"classify_mask{digest}__m{spec.tile_m}n{spec.tile_n}__{target.symbol_suffix}",
        constants=numbers(
            (
                ("TILE_M", spec.tile_m, "query rows of a tile"),
                ("TILE_N", spec.tile_n, "keys of a tile"),
                ("THREADS", THREADS, "of a block"),
                ("WAVE_LANES", lanes, "lanes that vote together"),
                ("WAVES", THREADS // lanes, "of a block"),
                ("WORD_TILES", WORD_TILES, "key tiles of a word of a bitmap"),
                ("BYTE_TILES", BYTE_TILES, "key tiles of a wave: a byte of each bitmap"),
                ("LANE_KEYS", keys, "keys that the lanes of a wave look at together"),
                ("LANE_ROWS", lanes // keys, "query rows: WAVE_LANES / LANE_KEYS"),
                ("CHUNK_ROWS", CHUNK_ROWS, "turns between two looks at whether a tile is decided"),
            )
        ),
        params=params,
        params_bytes=size,
        grid=GridFormula(
            tile_m=THREADS // lanes, max_blocks=target.max_blocks_x, per_compute_unit=0
        ),
        language=language,
    )


def emit_map(spec: MapSpec, *, target: str = TARGETS[0].name) -> Source:
    """Print a classifier kernel as one self-contained source file."""
    return source_of(lower_map(spec, find_target(target)))


def source_of(plan: MapPlan) -> Source:
    """Print a plan."""
    prelude = templates_dir() / "prelude" / plan.target.prelude
    suffix = plan.target.prelude_suffix

    def layer(path: str, name: str) -> tuple[Definition, ...]:
        return parse((prelude / path).read_text(encoding="ascii"), name)

    available: tuple[Definition, ...] = (
        *layer(f"isa{suffix}", "isa"),
        *layer(f"isa_map{suffix}", "isa"),
        *(item for item in layer(f"tile{suffix}", "tile") if item.name == "clamp"),
        *layer("../language.h", "tile"),
        *parse(plan.language.text, "tile"),
        *parse(render("parts/classify/vocabulary.j2", plan), "tile"),
    )
    return assemble(plan, available)
