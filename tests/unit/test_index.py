"""Who holds the beginning of a prompt, as a router asks it."""

from collections.abc import Callable

import numpy as np
import pytest

from forebay.router.prefix.blocks import Cleared, Removed, Stored, Tier
from forebay.router.prefix.index import Index, Match
from tests.unit.naive_index import WEIGHTS, hashes, keys, prompt, stored

TURN = prompt(1, 320)


@pytest.fixture
def index() -> Index:
    index = Index(WEIGHTS)
    for name in ("a", "b", "c"):
        index.attach(name)
    return index


def both(tokens: int) -> Match:
    return Match(tokens, tokens)


def test_each_holder_matches_as_far_as_it_has_the_prompt(index: Index) -> None:
    index.apply("a", [stored(TURN)])
    index.apply("b", [stored(TURN[:100])])  # six blocks of 16: three keys
    assert index.match(keys(TURN)) == {"a": both(320), "b": both(96)}
    assert index.match(keys(TURN[:64] + prompt(2, 64))) == {"a": both(64), "b": both(64)}
    assert index.match(keys(prompt(2, 64))) == {}
    assert index.match(keys(TURN[:31])) == {}


def test_a_conversation_goes_on_with_what_was_generated(index: Index) -> None:
    index.apply("a", [stored(TURN[:160])])
    for number in range(10, 20):  # decode completes a block at a time
        index.apply("a", [stored(TURN[: (number + 1) * 16], start=number)])
    assert index.match(keys(TURN)) == {"a": both(320)}


@pytest.mark.parametrize("size", [1, 8, 16, 24, 32, 48, 64, 128, 320])
def test_blocks_of_any_size(index: Index, size: int) -> None:
    index.apply("a", [stored(TURN, size)])
    whole = 320 // size * size // 32 * 32
    assert index.match(keys(TURN)) == {"a": both(whole)}
    every = hashes(TURN, size)
    middle = len(every) // 2
    index.apply("a", [Removed([every[middle]])])
    assert index.held("a", keys(TURN)) == both(middle * size // 32 * 32)
    index.apply("a", [Removed(every[:middle] + every[middle + 1 :])])
    assert index.sizes().blocks["a"] == index.sizes().keys == 0


def test_a_match_has_no_gaps(index: Index) -> None:
    index.apply("a", [stored(TURN)])
    every = hashes(TURN, 16)
    index.apply("a", [Removed([every[6]])])
    assert index.match(keys(TURN)) == {"a": both(96)}
    index.apply("a", [stored(TURN[:128], start=6)])
    assert index.match(keys(TURN)) == {"a": both(320)}


def test_salt_and_lora_are_worlds_of_their_own(index: Index) -> None:
    index.apply("a", [stored(TURN, seed=(None, "salt"))])
    index.apply("b", [stored(TURN, seed=("adapter", None))])
    index.apply("c", [stored(TURN, seed=("adapter", "salt"))])
    assert index.match(keys(TURN)) == {}
    assert index.match(keys(TURN, (None, "salt"))) == {"a": both(320)}
    assert index.match(keys(TURN, ("adapter", None))) == {"b": both(320)}
    assert index.match(keys(TURN, ("adapter", "salt"))) == {"c": both(320)}


def test_tiers_count_apart(index: Index) -> None:
    index.apply("a", [stored(TURN), stored(TURN, tier=Tier.CPU)])
    every = hashes(TURN, 16)
    index.apply("a", [Removed(every[4:])])
    assert index.match(keys(TURN)) == {"a": Match(tokens=320, fast=64)}
    index.apply("a", [Removed(every[10:], Tier.CPU)])
    assert index.match(keys(TURN)) == {"a": Match(tokens=160, fast=64)}
    index.apply("a", [Removed(every[:4])])
    assert index.match(keys(TURN)) == {"a": Match(tokens=160, fast=0)}


def test_fast_ends_where_the_fastest_tier_has_a_gap(index: Index) -> None:
    index.apply("a", [stored(TURN), stored(TURN, tier=Tier.CPU), Removed(hashes(TURN, 16)[4:6])])
    assert index.match(keys(TURN)) == {"a": Match(tokens=320, fast=64)}


def test_more_holders_than_bits_of_a_word() -> None:
    index = Index(WEIGHTS)
    for number in range(150):
        index.attach(f"engine-{number}")
        index.apply(f"engine-{number}", [stored(TURN[: 32 * (number % 10)])])
    found = index.match(keys(TURN))
    assert found == {f"engine-{n}": both(32 * (n % 10)) for n in range(150) if n % 10}


def test_a_long_prompt_is_followed_to_its_end(index: Index) -> None:
    tokens = prompt(3, 32 * 2000)
    index.apply("a", [stored(tokens, 32)])
    index.apply("b", [stored(tokens[: 32 * 1024], 32)])
    index.apply("c", [stored(tokens[: 32 * 1025], 32)])
    assert index.match(keys(tokens)) == {"a": both(64_000), "b": both(32 * 1024), "c": both(32 * 1025)}


def test_one_that_vanishes_restarts_or_returns_keeps_nothing(index: Index) -> None:
    ends: list[Callable[[], None]] = [
        lambda: index.detach("a"),
        lambda: index.attach("a"),
        lambda: index.clear("a"),
        lambda: index.apply("a", [Cleared()]),
    ]
    for end in ends:
        index.attach("a")
        index.apply("a", [stored(TURN)])
        index.apply("b", [stored(TURN[:64])])
        index.expect("a", keys(prompt(2, 64)), 0, until=10.0)
        end()
        assert index.match(keys(TURN)) == {"b": both(64)}
        assert index.match(keys(prompt(2, 64))) == {}
    index.detach("a")
    with pytest.raises(KeyError):
        index.apply("a", [])


def test_what_comes_after_a_clear_in_its_batch_counts(index: Index) -> None:
    other = prompt(2, 64)
    index.apply("a", [stored(TURN), Cleared(), Cleared(), stored(other)])
    assert index.match(keys(TURN)) == {}
    assert index.match(keys(other)) == {"a": both(64)}


def test_hashes_as_bytes_and_as_numbers_of_either_sign(index: Index) -> None:
    as_bytes = [bytes(24) + hash_.to_bytes(8, "big") for hash_ in hashes(TURN, 16) if isinstance(hash_, int)]
    index.apply("a", [Stored(list(as_bytes[:10]), None, list(TURN[:160]), 16)])
    index.apply("a", [Stored(list(as_bytes[10:]), as_bytes[9], list(TURN[160:]), 16), Removed([as_bytes[-1]])])
    assert index.held("a", keys(TURN)) == both(288)
    index.apply("a", [Removed(hashes(TURN, 16)[4:])])  # the same as numbers
    assert index.held("a", keys(TURN)) == both(64)
    signed = list(range(-10, 10))
    index.apply("b", [Stored([*signed], None, list(TURN), 16), Removed([9])])
    assert index.held("b", keys(TURN)) == both(288)


def test_no_keys_no_match(index: Index) -> None:
    index.apply("a", [stored(TURN)])
    assert index.match(np.zeros(0, np.uint64)) == {}
    assert index.held("nobody", keys(TURN)) == both(0)


def test_repr_tells_the_story(index: Index) -> None:
    index.apply("a", [stored(TURN), stored(prompt(2, 64), start=2)])
    index.expect("b", keys(TURN), 0, until=1.0)
    assert repr(index) == "<Index: 3 holders, 20 blocks, 10 keys, 10 expected, 1 parked, 0 unswept>"
