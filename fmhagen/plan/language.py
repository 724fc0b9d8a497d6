"""Language: what templates get of a mask and a score function; see `fmhagen.lowering.language`."""

from __future__ import annotations

from dataclasses import dataclass

from fmhagen.expr.bands import Bounds
from fmhagen.expr.cap import Cap
from fmhagen.expr.cxx import CxxFunction
from fmhagen.expr.nodes import Parameter, Type

MAP_FIELDS = (
    ("const u32*", "block_map", "[B or 1, H or 1, rows of tiles, block_map_words, 2]"),
    ("i64", "block_map_stride_b", "words of 32 bits; 0 if every batch entry has the same map"),
    ("i64", "block_map_stride_h", "the same of query heads"),
    ("u32", "block_map_words", "words of visible, and of full, of a row of tiles"),
)
"""The fields of the parameter block that a mapped kernel has besides."""

_MAP_TEXT = """\
// What 32 key tiles show to a row of tiles, a bit each: some query sees some key; all see all.
struct MapWord {
  u32 visible;
  u32 full;
};

// Key tiles 32 * word and on, of row `row` of the block map.
FMHAGEN_DEVICE MapWord map_word(const Params& params, const Place& place, u32 row, u32 word) {
  const i64 first = place.b * params.block_map_stride_b + place.h * params.block_map_stride_h;
  const i64 index = first + (static_cast<i64>(row) * params.block_map_words + word) * 2;
  MapWord found;
  found.visible = static_cast<u32>(load_param_i32(params.block_map, index));
  found.full = static_cast<u32>(load_param_i32(params.block_map, index + 1));
  return found;
}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A parameter as a kernel reads it.

    Attributes:
        parameter: its declaration.
        axes: for each axis what indexes it: leaves ("b", "h", "q_idx", "kv_idx"), numbers, and
            "computed". A kernel does not check leaves and numbers: the size of an axis must be
            above each of them, or its stride 0. What is computed is clamped to the size.
    """

    parameter: Parameter
    axes: tuple[tuple[str, ...], ...]

    @property
    def fields(self) -> tuple[tuple[str, str, str], ...]:
        """(ctype, name, comment) of its fields in the parameter block."""
        parameter = self.parameter
        name = f"arg_{parameter.name}"
        if not parameter.ndim:
            ctype = "f32" if parameter.type == Type.F32 else "i32"
            return ((ctype, name, "of the mask or score function"),)
        indices = ",".join("|".join(axis) for axis in self.axes)
        fields = [("const void*", name, f"{parameter.dtype} [{indices}]")]
        for axis, kinds in enumerate(self.axes):
            fields.append(("i64", f"{name}_stride_{axis}", "elements"))
            if "computed" in kinds:
                fields.append(("i32", f"{name}_size_{axis}", "elements of that axis"))
        return tuple(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class CxxBand:
    """The functions of one band: the first key that a row sees, and one past the last."""

    first: CxxFunction
    end: CxxFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class CxxLine:
    """A score function that is a line in score and key: what one more of each adds to it.

    Attributes:
        gain: the function of what the score is multiplied by.
        slope: the function of what one key more adds, or None if the key does not matter.
        is_level: it matters, and both are the same for all rows.
    """

    gain: CxxFunction
    slope: CxxFunction | None
    is_level: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CxxLabels:
    """A rest that shows to a row the keys whose label is its own: the functions of both."""

    row: CxxFunction
    key: CxxFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """What templates get of a mask and a score function.

    Attributes:
        place: the struct Place and the function that fills it, place_of: what mask and score
            function read from memory for all of a tile of work is read once.
        score: the score function, or None if scores stay.
        line: the same as a line in score and key, or None if it is none, or may hide.
        joins_rows: sm90 leaves out of the line what is the same for all keys of a row, so that rows
            of a thread have one reference and one addend for a key.
        cap: the same as a soft cap, or None if it is none.
        mask: the whole mask but the end of the keys, or None if everything is visible.
        rest_key: what of the mask the bands do not say of a key, where bands say the other; or None
            if they say all, or the mask itself is asked.
        labels: the same as a comparison of a number of the row with one of the key, or None.
        bands: at least one; that of no mask is [0, seqlen_k).
        rest: class of a tile by what the bands do not say (0 hidden, 1 partly, 2 fully visible),
            or None if they say all.
        mapped: what a tile shows is read from a block map, which knows the whole mask, and not
            from bands: the only one is [0, seqlen_k), unless bands say what a row sees.
        exact: the mask is the range of keys of one band.
        right_only: exact, and that range begins with the first key.
        may_hide: the score function may give -inf or NaN for a finite score.
        score_ops: (operation, count) of one score: what the score function does for each.
        arguments: what mask and score function read at run time, by name.
        bounds: the bands and the rest as expressions.
    """

    place: str
    score: CxxFunction | None
    line: CxxLine | None
    cap: Cap | None
    mask: CxxFunction | None
    rest_key: CxxFunction | None
    labels: CxxLabels | None
    bands: tuple[CxxBand, ...]
    rest: CxxFunction | None
    mapped: bool
    exact: bool
    right_only: bool
    may_hide: bool
    score_ops: tuple[tuple[str, int], ...]
    arguments: tuple[Argument, ...]
    bounds: Bounds
    joins_rows: bool = False

    @property
    def joined(self) -> str:
        """The end of the name of the function that moves references of joined rows, or nothing."""
        return "_joined" if self.joins_rows else ""

    @property
    def masked_softmax(self) -> str:
        """The function of a step of sm90 in which a row may have seen no key yet."""
        return "softmax_floored" if self.may_hide else "softmax_masked"

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What mask and score function read at run time, by name."""
        return tuple(argument.parameter for argument in self.arguments)

    @property
    def fields(self) -> tuple[tuple[str, str, str], ...]:
        """The fields of the parameter block that the functions read; see `plan.pack_params`."""
        own = (field for argument in self.arguments for field in argument.fields)
        return (*own, *(MAP_FIELDS if self.mapped else ()))

    @property
    def functions(self) -> tuple[CxxFunction, ...]:
        """Every function, in the order in which they are printed."""
        bands = (part for band in self.bands for part in (band.first, band.end))
        line = () if self.line is None else (self.line.gain, self.line.slope)
        mask = self.rest_key or self.mask
        labels = () if self.labels is None else (self.labels.row, self.labels.key)
        found = (self.score, *line, mask, *labels, *bands, self.rest)
        return tuple(item for item in found if item is not None)

    @property
    def text(self) -> str:
        """Every definition, a blank line between two."""
        texts = (self.place, *(item.text for item in self.functions))
        return "\n\n".join((*texts, *((_MAP_TEXT,) if self.mapped else ()))) + "\n"
