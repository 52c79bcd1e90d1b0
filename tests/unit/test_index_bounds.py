"""What one holder can cost, whatever it does."""

from itertools import pairwise

import pytest

from forebay.router.prefix.blocks import Cleared, Event, Removed, Stored, Tier
from forebay.router.prefix.index import Index, Match
from tests.unit.naive_index import WEIGHTS, hashes, keys, prompt, stored

MOST = 640


@pytest.fixture
def index() -> Index:
    index = Index(WEIGHTS, blocks_per_holder=MOST)
    index.attach("honest")
    index.attach("flood")
    return index


def test_a_flood_drops_its_own_oldest_blocks_and_nobody_elses(index: Index) -> None:
    index.apply("honest", [stored(prompt(0, 640))])
    for number in range(1, 100):
        index.apply("flood", [stored(prompt(number, 640))])
        assert index.sizes().blocks["flood"] <= MOST
    assert index.match(keys(prompt(0, 640))) == {"honest": Match(640, 640)}
    assert index.match(keys(prompt(1, 640))) == {}
    assert index.held("flood", keys(prompt(99, 640))) == Match(640, 640)
    sizes = index.sizes()
    assert sizes.blocks["flood"] == 99 * 40 - sizes.counts.dropped
    assert sizes.keys <= MOST // 2 + 20


def test_one_batch_beyond_the_bound(index: Index) -> None:
    index.apply("flood", [stored(prompt(1, 16 * 10 * MOST))])
    assert index.sizes().blocks["flood"] <= MOST
    assert index.match(keys(prompt(1, 16 * 10 * MOST))) == {}


def test_dropped_blocks_may_come_again_and_be_removed(index: Index) -> None:
    for number in range(50):
        index.apply("flood", [stored(prompt(number, 640))])
    first = prompt(0, 640)
    index.apply("flood", [Removed(hashes(first, 16))])
    assert index.counts.unknown == 40
    index.apply("flood", [stored(first)])
    assert index.held("flood", keys(first)) == Match(640, 640)


def test_slower_tiers_that_never_remove_cannot_push_out_the_fastest(index: Index) -> None:
    system = prompt(0, 320)
    index.apply("flood", [stored(system)])
    for number in range(1, 200):
        index.apply("flood", [stored(prompt(number, 640), tier=Tier.CPU)])
        assert index.sizes().blocks["flood"] <= MOST
    assert index.held("flood", keys(system)) == Match(320, 320)


def test_to_clear_is_quick_and_to_sweep_is_in_steps() -> None:
    index = Index(WEIGHTS)
    index.attach("a")
    for number in range(10):
        index.apply("a", [stored(prompt(number, 16 * 1000))])
    index.clear("a")
    assert index.match(keys(prompt(1, 64))) == {}
    left = [index.sizes().unswept]
    assert left[0] > 8000
    while index.sweep(500):
        left.append(index.sizes().unswept)
    assert all(0 <= before - after <= 500 for before, after in pairwise(left))
    assert index.sizes().keys == 0


def test_batches_sweep_what_others_left() -> None:
    index = Index(WEIGHTS)
    index.attach("a")
    index.attach("b")
    index.apply("a", [stored(prompt(0, 16 * 8000))])
    index.detach("a")
    for number in range(20):
        index.apply("b", [stored(prompt(1, (number + 1) * 16), start=number)])
    assert index.sizes().unswept == 0
    assert index.sizes().keys == 10


def test_cleared_again_and_again(index: Index) -> None:
    events: list[Event] = []
    for number in range(300):
        events += [stored(prompt(number, 640)), Cleared()]
    index.apply("flood", events)
    for number in range(60):
        index.apply("flood", [stored(prompt(number, 9600)), Cleared()])
        assert index.sizes().unswept <= 6 * MOST
    assert index.match(keys(prompt(7, 640))) == {}
    while index.sweep(1000):
        pass
    assert index.sizes().keys == 0


def test_a_bit_that_was_another_holders_says_nothing_of_it() -> None:
    index = Index(WEIGHTS)
    for turn in range(20):
        name = f"engine-{turn}"
        index.attach(name)
        assert index.match(keys(prompt(0, 16 * 3000))) == {}
        index.apply(name, [stored(prompt(0, 16 * 3000))])
        index.expect(name, keys(prompt(1, 640)), 0, until=1.0)
        index.detach(name)
    assert index.match(keys(prompt(1, 640))) == {}


def test_orphans_are_bounded_and_the_oldest_go(index: Index) -> None:
    for number in range(3000):
        index.apply("flood", [Stored([number + 1], -number - 1, [1] * 16, 16)])
    assert index.sizes().parked == 1024
    assert index.counts.orphans == 3000 - 1024
    long = [Stored([10**6 + number], -(10**6) - number, [1] * 65536, 65536) for number in range(10)]
    index.apply("flood", long)
    assert index.sizes().parked == 4


def test_a_chain_of_orphans_told_backwards_is_healed_at_once(index: Index) -> None:
    tokens = prompt(0, 16 * 600)
    for number in reversed(range(1, 600)):
        index.apply("flood", [stored(tokens[: (number + 1) * 16], start=number)])
    assert index.sizes().parked == 599
    index.apply("flood", [stored(tokens[:16])])
    assert index.sizes().parked == 0
    assert index.held("flood", keys(tokens)).tokens == 16 * 600
