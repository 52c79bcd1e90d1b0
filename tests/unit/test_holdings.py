"""What a holder's events say of it."""

import pytest

from forebay.router.prefix.blocks import Event, Removed, Stored, Tier
from forebay.router.prefix.index import Index
from tests.unit.naive_index import WEIGHTS, hashes, keys, prompt, stored

TURN = prompt(1, 320)
EVERY = hashes(TURN, 16)


@pytest.fixture
def index() -> Index:
    index = Index(WEIGHTS)
    index.attach("a")
    return index


def held(index: Index, *events: Event) -> int:
    """Tokens of the prompt that are held once it said so."""
    index.apply("a", events)
    return index.held("a", keys(TURN)).tokens


def test_what_is_stored_twice_is_removed_twice(index: Index) -> None:
    assert held(index, stored(TURN), stored(TURN), stored(TURN[:64])) == 320
    assert index.counts.duplicates == 24
    assert held(index, Removed(EVERY)) == 320
    assert held(index, Removed(EVERY)) == 64
    assert held(index, Removed(EVERY[:4] * 2)) == 0  # one more than there were
    assert index.counts.unknown == 4
    assert held(index, stored(TURN)) == 320


def test_duplicates_count_in_each_tier_for_itself(index: Index) -> None:
    held(index, stored(TURN), stored(TURN, tier=Tier.CPU), stored(TURN, tier=Tier.CPU))
    assert held(index, Removed(EVERY), Removed(EVERY, Tier.CPU)) == 320
    assert held(index, Removed(EVERY)) == 320
    assert held(index, Removed(EVERY, Tier.CPU)) == 0


def test_a_removal_from_where_it_is_not_changes_nothing(index: Index) -> None:
    assert held(index, stored(TURN), Removed(EVERY, Tier.CPU), Removed([5, 6], Tier.GPU)) == 320
    assert index.counts.unknown == 22


def test_blocks_without_tokens_are_known_by_their_hash(index: Index) -> None:
    held(index, stored(TURN), Stored(list(EVERY), None, [], 0, tier=Tier.CPU))
    assert held(index, Removed(EVERY)) == 320
    assert held(index, Removed(EVERY[10:], Tier.CPU)) == 160


def test_blocks_without_tokens_wait_until_another_tier_tells_of_them(index: Index) -> None:
    assert held(index, Stored(list(EVERY), None, [], 0, tier=Tier.CPU)) == 0
    assert index.sizes().parked == 20
    assert held(index, stored(TURN), Removed(EVERY)) == 320
    assert index.sizes().parked == 0


def test_a_known_block_needs_no_parent(index: Index) -> None:
    held(index, stored(TURN), Removed(EVERY[:10]))
    moved = Stored(EVERY[10:], 12345, list(TURN[160:]), 16, tier=Tier.CPU)
    held(index, moved, Removed(EVERY[10:]))
    assert held(index, stored(TURN[:160])) == 320


@pytest.mark.parametrize("together", [True, False])
def test_orphans_wait_for_their_parent(index: Index, together: bool) -> None:
    events: list[Event] = [stored(TURN, start=15), stored(TURN[:240], start=5), stored(TURN[:80])]
    if together:
        assert held(index, *events) == 320
    else:
        assert [held(index, event) for event in events] == [0, 0, 320]
    assert index.sizes().parked == 0


def test_orphans_may_wait_for_a_block_within_a_run(index: Index) -> None:
    fork = TURN[:96] + prompt(2, 64)
    index.apply("a", [stored(fork, start=6), stored(TURN, start=4)])
    index.apply("a", [stored(TURN[:64])])
    assert index.held("a", keys(fork)).tokens == 160
    assert held(index) == 320


def test_what_is_removed_while_it_waits_does_not_come(index: Index) -> None:
    assert held(index, stored(TURN, start=5), Removed(EVERY[9:]), stored(TURN[:80])) == 128
    assert index.counts.unknown == 0
    assert held(index, Removed(EVERY[9:10])) == 128
    assert index.counts.unknown == 1


def test_waiting_twice_and_removed_once_is_there_once(index: Index) -> None:
    assert held(index, stored(TURN, start=5), stored(TURN, start=5), Removed(EVERY[5:]), stored(TURN[:80])) == 320
    assert held(index, Removed(EVERY[5:])) == 64


def test_media_and_what_follows_them_match_nothing(index: Index) -> None:
    event = stored(TURN[:160])
    event.inexact = 4
    assert held(index, event, stored(TURN, start=10)) == 64
    assert index.sizes().blocks["a"] == 20
    assert index.sizes().parked == 0
    assert held(index, Removed(EVERY[4:])) == 64
    assert index.counts.unknown == 0


def test_a_prompt_that_begins_with_media(index: Index) -> None:
    event = stored(TURN)
    event.inexact = 0
    assert held(index, event, event, Removed(EVERY)) == 0
    assert index.sizes().blocks["a"] == 20
    held(index, Removed(EVERY))
    assert index.sizes().blocks["a"] == 0


def test_pages_of_one_token_in_one_message(index: Index) -> None:
    """SGLang's default: an event for each token, each the parent of the next."""
    every = hashes(TURN, 1)
    pages: list[Event] = [Stored([every[n]], every[n - 1] if n else None, [TURN[n]], 1) for n in range(320)]
    assert held(index, *pages) == 320
    assert held(index, Removed(every[100:])) == 96
    assert index.counts.unknown == 0
    assert held(index, *pages[100:]) == 320


def test_blocks_of_several_sizes_in_one_holder(index: Index) -> None:
    """Hybrid models name a large block's beginning by a hash of its own."""
    assert held(index, stored(TURN, 64), stored(TURN[:160], 32)) == 320
    assert held(index, Removed(hashes(TURN, 64)[1:])) == 160
    assert held(index, stored(TURN, 64, start=1), Removed(hashes(TURN, 32)[:5])) == 320
    assert held(index, Removed(hashes(TURN, 64))) == 0
    assert index.sizes().keys == 0


def test_a_block_of_another_size_may_follow(index: Index) -> None:
    first = stored(TURN[:48])
    larger = Stored([1, 2, 3], first.hashes[-1], list(TURN[48:240]), 64)
    assert held(index, first, larger, Stored([4], 3, list(TURN[240:]), 80)) == 320
    assert held(index, Removed([2])) == 96


def test_what_follows_half_a_cell_goes_with_it(index: Index) -> None:
    fork = TURN[:80] + prompt(2, 48)
    assert held(index, stored(TURN), stored(fork, start=5)) == 320
    held(index, Removed([EVERY[4]]))
    assert index.held("a", keys(fork)).tokens == 64
    assert held(index, stored(TURN[:80], start=4)) == 64  # those two have to be told of again
    assert held(index, stored(TURN[:96], start=5)) == 320


def test_many_prompts_that_part_within_a_cell(index: Index) -> None:
    held(index, stored(TURN[:16]))
    forks = [TURN[:16] + prompt(number, 48) for number in range(2, 300)]
    for fork in forks:
        index.apply("a", [stored(fork, start=1)])
    for fork in forks[10:]:
        index.apply("a", [Removed(hashes(fork, 16)[:0:-1])])
    assert all(index.held("a", keys(fork)).tokens == 64 for fork in forks[:10])
    held(index, Removed(EVERY[:1]))
    assert not any(index.match(keys(fork)) for fork in forks)


def test_other_conversations_stay(index: Index) -> None:
    other = prompt(3, 640)
    held(index, stored(TURN), stored(other), Removed(EVERY))
    assert index.held("a", keys(other)).tokens == 640
