"""What it costs to store more in an endpoint's cache: the conversations that return while theirs is missing."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.contexts import GONE_S, Contexts
from forebay.router.odds import Odds
from forebay.router.residents import HALF_UNKNOWN, Context, Resident
from tests.chats import Chats, few_keys

NOW = 500_000.0
TOKENS = 10_000
_numbers = itertools.count(1)


def learnt() -> dict[bool, Odds]:
    """Of people, who mostly stay away, and of tools, which mostly answer within seconds."""
    rng = random.Random(3)
    people, tools = Odds(), Odds()
    for number in range(1_000):
        if number % 5:
            people.gone()
            tools.returned(rng.uniform(1, 8))
        else:
            people.returned(rng.uniform(30, 600))
            tools.gone()
    return {False: people, True: tools}


ODDS = learnt()


def chat(
    tokens: int = TOKENS, *, idle_s: float = 0.0, tool: bool = False, running: bool = False, endpoint: str = "a"
) -> Context:
    idle_at = 0.0 if running else NOW - idle_s
    return Context(next(_numbers), tokens, endpoint, idle_at, int(running), tool)


def displaced(
    *contexts: Context, tokens: float = TOKENS, inflow: float = 100.0, capacity: float | None = None
) -> tuple[float, float]:
    """Of endpoint "a", which had these, the least recently used first."""
    resident = Resident("a")
    for context in contexts:
        resident.use(context, context.tokens)
    if capacity is not None:
        resident.trim(capacity)
    return resident.displaced(tokens, ODDS, inflow, NOW)


def price(*contexts: Context, tokens: float = TOKENS, inflow: float = 100.0, capacity: float | None = None) -> float:
    return displaced(*contexts, tokens=tokens, inflow=inflow, capacity=capacity)[0]


def spread(sizes: list[int]) -> list[Context]:
    """They were used one after the other over five minutes."""
    return [chat(size, idle_s=300 * (1 - at / len(sizes))) for at, size in enumerate(sizes)]


# -- which contexts are dear


def test_what_is_about_to_go_in_any_case_is_cheap_to_push_out() -> None:
    waiting = chat(idle_s=1, tool=True)
    assert price(waiting, inflow=100_000) < 0.1 * price(waiting, inflow=100)


def test_one_that_waits_for_its_tool_is_dearer_than_one_idle_for_ten_minutes() -> None:
    waiting = price(chat(idle_s=2, tool=True))
    assert waiting > 0.5 * TOKENS
    assert waiting > 10 * price(chat(idle_s=600, tool=True))
    assert waiting > 10 * price(chat(idle_s=600))


def test_one_that_returns_long_before_its_turn_comes_costs_nothing() -> None:
    """A minute and a half from now its place will be given up; its tool answers within seconds."""
    over, waiting = chat(idle_s=90_000), chat(idle_s=1, tool=True)
    assert price(over, waiting, tokens=TOKENS // 2) < 0.01 * price(over, waiting, tokens=2 * TOKENS)


def test_one_in_use_is_dearer_than_any_that_is_idle_and_goes_last() -> None:
    busy, idle = chat(running=True), chat(idle_s=20)
    assert price(busy, inflow=2_000) > price(chat(tool=True), inflow=2_000) > price(idle, inflow=2_000)
    assert price(busy, idle) == price(idle, busy)


def test_the_copy_that_a_conversation_left_behind_costs_nothing() -> None:
    chats = Chats()
    history = [("system", 20_000)]
    for round_ in range(3):
        chats.turn("a", *history, answer=0, returns=True)
        chats.now += 10
        history.append((f"more {round_}", 1_000))
    assert chats.wanted("a", 20_000) > 0
    chats.turn("b", *history, answer=0, returns=True)  # it goes on there from now on
    chats.now += 1
    assert chats.wanted("a", 20_000) == 0
    assert chats.wanted("b", 20_000) > 0


def test_a_copy_left_behind_takes_room_until_it_goes() -> None:
    waiting = chat(idle_s=20)
    assert price(chat(endpoint="b"), waiting) == price(chat(idle_s=90_000), waiting) != price(waiting)


def test_a_cache_full_of_short_prompts_that_nobody_wants_again_is_cheap_to_push_out() -> None:
    chats = Chats()
    for number in range(4_000):
        chats.now += 2
        chats.one_shot(number, "elsewhere")
        chats.contexts.expire(chats.now)
    for number in range(4_000, 4_400):
        chats.one_shot(number, size=500)
    chats.now += 120
    assert chats.wanted("a", 10_000) < 0.05 * 10_000
    assert chats.wanted("a", 60_000) < 0.05 * 60_000


# -- how many they are, and how large


def test_a_prompt_that_was_pushed_out_is_computed_from_its_middle_on_average() -> None:
    assert displaced(chat(80_000))[1] == pytest.approx(40_000)
    assert displaced(chat(8_000))[1] == pytest.approx(4_000)


@pytest.mark.parametrize(
    "sizes", [[500] * 640, [100, 900] * 320, [900, 100] * 320, [4_923] * 65, [50, 50, 4_900] * 64, [5] * 64_000],
    ids=["tiny", "small-large", "large-small", "one-more", "thirds", "very-many"],
)  # fmt: skip
@pytest.mark.parametrize("pushed", [2_000, 20_000, 200_000])
def test_many_small_contexts_cost_what_a_few_large_ones_do(sizes: list[int], pushed: int) -> None:
    few = price(*spread([5_000] * 64), tokens=pushed)
    assert price(*spread(sizes), tokens=pushed) == pytest.approx(few, rel=0.15)


@pytest.mark.parametrize("pushed", [2_000, 20_000, 200_000])
def test_helpers_that_take_turns_with_their_roots_do_not_stand_in_for_them(pushed: int) -> None:
    roots = price(*(chat(4_900, idle_s=2, tool=True) for _ in range(64)), tokens=pushed, inflow=50_000)
    for first in (True, False):
        pairs = [(4_900, True), (100, False)][:: 1 if first else -1] * 64
        mixed = (chat(size, idle_s=2, tool=tool) for size, tool in pairs)
        assert price(*mixed, tokens=pushed, inflow=50_000) == pytest.approx(roots, rel=0.15)


@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.floats(0, 4_000), st.booleans(), st.booleans()), max_size=60),
    st.lists(st.integers(1, 2_000_000), min_size=2, max_size=10),
    st.none() | st.integers(0, 2_000_000),
)
def test_more_pushed_out_never_costs_less_and_never_more_than_is_stored(
    placed: list[tuple[int, float, bool, bool]], amounts: list[int], capacity: int | None
) -> None:
    contexts, now = Contexts(), 0.0
    for number, (size, pause, ends, returns) in enumerate(placed):
        now += pause
        context = contexts.placed("a", size, few_keys(number // 2), now)
        if ends:
            contexts.ended(context.number, "a", size, returns, now)
        contexts.expire(now)
    if capacity is not None:
        contexts.trim("a", capacity)
    costs = []
    for amount in sorted(amounts):
        wanted, behind = contexts.displaced("a", amount, now)
        assert 0 <= wanted <= amount * 1.000001
        assert 0 <= behind <= 60_000
        costs.append(wanted * (1 + behind / 50_000))
    assert all(two >= one * 0.999999 for one, two in itertools.pairwise(costs))


# -- what is not known, and what is not there


def test_of_an_endpoint_that_was_sent_nothing_half_is_taken_to_be_wanted() -> None:
    assert Contexts().displaced("a", 1_000, 5.0) == (HALF_UNKNOWN * 1_000, 0.0)


@pytest.mark.parametrize("pushed", [500, TOKENS, 16 * TOKENS])
def test_of_what_a_full_cache_holds_beside_its_known_contexts_half_is_taken_to_be_wanted(pushed: int) -> None:
    over = chat(idle_s=90_000)
    assert price(over, tokens=pushed, capacity=50 * TOKENS) == pytest.approx(HALF_UNKNOWN * pushed, rel=0.01)
    assert price(over, tokens=pushed) == 0


def test_what_is_not_known_goes_before_what_is() -> None:
    waiting = chat(idle_s=1, tool=True)
    assert price(waiting, capacity=50 * TOKENS) == pytest.approx(HALF_UNKNOWN * TOKENS, rel=0.01)


def test_what_an_endpoint_cannot_hold_any_more_is_not_counted() -> None:
    many = [chat(tool=True) for _ in range(30)]
    assert price(*many, tokens=100_000) > 50_000
    assert 0 < price(*many, tokens=100_000, capacity=45_000) <= 45_000
    assert price(*many, tokens=100_000, capacity=5) <= TOKENS
    Contexts().trim("nobody", 5)


def test_an_endpoint_that_lost_everything_is_as_one_that_was_sent_nothing() -> None:
    chats = Chats()
    number = chats.turn("a", ("one", 10_000))
    chats.contexts.cleared("a")
    assert chats.contexts.displaced("a", 1_000, chats.now) == (HALF_UNKNOWN * 1_000, 0.0)
    assert chats.turn("a", ("one", 10_000), ("more", 40)) == number  # the conversation goes on all the same


def test_a_conversation_does_not_become_dear_by_being_over() -> None:
    chats = Chats()
    chats.fresh("a", 100_000)
    chats.contexts.trim("a", 100_000)
    chats.now += GONE_S - 1
    before = chats.wanted("a", TOKENS)
    chats.now += 2
    chats.contexts.expire(chats.now)
    assert chats.wanted("a", TOKENS) <= before


def test_a_clock_that_goes_back_does_not_keep_old_prices() -> None:
    chats = Chats()
    chats.fresh("a", TOKENS)
    before = chats.wanted("a", TOKENS)
    chats.now += 86_400
    assert chats.wanted("a", TOKENS) == 0  # it is over
    chats.now -= 86_400
    assert chats.wanted("a", TOKENS) == before > 0
