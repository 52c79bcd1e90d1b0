"""What holders are taken to have although no event said so."""

import pytest

from forebay.router.prefix.index import Index, Match
from tests.unit.naive_index import WEIGHTS, keys, prompt, stored

TURN = prompt(1, 320)
KEYS = keys(TURN)


@pytest.fixture
def index() -> Index:
    index = Index(WEIGHTS, expected_per_holder=20)
    index.attach("a")
    index.attach("b")
    return index


def tokens(index: Index, name: str = "a") -> int:
    return index.held(name, KEYS).tokens


def test_a_request_bridges_the_time_until_its_events(index: Index) -> None:
    index.apply("a", [stored(TURN[:128])])
    index.expect("a", KEYS, 4, until=5.0)
    assert index.match(KEYS) == {"a": Match(320, 320)}
    index.expire(4.9)
    assert tokens(index) == 320
    index.expire(5.0)
    assert tokens(index) == 128
    assert index.sizes().expected == 0


def test_without_what_comes_before_it_is_no_match(index: Index) -> None:
    index.expect("a", KEYS, 4, until=5.0)
    assert index.match(KEYS) == {}


def test_the_latest_end_holds(index: Index) -> None:
    index.expect("a", KEYS, 0, until=5.0)
    index.expect("a", KEYS[:5], 0, until=9.0)
    index.expect("a", KEYS[:8], 0, until=7.0)
    ends = []
    for now in (5.0, 7.0, 9.0):
        index.expire(now)
        ends.append(tokens(index))
    assert ends == [8 * 32, 5 * 32, 0]


def test_beyond_the_bound_what_ends_first_goes(index: Index) -> None:
    other = keys(prompt(2, 320))
    index.expect("a", KEYS, 0, until=5.0)
    index.expect("a", other, 0, until=6.0)
    index.expect("b", KEYS, 0, until=1.0)
    index.expect("a", keys(prompt(3, 64)), 0, until=7.0)
    assert tokens(index) == 0
    assert index.held("a", other).tokens == 320
    assert tokens(index, "b") == 320
    assert index.sizes().expected == 22
    assert index.counts.lapsed == 10


def test_a_prompt_beyond_the_bound_is_expected_as_far_as_it_goes(index: Index) -> None:
    index.expect("a", keys(prompt(4, 3200)), 0, until=5.0)
    assert index.held("a", keys(prompt(4, 3200))).tokens == 20 * 32


def test_the_same_again_and_again_stays_bounded(index: Index) -> None:
    for number in range(1000):
        index.expect("a", KEYS, 0, until=1e6 - number)
    assert tokens(index) == 320
    assert index.sizes().expected == 10
    index.expire(2e6)
    assert index.match(KEYS) == {}


def test_what_an_engine_had_without_an_event_is_learnt(index: Index) -> None:
    index.apply("a", [stored(TURN[:64])])
    index.observe("a", KEYS, claimed=64, cached=200, until=60.0)
    assert tokens(index) == 192
    assert index.counts.healed == 4
    index.observe("a", KEYS, claimed=192, cached=200, until=60.0)
    assert index.counts.healed == 4


def test_a_hole_in_the_middle_is_healed(index: Index) -> None:
    index.apply("a", [stored(TURN[:64])])
    index.expect("a", KEYS, 5, until=60.0)
    assert tokens(index) == 64
    index.observe("a", KEYS, claimed=64, cached=170, until=60.0)
    assert tokens(index) == 320
    assert index.counts.mismatches == 0


def test_what_was_only_expected_and_is_not_there_ends(index: Index) -> None:
    long = prompt(5, 640)
    index.apply("a", [stored(long[:64])])
    index.expect("a", keys(long), 2, until=60.0)
    index.observe("a", keys(long), claimed=640, cached=600, until=60.0)  # a large block is computed again
    assert index.counts.mismatches == 0
    index.observe("a", keys(long), claimed=640, cached=80, until=60.0)
    assert index.counts.mismatches == 1
    assert index.held("a", keys(long)).tokens == 96
    index.observe("a", keys(long), claimed=640, cached=0, until=60.0)
    assert index.held("a", keys(long)).tokens == 64  # what events told stays


def test_those_who_left_are_not_spoken_of(index: Index) -> None:
    index.detach("a")
    index.expect("a", KEYS, 0, until=5.0)
    index.observe("a", KEYS, claimed=0, cached=64, until=5.0)
    index.clear("a")
    assert index.sizes().expected == 0
