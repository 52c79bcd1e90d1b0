"""A router that starts takes what another knows, whole or not at all."""

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.router.prefix.blocks import Event, Removed, Stored, Tier
from forebay.router.prefix.index import Index, Match
from forebay.router.prefix.keys import Weights
from forebay.router.prefix.snapshot import Loading, SnapshotError, dump, load
from tests.unit.naive_index import WEIGHTS, hashes, keys, prompt, stored

TURN = prompt(1, 320)
OTHER = prompt(2, 640)


def filled(*events: Event) -> Index:
    index = Index(WEIGHTS)
    index.attach("a")
    index.apply("a", events)
    return index


def copy_of(index: Index) -> Index:
    other = Index(WEIGHTS)
    assert load(other, "a", dump(index, "a", b"position")) == b"position"
    return other


@pytest.fixture
def full() -> Index:
    """Of everything there is in one."""
    media = stored(prompt(3, 160))
    media.inexact = 5
    fork = TURN[:16] + prompt(4, 48)
    return filled(
        stored(TURN), stored(TURN[:64]), stored(OTHER, 128), stored(OTHER, tier=Tier.CPU), media,
        stored(fork, start=1), Removed(hashes(OTHER, 128)[3:]), Stored([-5, -6], None, list(prompt(5, 64)), 32),
    )  # fmt: skip


def test_the_copy_answers_the_same(full: Index) -> None:
    copy = copy_of(full)
    for number in range(1, 7):
        assert copy.match(keys(prompt(number, 640))) == full.match(keys(prompt(number, 640)))
    assert copy.match(keys(OTHER)) == {"a": Match(tokens=640, fast=384)}
    assert copy.sizes().blocks == full.sizes().blocks
    assert copy.sizes().keys == full.sizes().keys


@pytest.mark.parametrize("size", [1, 16, 24, 128])
@given(st.integers(0, 1 << 32))
@settings(deadline=None, max_examples=20)
def test_the_copy_goes_on_as_the_original_does(size: int, seed: int) -> None:
    chance = random.Random(seed)
    prompts = [prompt(number % 3, 96) + prompt(number, 160) for number in range(6)]

    def events(count: int) -> list[Event]:
        told: list[Event] = []
        for _ in range(count):
            tokens, tier = chance.choice(prompts), chance.choice([Tier.GPU, Tier.GPU, Tier.CPU])
            every = hashes(tokens, size)
            part = stored(tokens, size, start=chance.choice([0, 0, len(every) // 2]), tier=tier)
            removal = Removed(chance.sample(every, len(every) // 2), tier)
            told.append(part if chance.random() < 0.7 else removal)
        return told

    index = filled(*events(12))
    for orphan in prompts:  # none is taken along: what they wait for may never come
        index.apply("a", [stored(orphan, size)])
    copy = copy_of(index)
    for _ in range(6):
        batch = events(3)
        index.apply("a", batch)
        copy.apply("a", batch)
        for tokens in prompts:
            assert copy.match(keys(tokens)) == index.match(keys(tokens))
    assert copy.sizes().blocks == index.sizes().blocks


def test_it_is_of_one_moment(full: Index) -> None:
    before = copy_of(full).match(keys(TURN))
    chunks = dump(full, "a", b"")
    first = next(chunks)
    full.apply("a", [Removed(hashes(TURN, 16)), stored(prompt(9, 640))])
    full.clear("a")
    while full.sweep(1000):
        pass
    copy = Index(WEIGHTS)
    load(copy, "a", [first, *chunks])
    assert copy.match(keys(TURN)) == before
    assert copy.match(keys(prompt(9, 640))) == {}


def test_nobody_sees_it_before_it_is_whole(full: Index) -> None:
    target = filled(stored(TURN[:32]))
    loading = Loading(target, "a")
    for chunk in dump(full, "a", b"p"):
        loading.feed(chunk)
        assert target.match(keys(TURN)) == {"a": Match(32, 32)}
    assert loading.finish() == b"p"
    assert target.match(keys(TURN)) == full.match(keys(TURN))
    while target.sweep(10):
        pass
    assert target.sizes().keys == full.sizes().keys


def test_in_chunks(full: Index) -> None:
    for number in range(10, 30):
        full.apply("a", [stored(prompt(number, 16 * 500))])
    chunks = list(dump(full, "a", b""))
    assert len(chunks) > 4
    assert max(map(len, chunks)) < 150_000
    assert copy_of(full).sizes().blocks == full.sizes().blocks


def assert_untouched(index: Index) -> None:
    assert index.match(keys(TURN)) == {"a": Match(32, 32)}
    while index.sweep(100):
        pass
    assert index.sizes().keys == 1


def test_a_cut_one_changes_nothing(full: Index) -> None:
    chunks = list(dump(full, "a", b""))
    for cut in range(len(chunks)):
        target = filled(stored(TURN[:32]))
        with pytest.raises(SnapshotError):
            load(target, "a", [*chunks[:cut], chunks[cut][: len(chunks[cut]) // 2]])
        assert_untouched(target)
        with pytest.raises(SnapshotError, match="not whole"):
            load(target, "a", chunks[:cut])
        assert_untouched(target)
        with pytest.raises(SnapshotError):
            load(target, "a", [*chunks[:cut], *chunks[cut + 1 :]])
        assert_untouched(target)
        with pytest.raises(SnapshotError):
            load(target, "a", [*chunks[: cut + 1], chunks[cut], *chunks[cut + 1 :]])
        assert_untouched(target)


@settings(deadline=None)
@given(st.data())
def test_a_spoilt_one_changes_nothing_or_is_taken_whole(data: st.DataObject) -> None:
    chunks = [bytearray(chunk) for chunk in dump(filled(stored(TURN), stored(OTHER, 128)), "a", b"")]
    for _ in range(data.draw(st.integers(1, 3))):
        chunk = data.draw(st.sampled_from(chunks))
        chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    target = filled(stored(TURN[:32]))
    try:
        load(target, "a", [bytes(chunk) for chunk in chunks])
    except SnapshotError:
        assert_untouched(target)
    target.detach("a")
    while target.sweep(100):
        pass
    assert target.sizes().keys == 0


def test_from_another_secret_or_version_it_is_refused(full: Index) -> None:
    stranger = Index(Weights(b"another secret"))
    with pytest.raises(SnapshotError, match="another secret"):
        load(stranger, "a", dump(full, "a", b""))
    head, *rest = dump(full, "a", b"")
    parts = msgspec.msgpack.decode(head)
    parts[1] += 1
    with pytest.raises(SnapshotError, match="version 2"):
        load(Index(WEIGHTS), "a", [msgspec.msgpack.encode(parts), *rest])


def test_more_than_a_holder_may_have_is_refused(full: Index) -> None:
    small = Index(WEIGHTS, blocks_per_holder=50)
    with pytest.raises(SnapshotError, match="more than 50 blocks"):
        load(small, "a", dump(full, "a", b""))
    assert small.match(keys(TURN)) == {}
    with pytest.raises(KeyError):
        dump(full, "nobody", b"")


def test_one_that_was_given_up_takes_nothing_more(full: Index) -> None:
    target = filled(stored(TURN[:32]))
    loading = Loading(target, "a")
    head, *rest = dump(full, "a", b"")
    loading.feed(head)
    loading.give_up()
    with pytest.raises(SnapshotError):
        loading.feed(rest[0])
    with pytest.raises(SnapshotError):
        loading.finish()
    assert_untouched(target)
