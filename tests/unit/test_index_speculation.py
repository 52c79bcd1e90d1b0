"""What holders are taken to have although no event said so."""

import pytest

from forebay.router.prefix.index import Index, Match
from tests.unit.naive_index import WEIGHTS, keys, prompt, stored

TURN = prompt(1, 320)
KEYS = keys(TURN)
LONG = prompt(2, 200 * 32)


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


def test_the_bound_counts_what_is_not_kept_as_well() -> None:
    index = Index(WEIGHTS, expected_per_holder=200)
    index.attach("a")
    for number in range(10):
        index.expect("a", keys(prompt(number, 150 * 32)), 0, until=float(number))
        assert 150 <= index.sizes().expected <= 200
    assert index.held("a", keys(prompt(9, 150 * 32))).tokens == 150 * 32
    assert index.match(keys(prompt(7, 150 * 32))) == {}


def test_prompts_that_part_late_share_what_is_before_in_steps_of_256_tokens() -> None:
    index = Index(WEIGHTS)
    index.attach("a")
    index.expect("a", keys(LONG), 0, until=5.0)
    found = {}
    for parted in (512, 4064, 4096, 4128, 4480, 6000):
        other = LONG[:parted] + prompt(3, 3200)
        found[parted] = index.held("a", keys(other)).tokens
    assert found == {512: 512, 4064: 4064, 4096: 4096, 4128: 4096, 4480: 4352, 6000: 5888}


def test_of_several_that_part_at_one_place_the_third_finds_all_that_is_shared() -> None:
    index = Index(WEIGHTS)
    index.attach("a")
    found = []
    for number in range(3, 7):
        other = keys(LONG[:5000] + prompt(number, 3200))
        found.append(index.held("a", other).tokens)
        index.expect("a", other, found[-1] // 32, until=5.0)
    assert found == [0, 4864, 4992, 4992]
    index.expire(5.0)
    assert index.sizes().expected == 0


def test_a_conversation_goes_on_just_where_it_was() -> None:
    index = Index(WEIGHTS)
    index.attach("a")
    before = 0
    for tokens in (2500, 4160, 4352, 4400, 4500, len(LONG)):
        turn = keys(LONG[:tokens])
        assert index.held("a", turn).tokens == before * 32
        index.expect("a", turn, before, until=5.0)
        before = len(turn)
    assert index.held("a", keys(LONG + prompt(3, 320))).tokens == before * 32
    index.expire(5.0)
    assert index.sizes().expected == 0


def test_of_much_that_is_due_a_part_ends_at_a_time(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.router.prefix.index._ENDED", 10)
    index.expect("b", keys(prompt(2, 320)), 0, until=2.0)
    index.expect("b", keys(prompt(3, 320)), 0, until=4.0)
    index.expect("a", KEYS, 0, until=3.0)
    left = []
    for _ in range(4):
        index.expire(4.0)
        left.append((index.held("b", keys(prompt(2, 320))).tokens, tokens(index), index.sizes().expected))
    assert left == [(0, 320, 20), (0, 0, 10), (0, 0, 0), (0, 0, 0)]


def test_what_is_told_again_lasts_longer(index: Index) -> None:
    for until in (5.0, 8.0, 6.0):
        index.expect("a", KEYS, 0, until)
    index.expire(7.0)
    assert tokens(index) == 320
    index.expire(8.0)
    assert tokens(index) == 0


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
