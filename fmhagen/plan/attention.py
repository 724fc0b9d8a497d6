"""Plan: all that a template may print and a runtime must know; nothing of how it was decided.

A template reads one object, `plan`. Numbers stand in `constants`, so two instances that differ in
numbers alone differ in the constants block alone; structure stands in the boolean fields.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from fmhagen.plan.cap_steps import NO_CAP_STEPS, CapSteps
from fmhagen.plan.grid import GridFormula
from fmhagen.plan.language import Language
from fmhagen.plan.params import Constant as Constant
from fmhagen.plan.params import MatrixShape as MatrixShape
from fmhagen.plan.params import ParamField as ParamField
from fmhagen.plan.params import SharedRegion as SharedRegion
from fmhagen.plan.params import TensorMapPlan as TensorMapPlan
from fmhagen.plan.params import pack_params as pack_params
from fmhagen.plan.score_pair import ScorePair
from fmhagen.plan.slots import SlotTable
from fmhagen.plan.small_cache import NO_SMALL_CACHE, SmallCache
from fmhagen.plan.split import SplitPlan
from fmhagen.plan.wrapping import wrapped_call
from fmhagen.schedule import COMBINE_THREADS, Schedule
from fmhagen.spec import AttentionSpec
from fmhagen.targets import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One kernel instance, decided.

    Attributes:
        spec, schedule, target: what it was lowered from.
        symbol: `extern "C"` name; encodes the structural choices, dims last.
        filename, threads: base name of the emitted file; threads of one block.
        constants: the numbers, in printing order.
        params, params_bytes: fields of the packed parameter block, in order; its size.
        tensor_maps: how the tensor maps in it are encoded.
        shared, shared_bytes: the shared-memory map, in order of offset, and its size.
        shared_is_dynamic, grid: asked for at launch, not declared in the source; the grid formula.
        matrix_shapes: the warpgroup matrix instructions in use.
        element: "bf16" or "f16": suffix of the instructions in use.
        causal, top_left, language: the mask's structure; it and the score function as C++.
        conditional_rescale, rescale_on_overflow: see `schedule.Rescale`.
        heads_in_l2_bytes: K and V that one section of heads may hold, for the tile order.
        two_p_buffers, ping_pong, skip_hidden, split_q, overlap_tiles: see `Schedule`.
        stage_output: O leaves through shared memory; see `schedule.Store`.
        slot_table: a step of a wave_pipelined loop as it is issued; of wave_ping_pong, products.
        has_two_groups: waves in two groups, half a step apart.
        round_call: function that rounds two numbers of P; "" where the main loop has its own.
        uses_accumulation_registers: a lane has more registers than vector instructions reach.
        value_keys_are_four: a thread stages V in pieces of four keys, else of eight.
        matrix, block_registers: a wave_pipelined loop's instruction; its accumulator, in a lane.
        lane_has_two_rows: its accumulators are so narrow that two of them cover a wave's queries.
        clustered: blocks form clusters; see `Schedule.cluster`.
        sorted_tiles: blocks order the tiles of a head by how long they take, in shared memory.
        snake: tiles are dealt to the blocks of a persistent grid forwards and backwards in turn.
        sink, max_logit: a logit without a value is in the denominator; a head's largest is kept.
        varlen: sequences are packed, of keys too but in a cache; a tile is of one of them.
        cached, paged: K and V are copied from a cache; it has pages; `split` says it of split_kv.
        small, cap: what a cache's 8-bit numbers are; how steps put a soft cap on scores.
        gathers: lanes copy its rows; else the copy engine, pieces of pages.
        packs_heads: heads of a group share tiles; see `Schedule.pack_heads`.
        ordered: blocks order sequences of different lengths before they deal them out.
        clears_unseen: values that no row of the sequence sees are set to zero on their way to LDS.
        walks: the keys of a tile are not all those before an end: units are found one by one.
        asks_query: the score function, or a mask that is no range, is asked for query and key.
        score_pair: the score function for two keys; None where it is printed for one, or not.
        hides_by_bits: a mask that is asked for each key is asked in a loop, for want of registers.
        clamps_keys: a key indexes a tensor of the mask or score function.
        longest_first: query tiles differ in work, the last ones of a sequence have the most.
        split: what a kernel over a key/value cache has besides; None for others.
        map_rows, map_keys: query rows and keys of a tile of the block map; 0 without one.
        is_dependent: it may be placed before the kernel ahead of it in the stream has ended.
        runs: key tiles are visited run by run, as bands say; else from the first key to an end.
        offset_mask: the mask is causal alone, of sequences of one length.
        reads_mask: partly visible tiles ask the rest of the mask about keys; else bands say all.
        labels: that rest asks whether a number of the row is equal to one of the key.
        keys_at_once: keys that a mask is asked about at once, if few operations are on a key; or 0.
        spare_registers: reads what bands show to rows before S is issued; a warp repairs P alone.
        posts_tiles, posts_runs: the thread that loads Q posts tiles, and all their runs of keys.
        posts_ranges: and what bands that stand in tensors show to the rows of a tile.
        row_bits: unsigned type with a bit for each of a thread's keys of one row and tile.
        has_place: a tile of work holds its place, see `fmhagen.plan.language`.
        pairs: of packed sequences: a tile from the end is dealt with one from the beginning.
        masked_on_growth: a partly visible step moves the reference only where a row outgrew it.
        modifies_first: the score function is put on all scores of a step before its softmax.
        score_factor, score_text: what brings a score to units of log2; it in them, in comments.
    """

    SCHEMA: ClassVar[int] = 1
    spec: AttentionSpec
    schedule: Schedule
    target: Target
    symbol: str
    filename: str
    threads: int
    constants: tuple[Constant, ...]
    params: tuple[ParamField, ...]
    params_bytes: int
    tensor_maps: tuple[TensorMapPlan, ...]
    shared: tuple[SharedRegion, ...]
    shared_bytes: int
    shared_is_dynamic: bool
    grid: GridFormula
    matrix_shapes: tuple[MatrixShape, ...]
    element: str
    causal: bool
    top_left: bool
    conditional_rescale: bool
    heads_in_l2_bytes: int
    language: Language
    rescale_on_overflow: bool = False
    two_p_buffers: bool = False
    ping_pong: bool = False
    stage_output: bool = True
    skip_hidden: bool = False
    snake: bool = False
    sorted_tiles: bool = False
    sink: bool = False
    max_logit: bool = False
    varlen: bool = False
    cached: bool = False
    paged: bool = False
    small: SmallCache = NO_SMALL_CACHE
    gathers: bool = False
    packs_heads: bool = False
    ordered: bool = False
    clears_unseen: bool = False
    longest_first: bool = False
    clustered: bool = False
    split_q: bool = False
    overlap_tiles: bool = True
    walks: bool = False
    asks_query: bool = False
    clamps_keys: bool = False
    hides_by_bits: bool = False
    runs: bool = False
    offset_mask: bool = False
    reads_mask: bool = False
    labels: bool = False
    keys_at_once: int = 0
    spare_registers: bool = False
    posts_tiles: bool = False
    posts_runs: bool = False
    posts_ranges: bool = False
    row_bits: str = "u32"
    has_place: bool = False
    pairs: bool = False
    masked_on_growth: bool = False
    modifies_first: bool = False
    cap: CapSteps = NO_CAP_STEPS
    score_factor: str = "params.scale_log2"
    score_text: str = "scale_log2 * S"
    score_pair: ScorePair | None = None
    slot_table: SlotTable | None = None
    round_call: str = ""
    uses_accumulation_registers: bool = False
    value_keys_are_four: bool = False
    has_two_groups: bool = False
    matrix: str = ""
    block_registers: int = 0
    lane_has_two_rows: bool = False
    split: SplitPlan | None = None
    map_rows: int = 0
    map_keys: int = 0
    is_dependent: bool = False

    @property
    def kernel_template(self) -> str:
        """The skeleton under `templates/` that the plan's kernels are printed with."""
        target = self.target
        return target.kernel_template if self.split is None else target.cache_template

    @property
    def combine(self) -> Plan | None:
        """The second kernel of the same file, which adds up what the first one has cut."""
        split = self.split
        if split is None and not self.schedule.split_keys:
            return None
        threads = COMBINE_THREADS if split is None else split.combine_threads
        size = 0 if split is None else split.combine_shared_bytes
        return dataclasses.replace(
            self,
            symbol=f"{self.symbol}_combine",
            threads=threads,
            shared=(),
            shared_bytes=size,
            is_dependent=self.is_dependent or split is None,
        )

    @property
    def wave_groups(self) -> int:
        """Groups of waves that run the main loop half a step apart."""
        return 2 if self.has_two_groups else 1

    @property
    def qk_shape(self) -> MatrixShape:
        """The instruction of S = Q K^T."""
        return self.matrix_shapes[0]

    @property
    def rows_text(self) -> str:
        """The queries of a tile's sequence, as the kernel says it."""
        return "rows_of(params, tile)" if self.has_place else "params.seqlen_q"

    @property
    def keys_text(self) -> str:
        """The keys of a tile's sequence, likewise."""
        return "keys_of(params, tile)" if self.has_place else "params.seqlen_k"

    @property
    def q_row_text(self) -> str:
        """The first row of a tile in the tensor maps of Q and O."""
        return "q_row(params, tile)" if self.varlen else "tile.m_first"

    def key_row(self, n: str) -> str:
        """The row of key `n`, an expression, in the tensor maps of K and V."""
        return f"k_row(params, tile, {n})" if self.has_place else n

    @property
    def q_batch_call(self) -> str:
        """The function that gives the last coordinate in the tensor maps of Q and O."""
        return "q_batch" if self.varlen else "batch_of"

    @property
    def k_batch_call(self) -> str:
        """The function that gives the last coordinate in the tensor maps of K and V."""
        return "k_batch" if self.varlen else "batch_of"

    @property
    def release_call(self) -> str:
        """The function that hands a buffer of K or V back."""
        return "release_in_cluster" if self.clustered else "release"

    @property
    def start_mask(self) -> str:
        """What cuts a block's rank off the start address of a descriptor."""
        return " % (1u << 14)" if self.clustered else ""

    @property
    def copy_arrivals(self) -> str:
        """How many arrivals fill a buffer of K or V."""
        return "COPY_WARPS" if self.gathers else "1"

    @property
    def asks_place(self) -> bool:
        """Whether a mask or score function is asked about queries."""
        return self.language.mask is not None or self.language.score is not None

    @property
    def lands_apart(self) -> bool:
        """Whether values that are to be cleared land on a barrier of their own."""
        return self.cached and not self.gathers

    @property
    def load_query_call(self) -> str:
        """The function that loads a tile of Q."""
        return "load_packed" if self.varlen else "load_tile"

    @property
    def load_call(self) -> str:
        """The function that loads a tile of K or V."""
        return "load_share" if self.clustered else self.load_query_call

    @property
    def odd_columns(self) -> bool:
        """Whether rows of O end in 16 columns that the widest stores, of 32, leave over."""
        return self.spec.dv % 32 != 0

    @property
    def walker(self) -> str:
        """The function that numbers what walks over the tiles of work."""
        return "cluster_index" if self.clustered else "block_index"

    @property
    def walkers(self) -> str:
        """The function that counts what walks over the tiles of work."""
        return "cluster_count" if self.clustered else "grid_size"

    @property
    def pv_shape(self) -> MatrixShape:
        """The instruction of O = O + P V."""
        return self.matrix_shapes[1]

    @property
    def constructor(self) -> str:
        """The Python expression that recreates this plan's source."""
        return f"emit({self.spec!r}, {self.schedule!r}, target={self.target.name!r})"

    @property
    def constructor_lines(self) -> tuple[str, ...]:
        """The same, broken into lines."""
        return wrapped_call("fmhagen." + self.constructor)
