"""Conversations as a cache sees them: which one a prompt goes on with, if it returns, what pushing it out costs."""

import itertools
import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.contexts import GONE_S, HALF_UNKNOWN, Contexts
from forebay.router.loads import NO_KEYS
from forebay.router.prefix.keys import Keys, Weights
from tests.virtual import Table, tokens

WEIGHTS = Weights(b"a secret of the tests")


def keys(*pieces: tuple[str, int]) -> Keys:
    return WEIGHTS.extend(WEIGHTS.seed(), 0, tokens(*pieces))[1]


def few_keys(number: int) -> Keys:
    """Of a prompt that nothing else begins like."""
    return np.array([number * 2 + 1, number * 2 + 2], np.uint64)


class Chats:
    """Contexts on a clock of the test's. `turn` sends a prompt and answers it."""

    def __init__(self, most: int | None = None) -> None:
        self.contexts = Contexts() if most is None else Contexts(most)
        self.now = 5_000.0

    def send(self, endpoint: str, *pieces: tuple[str, int], session: str = "") -> int:
        size = sum(size for _, size in pieces)
        return self.contexts.placed(endpoint, size, keys(*pieces), self.now, session=session).number

    def turn(
        self, endpoint: str, *pieces: tuple[str, int], session: str = "", answer: int = 50, returns: bool | None = None
    ) -> int:
        number = self.send(endpoint, *pieces, session=session)
        size = sum(size for _, size in pieces)
        self.contexts.ended(number, endpoint, size + answer, returns, self.now)
        return number

    def one_shot(self, number: int, endpoint: str = "a") -> None:
        context = self.contexts.placed(endpoint, 64, few_keys(number), self.now)
        self.contexts.ended(context.number, endpoint, 80, None, self.now)

    def wanted(self, endpoint: str, count: float) -> float:
        return self.contexts.displaced(endpoint, count, self.now)[0]

    def chance(self, idle_s: float, returns: bool | None = None) -> float:
        """What one thinks of a context that has been idle for so long, by what it costs to push it out."""
        then = self.now
        self.turn("asked", ("asked", 1_000), answer=0, returns=returns)
        self.now += idle_s
        wanted = self.wanted("asked", 1_000) / 1_000
        self.contexts.cleared("asked")
        self.now = then
        return wanted


# -- which one a prompt goes on with


def test_a_conversation_that_returns_is_known_by_its_keys_alone() -> None:
    chats = Chats()
    history = [("system", 3_000), ("question", 77)]
    number = chats.turn("a", *history)
    for round_ in range(20):
        chats.now += 30
        history += [(f"answer {round_}", 333), (f"result {round_}", 4_001)]
        assert chats.turn("ab"[round_ % 2], *history) == number
    assert len(chats.contexts) == 1
    assert chats.turn("a", ("another", 3_000)) != number


@pytest.mark.parametrize("result", [10, 15_000])
def test_what_came_between_two_turns_may_be_long(result: int) -> None:
    chats = Chats()
    number = chats.turn("a", ("system", 3_000), ("question", 77))
    assert chats.turn("a", ("system", 3_000), ("question", 77), ("answer", 300), ("result", result)) == number


def test_it_may_be_longer_where_something_is_cached() -> None:
    table = Table("a")
    turn = [("system", 3_000), ("question", 77)]
    table.serve(*turn)
    table.serve(*turn, ("answer", 300), ("result", 90_000))
    assert len(table.pool.contexts) == 1


def test_the_same_prompt_again_is_the_same_context() -> None:
    chats = Chats()
    assert len({chats.send("a", ("system", 3_000)) for _ in range(3)}) == 1


def test_a_history_that_was_rewritten_is_known_by_its_session() -> None:
    chats = Chats()
    number = chats.turn("a", ("system", 3_000), ("long history", 50_000), session="s")
    assert chats.turn("a", ("system", 3_000), ("summary", 900), session="s") == number
    assert chats.turn("a", ("system", 3_000), ("summary", 900), ("more", 900)) == number
    assert chats.turn("a", ("system", 3_000), ("else", 900), session="another") != number


