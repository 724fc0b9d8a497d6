"""MapPlan: a classifier kernel, decided; and its text."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from fmhagen.emission import assemble
from fmhagen.emission.definitions import Definition, parse
from fmhagen.emission.environment import render
from fmhagen.grid import GridFormula
from fmhagen.language import Language
from fmhagen.lowering.language import lower_language
from fmhagen.mapping.spec import WORD_TILES, MapSpec
from fmhagen.params import ParamField, pack_params
from fmhagen.plan import Constant, SharedRegion
from fmhagen.resources import templates_dir
from fmhagen.source import Source
from fmhagen.spec import AttentionSpec
from fmhagen.targets import TARGETS, Target, find_target
from fmhagen.wrapping import wrapped_call

THREADS = 128
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
class MapPlan:
    """One classifier kernel; the names are those of `plan.Plan`.

    Attributes:
        spec, target: what it was lowered from.
        symbol: `extern "C"` name.
        constants: the numbers, in printing order.
        params: fields of the packed parameter block.
        params_bytes: its size.
        grid: the grid formula; a tile is what the waves of a block classify at once.
        language: the mask as C++.
        threads, shared, shared_bytes, shared_is_dynamic, is_dependent, wave_groups: as in
            `plan.Plan`.
    """

    spec: MapSpec
    target: Target
    symbol: str
    constants: tuple[Constant, ...]
    params: tuple[ParamField, ...]
    params_bytes: int
    grid: GridFormula
    language: Language
    threads: int = THREADS
    shared: tuple[SharedRegion, ...] = ()
    shared_bytes: int = 0
    shared_is_dynamic: bool = False
    is_dependent: bool = False
    wave_groups: int = 1

    @property
    def filename(self) -> str:
        """Base name of the emitted file."""
        return self.symbol + self.target.file_suffix

    @property
    def kernel_template(self) -> str:
        """The skeleton under `templates/` that the kernel is printed with."""
        return f"kernels/classify{self.target.file_suffix}.j2"

    @property
    def constructor(self) -> str:
        """The Python expression that recreates this plan's source."""
        return f"emit_map({self.spec!r}, target={self.target.name!r})"

    @property
    def constructor_lines(self) -> tuple[str, ...]:
        """The same, an argument a line."""
        return (
            "fmhagen.emit_map(",
            *wrapped_call(repr(self.spec)),
            f"    target={self.target.name!r},",
            ")",
        )


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
        constants=tuple(
            Constant(ctype="u32", name=name, value=value, comment=comment)
            for name, value, comment in (
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
