"""When conversations come back: what is learnt of pauses, and what of a pool's turns is learnt from."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.contexts import GONE_S
from forebay.router.odds import Odds
from tests.chats import Chats, learn


def within(odds: Odds, idle_s: float, seconds: float) -> float:
    """The chance that one that has been idle for so long returns in the next `seconds`."""
    now, then = odds.staying(np.array([idle_s, idle_s + seconds]))
    return float((now - then) / now)


def ever(odds: Odds, idle_s: float) -> float:
    return within(odds, idle_s, math.inf)


def test_before_anything_is_known_conversations_are_believed_to_return() -> None:
    assert ever(Odds(), 0) > 0.8


def test_pauses_of_a_length_that_is_seen_often_end_after_about_that_long() -> None:
    odds = Odds()
    for number in range(4_000):
        odds.returned((3, 4, 5, 200)[number % 4])
        odds.gone()
    assert within(odds, 0, 10) == pytest.approx(3 / 8, abs=0.02)
    assert within(odds, 10, 60) < 0.02
    assert within(odds, 10, 400) == pytest.approx(1 / 5, abs=0.02)  # of those left: one returns, four never
    assert ever(odds, 400) < 0.02


def test_the_length_of_a_pause_is_told_finer_than_by_its_bucket() -> None:
    odds = Odds()
    for _ in range(1_000):
        odds.returned(50)
    chances = [within(odds, 0, seconds) for seconds in (46, 50, 54, 58, 62)]
    assert all(later > earlier + 0.05 for earlier, later in itertools.pairwise(chances))


def test_what_happened_long_ago_is_forgotten() -> None:
    odds = Odds()
    for _ in range(100_000):
        odds.gone()
    assert ever(odds, 0) < 0.01
    for _ in range(10_000):
        odds.returned(5)
    assert ever(odds, 0) > 0.7


@given(
    st.lists(st.one_of(st.none(), st.floats(-1e6, 1e12)), max_size=80),
    st.lists(st.floats(-1e6, math.inf), min_size=2, max_size=20),
)
def test_fewer_stay_idle_for_longer_and_never_none(
    pauses: list[float | None], idle: list[float]
) -> None:
    """Of clocks that went back as well."""
    odds = Odds()
    for pause in pauses:
        if pause is None:
            odds.gone()
        else:
            odds.returned(pause)
    stay = odds.staying(np.array(sorted(idle)))
    assert np.isfinite(stay).all()
    assert (stay > 0).all()
    assert (np.diff(stay) <= 1e-9 * stay[0]).all()


# -- which of a pool's turns say something of them


def test_longer_idle_is_no_likelier_to_return_and_chances_are_what_happened() -> None:
    chats = Chats()
    learn(chats, conversations=900)
    idle = [0, 1, 5, 15, 30, 60, 120, 300, 900, 1_700, 10_000]
    chances = [chats.chance(seconds) for seconds in idle]
    assert all(later <= earlier + 1e-9 for earlier, later in itertools.pairwise(chances))
    assert chances[0] == pytest.approx(0.7, abs=0.05)
    assert chances[idle.index(900)] < 0.1  # of its turns' tools, next to none take that long


def test_answers_that_were_tool_calls_are_learnt_of_by_themselves() -> None:
    chats = Chats()
    for number in range(600):
        chats.now += 3
        chats.contexts.expire(chats.now)
        chats.turn("a", (f"{number}", 64), returns=True)
        chats.turn("a", (f"question {number}", 64), returns=False)  # nobody asks again
        chats.now += 3
        chats.turn("a", (f"{number}", 64), ("result", 64), returns=False)
    chats.now += GONE_S + 1
    for _ in range(10):
        chats.contexts.expire(chats.now)
    assert chats.chance(2, True) > 0.9
    assert chats.chance(2, False) < 0.1


def test_a_pool_that_changes_its_users_forgets_what_the_earlier_ones_did() -> None:
    """A week of prompts that nobody goes on with, and then an afternoon of agents who always return."""
    chats = Chats()
    for number in range(300_000):
        chats.now += 2
        chats.one_shot(number)
        chats.contexts.expire(chats.now)
    for round_ in range(100):
        for agent in range(50):
            chats.now += 0.2
            chats.turn("a", (f"agent {agent}", 64), ("turns", 32 * round_))
    assert chats.chance(5) > 0.5


def test_a_table_that_is_too_small_for_half_an_hour_does_not_take_all_to_return() -> None:
    """Prompts that nobody goes on with, so many that they are forgotten before they are over; some return at once."""
    chats = Chats(most=500)
    for number in range(10_000):
        chats.now += 0.5
        chats.one_shot(number)
        if number % 20 == 0:
            chats.now += 1
            chats.one_shot(number)
        chats.contexts.expire(chats.now)
    assert chats.chance(60) < 0.3


def test_a_request_whose_endpoint_went_away_says_nothing_of_long_pauses() -> None:
    chats = Chats()
    learn(chats, conversations=500)
    before = chats.chance(1_000)
    for number in range(200):  # first turns, whose endpoint goes; they are tried again at another one
        contexts = chats.contexts
        contexts.abandoned(chats.send("a", (f"lost {number}", 64)))
        chats.now += 1
        chats.turn("b", (f"lost {number}", 64))
    assert chats.chance(1_000) == pytest.approx(before, abs=0.02)
