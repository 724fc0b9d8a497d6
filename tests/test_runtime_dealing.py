"""Dealing of causal tiles to the blocks of a persistent grid."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fmhagen.runtime.dealing import GOOD_BALANCE, choose_deal


def dealt(tiles: int, heads: int, sections: int, blocks: int, shift: int) -> list[tuple[int, int]]:
    """Walk as `next_tile` of the emitted file does; return (block, index of the tile)."""
    found = []
    rounds = -(-tiles // blocks)
    for block in range(blocks):
        lane = block
        for section in range(sections):
            for turn in range(rounds):
                place = lane if turn % 2 == 0 else blocks - 1 - lane
                rest = turn * blocks + place
                if rest < tiles:
                    found.append((block, section * tiles + rest))
            lane += shift
            lane -= blocks if lane >= blocks else 0
    return found


@given(
    m_tiles=st.integers(1, 20),
    batch_heads=st.integers(1, 24),
    blocks=st.integers(1, 40),
    l2_heads=st.integers(0, 30),
)
@settings(max_examples=60, deadline=None)
def test_every_tile_is_dealt_once(
    m_tiles: int, batch_heads: int, blocks: int, l2_heads: int
) -> None:
    blocks = min(blocks, m_tiles * batch_heads)
    deal = choose_deal(
        steps=tuple(range(1, m_tiles + 1)),
        batch_heads=batch_heads,
        blocks=blocks,
        most_heads=2 * l2_heads,
        l2_heads=l2_heads,
    )
    heads = deal.heads_per_section
    assert batch_heads % heads == 0
    assert 0 <= deal.lane_shift < blocks
    walked = dealt(heads * m_tiles, heads, batch_heads // heads, blocks, deal.lane_shift)
    assert sorted(index for _, index in walked) == list(range(m_tiles * batch_heads))


def test_the_balance_is_that_of_the_walk() -> None:
    steps = tuple(range(1, 33))
    deal = choose_deal(steps=steps, batch_heads=64, blocks=132, most_heads=24, l2_heads=12)
    heads = deal.heads_per_section
    work = [0.0] * 132
    for block, index in dealt(heads * 32, heads, 64 // heads, 132, deal.lane_shift):
        work[block] += steps[31 - index % (heads * 32) // heads] + 2.0
    assert abs(sum(work) / 132 / max(work) - deal.balance) < 1e-12
    assert deal.balance >= GOOD_BALANCE


def test_a_larger_section_is_taken_only_for_balance() -> None:
    steps = tuple(range(1, 257))
    fitting = choose_deal(steps=steps, batch_heads=16, blocks=132, most_heads=8, l2_heads=4)
    assert fitting.heads_per_section <= 4
    # 128 tiles a section leave every block one tile of a fixed length: two heads balance.
    single = choose_deal(
        steps=tuple(range(1, 129)), batch_heads=8, blocks=132, most_heads=2, l2_heads=1
    )
    assert single.heads_per_section == 2
    assert single.balance > 0.99
