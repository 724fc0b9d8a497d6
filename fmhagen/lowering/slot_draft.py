"""What the placing of atoms in a slot table starts from: a step's shape, and its empty slots."""

from __future__ import annotations

from dataclasses import dataclass, field

from fmhagen.plan.slots import Atom, MatrixForm

VECTOR_CLK = 4  # a vector instruction of 64 lanes, also a packed one


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """How rows of K and V are looked up in the pages of a cache.

    Attributes:
        size: keys of a page.
        value_lookups: pages that are looked up for a piece of V.
    """

    size: int
    value_lookups: int

    @property
    def is_power(self) -> bool:
        """Whether dividing by the size is a shift."""
        return self.size & (self.size - 1) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The numbers that a slot table follows from.

    Attributes:
        form: the matrix instruction.
        unit: keys of one step, 32 or 64.
        depth_steps: blocks of the QK depth, each as long as the form's span.
        value_blocks: blocks of 32 of the V depth.
        key_pieces: pieces of K that one thread stages a unit.
        value_pieces: pieces of V that one thread stages a unit.
        value_keys: keys of one piece of V, 4 or 8.
        round_clk: vector work that rounds two numbers of P to one register.
        prefetch: fragments that reads of LDS run ahead.
        walks: whether units are found one by one, rather than one behind the other.
        pages: how rows are looked up, or None where they lie one behind the other.
        score_clks: vector work of the score function for two scores, part by part.
        widen_clk: vector work that brings two numbers of K to 16 bits; 0 where they have them.
        value_widen_clk: the same of V.
        scales_tokens: whether keys and values have a factor each.
        fetched_loads: elements that are fetched ahead of the score function, for one score.
    """

    form: MatrixForm
    unit: int
    depth_steps: int
    value_blocks: int
    key_pieces: int
    value_pieces: int
    value_keys: int
    round_clk: int
    prefetch: int
    walks: bool = False
    pages: Pages | None = None
    score_clks: tuple[int, ...] = ()
    fetched_loads: int = 0
    widen_clk: int = 0
    value_widen_clk: int = 0
    scales_tokens: bool = False

    @property
    def hides_last(self) -> bool:
        """Whether scores are changed before they are hidden, which then comes last."""
        return bool(self.score_clks) or self.scales_tokens

    @property
    def score_clk(self) -> int:
        """Vector work of the score function for two scores."""
        return sum(self.score_clks)

    @property
    def key_fragments(self) -> int:
        """Fragments of K in one step; each serves `form.uses` matrix instructions."""
        return self.unit // 32 * self.depth_steps * self.form.lane_rows

    @property
    def value_fragments(self) -> int:
        """Fragments of V^T in one step."""
        return self.unit // 16 * self.value_blocks


@dataclass(slots=True)
class Draft:
    """Slots while they are filled."""

    atoms: list[list[Atom]]
    vector_clk: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start with nothing in the slots."""
        self.vector_clk = [0] * len(self.atoms)
        self.memory = [0] * len(self.atoms)

    def put(self, slot: int, atom: Atom) -> None:
        """Append an atom to a slot."""
        self.atoms[slot].append(atom)
        self.vector_clk[slot] += atom.clk
        self.memory[slot] += atom.is_memory

    def open_slot(self, first: int, last: int) -> int | None:
        """Return the first slot in [first, last] without a memory operation."""
        return next((s for s in range(max(first, 0), last + 1) if self.memory[s] == 0), None)