def test_prompts_without_keys_are_known_by_their_session_only() -> None:
    contexts = Contexts()
    one = contexts.placed("a", 20, NO_KEYS, 1.0, session="s").number
    assert contexts.placed("b", 25, NO_KEYS, 2.0, session="s").number == one
    assert len({contexts.placed("a", 20, NO_KEYS, 3.0).number for _ in range(5)} - {one}) == 5


def test_branches_of_one_conversation_are_told_apart_from_then_on() -> None:
    chats = Chats()
    root = [("system", 3_000), ("question", 500)]
    chats.turn("a", *root)
    branches = [[*root, (f"branch {n}", 700)] for n in range(4)]
    numbers = [chats.turn("a", *branch) for branch in branches]
    assert len(set(numbers)) == 4
    for _ in range(3):
        for number, branch in zip(numbers, branches, strict=True):
            branch += [("more", 400)]  # each at another place: no two prompts are alike
            assert chats.turn("a", *branch) == number


def test_helpers_of_a_session_do_not_take_their_root_s_place() -> None:
    """Sub-agents carry their root's session. It waits for them with 100,000 tokens, which are wanted when they end."""
    chats = Chats()
    root = [("root's system", 3_000), ("history", 97_000)]
    number = chats.turn("a", *root, session="s", answer=0, returns=True)
    before = chats.wanted("a", 50_000)
    helper = chats.send("b", ("helper's system", 2_000), ("task", 500), session="s")
    assert helper != number
    assert chats.wanted("a", 50_000) == pytest.approx(before)


# -- what pushing out costs


def test_nothing_is_known_of_an_endpoint_that_was_sent_nothing() -> None:
    assert Contexts().displaced("a", 1_000, 5.0) == (HALF_UNKNOWN * 1_000, 0.0)


def test_what_is_in_use_is_not_counted_and_the_rest_is_least_recently_used_first() -> None:
    chats = Chats()
    for number in range(400):  # conversations return within a minute, or never
        chats.now += 5
        chats.turn("x", (f"{number // 2}", 100), ("more", 100 * (number % 2)))
    chats.now += GONE_S + 5
    chats.contexts.expire(chats.now, 1_000)
    assert len(chats.contexts) == 0
    chats.turn("a", ("forgotten", 10_000), answer=0)
    chats.now += 900
    busy = chats.send("a", ("busy", 10_000))
    chats.turn("a", ("fresh", 10_000), answer=0)
    cold, warm = chats.wanted("a", 10_000), chats.wanted("a", 20_000) - chats.wanted("a", 10_000)
    assert 0 < cold < warm / 2
    chats.contexts.ended(busy, "a", 10_000, None, chats.now)
    chats.now += 1
    assert chats.wanted("a", 30_000) > cold + 1.5 * warm


def test_what_conversations_lie_in_counts_for_what_lies_behind() -> None:
    chats = Chats()
    chats.turn("a", ("long", 80_000), answer=0)
    chats.turn("b", *[("short", 8_000)], answer=0)
    assert chats.contexts.displaced("a", 8_000, chats.now)[1] == pytest.approx(80_000)
    assert chats.contexts.displaced("b", 8_000, chats.now)[1] == pytest.approx(8_000)


