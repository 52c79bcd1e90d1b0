"""Events that cannot be true are counted, and cost nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.router.prefix.blocks import Cleared, Event, Removed, Stored, Tier
from forebay.router.prefix.index import Index, Match
from tests.unit.naive_index import WEIGHTS, hashes, keys, prompt, stored

TURN = prompt(1, 320)
LIES = {
    "no size": Stored([1], None, [5] * 16, 0),
    "negative size": Stored([1], None, [5] * 16, -16),
    "absurd size": Stored([1], None, [5] * (1 << 17), 1 << 17),
    "too few tokens": Stored([1, 2], None, [5] * 31, 16),
    "too many tokens": Stored([1, 2], None, [5] * 33, 16),
    "no hashes": Stored([], None, [5] * 16, 16),
    "negative token": Stored([1], None, [-1] * 16, 16),
    "large token": Stored([1], None, [1 << 32] * 16, 16),
    "huge token": Stored([1], None, [1 << 70] * 16, 16),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
@pytest.mark.parametrize("parent", [None, hashes(TURN, 16)[9]])
def test_lies_among_truths(lie: Stored, parent: int | None) -> None:
    index = Index(WEIGHTS)
    index.attach("a")
    index.apply("a", [stored(TURN[:160])])
    told = Stored(lie.hashes, parent, lie.tokens, lie.block_size)
    index.apply("a", [told, stored(TURN, start=10), told])
    assert index.counts.malformed == 2
    assert index.match(keys(TURN)) == {"a": Match(320, 320)}
    assert index.sizes().blocks["a"] == 20


def test_a_position_beyond_any_context() -> None:
    index = Index(WEIGHTS)
    index.attach("a")
    size = 1 << 16
    for number in range(129):
        index.apply("a", [Stored([number + 1], number or None, [1] * size, size)])
    assert index.counts.malformed == 1
    assert index.sizes().blocks["a"] == 128


def test_one_hash_with_two_contents_is_what_it_was_first() -> None:
    index = Index(WEIGHTS)
    index.attach("a")
    other = prompt(2, 320)
    index.apply("a", [stored(TURN), Stored(hashes(TURN, 16), None, list(other), 16)])
    assert index.match(keys(other)) == {}
    index.apply("a", [Removed(hashes(TURN, 16))])
    assert index.match(keys(TURN)) == {"a": Match(320, 320)}


small = st.integers(0, 5)
hash_ = st.one_of(small, st.integers(-(1 << 63), (1 << 64) - 1), st.binary(max_size=40), st.sampled_from([b"", b"\0"]))
tiers = st.sampled_from(list(Tier))
lies = st.builds(
    Stored,
    st.lists(st.one_of(small, small, hash_), max_size=6),
    st.one_of(st.none(), small, hash_),
    st.one_of(st.lists(st.integers(-1, 5), max_size=100), st.integers(0, 200).map(lambda count: [1] * count)),
    st.sampled_from([-1, 0, 1, 3, 16, 32, 33, 64]),
    st.sampled_from([None, "adapter"]),
    st.sampled_from([None, "salt"]),
    tiers,
    st.one_of(st.none(), st.integers(-2, 8)),
)
removals = st.builds(Removed, st.lists(st.one_of(small, hash_), max_size=6), tiers)
events = st.one_of(lies, lies, removals, st.just(Cleared()))


@settings(deadline=None)
@given(st.lists(st.lists(events, max_size=8), max_size=12))
def test_whatever_one_tells_harms_nobody_and_ends_with_it(batches: list[list[Event]]) -> None:
    index = Index(WEIGHTS, blocks_per_holder=30)
    index.attach("honest")
    index.attach("liar")
    index.apply("honest", [stored(TURN)])
    for batch in batches:
        index.apply("liar", batch)
        sizes = index.sizes()
        assert sizes.blocks["liar"] <= 30
        assert index.held("honest", keys(TURN)) == Match(320, 320)
    index.detach("liar")
    while index.sweep(10):
        pass
    assert index.sizes().keys == 10


@settings(deadline=None)
@given(st.lists(st.lists(events, max_size=8), max_size=8), st.integers(1, 6))
def test_liars_are_understood_the_same_in_batches_and_one_by_one(batches: list[list[Event]], size: int) -> None:
    together, single = Index(WEIGHTS), Index(WEIGHTS)
    for index in (together, single):
        index.attach("liar")
    for batch in batches:
        told = [event for event in batch if not any(isinstance(h, bytes) for h in getattr(event, "hashes", ()))]
        together.apply("liar", told)
        for event in told:
            single.apply("liar", [event])
    assert together.counts == single.counts
    assert together.sizes() == single.sizes()
    for value in range(-1, 6):
        found = keys((max(value, 0),) * 96)
        assert together.match(found) == single.match(found)