@given(
    st.lists(st.tuples(st.integers(1, 60_000), st.floats(0, 4_000), st.booleans(), st.booleans()), max_size=60),
    st.lists(st.integers(1, 2_000_000), min_size=2, max_size=10),
)
def test_more_pushed_out_never_costs_less_and_never_nothing(
    placed: list[tuple[int, float, bool, bool]], amounts: list[int]
) -> None:
    contexts, now = Contexts(), 0.0
    for number, (size, pause, ends, returns) in enumerate(placed):
        now += pause
        context = contexts.placed("a", size, few_keys(number // 2), now)
        if ends:
            contexts.ended(context.number, "a", size, returns, now)
        contexts.expire(now)
    costs = []
    for amount in sorted(amounts):
        wanted, behind = contexts.displaced("a", amount, now)
        assert 0 < wanted <= amount * 1.000001
        assert 0 <= behind <= 60_000
        costs.append(wanted * (1 + behind / 50_000))
    assert all(two >= one * 0.999999 for one, two in itertools.pairwise(costs))


def test_the_copy_that_a_conversation_left_behind_is_cheap_to_push_out() -> None:
    chats = Chats()
    history = [("system", 20_000)]
    for round_ in range(3):
        chats.turn("a", *history, answer=0, returns=True)
        chats.now += 10
        history.append((f"more {round_}", 1_000))
    stays = chats.wanted("a", 20_000)
    chats.turn("b", *history, answer=0, returns=True)  # it goes on there from now on
    chats.now += 1
    assert chats.wanted("a", 20_000) < stays / 2
    assert chats.wanted("b", 20_000) == pytest.approx(stays, rel=0.1)


def test_what_an_endpoint_cannot_hold_any_more_is_not_counted() -> None:
    chats = Chats()
    for number in range(30):
        chats.turn("a", (f"{number}", 10_000), answer=0)
    chats.contexts.trim("a", 45_000)
    assert chats.wanted("a", 100_000) < 45_000 * 0.95 + HALF_UNKNOWN * 55_001
    chats.contexts.trim("a", 5)
    chats.contexts.trim("nobody", 5)
    assert chats.wanted("a", 10_000) > 0


def test_an_endpoint_that_lost_everything_is_as_one_that_was_sent_nothing() -> None:
    chats = Chats()
    number = chats.turn("a", ("one", 10_000))
    chats.contexts.cleared("a")
    assert chats.contexts.displaced("a", 1_000, chats.now) == (HALF_UNKNOWN * 1_000, 0.0)
    assert chats.turn("a", ("one", 10_000), ("more", 40)) == number  # the conversation goes on all the same


# -- who comes back


def learn(chats: Chats, *, conversations: int = 3_000, returning: float = 0.7, seed: int = 1) -> None:
    """Turns whose tool answers within half a minute, as a rule; so many conversations end at each turn."""
    rng = random.Random(seed)
    due: list[tuple[float, int, int]] = []
    begun = 0
    while begun < conversations or due:
        chats.now += 1.0
        chats.contexts.expire(chats.now)
        ready = [one for one in due if one[0] <= chats.now]
        due = [one for one in due if one[0] > chats.now]
        if begun < conversations:
            begun += 1
            ready.append((chats.now, begun, 1))
        for _, name, turn in ready:
            chats.turn("a", (f"chat {name}", 64), ("turns", 32 * turn), returns=None)
            if rng.random() < returning:
                due.append((chats.now + min(rng.lognormvariate(3, 0.8), GONE_S / 2), name, turn + 1))
    chats.now += GONE_S + 1
    for _ in range(20):
        chats.contexts.expire(chats.now)


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


def test_a_cache_full_of_short_prompts_that_nobody_wants_again_is_cheap_to_push_out() -> None:
    chats = Chats()
    for number in range(4_000):
        chats.now += 2
        chats.one_shot(number, "elsewhere")
        chats.contexts.expire(chats.now)
    assert chats.chance(60) < 0.05
    for number in range(4_000, 4_400):
        context = chats.contexts.placed("a", 500, few_keys(number), chats.now)
        chats.contexts.ended(context.number, "a", 500, None, chats.now)
    chats.now += 120
    assert chats.wanted("a", 10_000) < 0.05 * 10_000
    assert chats.wanted("a", 60_000) < 0.05 * 60_000


# -- bounds, and bad luck


def test_contexts_are_bounded_and_those_in_use_are_let_go_of_safely() -> None:
    chats = Chats(most=10)
    numbers = [chats.send("a", (f"{n}", 100), session=f"{n}") for n in range(50)]
    assert len(chats.contexts) == 10
    for number in numbers:
        chats.contexts.ended(number, "a", 100, True, chats.now)
        chats.contexts.abandoned(number)
    assert chats.wanted("a", 10_000) > 0


def test_those_that_are_over_are_let_go_of_and_those_in_use_are_not() -> None:
    chats = Chats()
    busy = chats.send("a", ("busy", 100))
    for number in range(600):
        chats.turn("a", (f"{number}", 100))
    for _ in range(5):
        chats.now += GONE_S
        for _ in range(5):
            chats.contexts.expire(chats.now)
    assert len(chats.contexts) == 1
    chats.contexts.ended(busy, "a", 100, None, chats.now)
    assert chats.turn("a", ("busy", 100), ("more", 50)) == busy


def grown(conversations: int, *, sessions: bool = False) -> float:
    """MiB that so many leave behind, the second half of them against the first. With `sessions`, one of a thousand
    that exist is gone on with, each time under a new name."""
    chats = Chats(most=2_000)

    def serve(first: int) -> None:
        for number in range(first, first + conversations // 2):
            chats.now += 0.05
            endpoint = "abcd"[number % 4]
            found = few_keys(number % 1_000 if sessions else number)
            name = f"session {number}" if sessions else ""
            context = chats.contexts.placed(endpoint, 64, found, chats.now, session=name)
            chats.contexts.ended(context.number, endpoint, 80, None, chats.now)

    serve(0)
    tracemalloc.start()
    serve(conversations // 2)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return size / (1 << 20)


def test_memory_stays_as_it_is_after_two_hundred_thousand_conversations() -> None:
    assert grown(200_000) < 4  # what was there is replaced: some 2,000 contexts


def test_a_client_that_names_a_new_session_with_each_request_costs_nothing() -> None:
    assert grown(60_000, sessions=True) < 2


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["placed", "ended", "abandoned", "displaced", "trim", "cleared", "expire", "wait"]),
            st.sampled_from("abc"),
            st.integers(0, 12),
            st.integers(0, 3),
            st.integers(0, 5_000),
            st.floats(-4_000, 4_000),
        ),
        max_size=60,
    )
)
def test_whatever_happens_in_whatever_order_nothing_fails(
    steps: list[tuple[str, str, int, int, int, float]],
) -> None:
    """Clocks that go back among it."""
    contexts, now, most = Contexts(8), 0.0, 8
    for what, endpoint, number, session, size, seconds in steps:
        match what:
            case "placed":
                contexts.placed(endpoint, size, few_keys(number)[: number % 3], now, session="st"[: session % 3])
            case "ended":
                contexts.ended(number, endpoint, size, None, now)
            case "abandoned":
                contexts.abandoned(number)
            case "displaced":
                wanted, behind = contexts.displaced(endpoint, size, now)
                assert 0 <= wanted <= size
                assert behind >= 0
            case "trim":
                contexts.trim(endpoint, size)
            case "cleared":
                contexts.cleared(endpoint)
            case "expire":
                contexts.expire(now)
            case _:
                now += seconds
        assert len(contexts) <= most
        for resident in contexts._residents.values():
            assert resident.tokens == sum(held for _, held in resident.by_number.values())


def test_a_clock_that_goes_back_does_not_keep_old_prices() -> None:
    chats = Chats()
    chats.turn("a", ("one", 10_000), answer=0)
    chats.now += 86_400
    assert 0 < chats.wanted("a", 10_000) < 10_000
    chats.now -= 86_400
    for number in range(5):
        chats.turn("a", (f"other {number}", 10_000), answer=0)
    assert chats.contexts.displaced("a", 50_000, chats.now)[1] == pytest.approx(10_000, rel=0.01)
