"""Conversations as a cache sees them: which one a prompt goes on with, and what is kept of it."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.contexts import GONE_S, Contexts
from forebay.router.loads import NO_KEYS
from tests.chats import Chats, few_keys
from tests.virtual import Table

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


def test_a_conversation_is_known_although_its_last_words_were_written_anew() -> None:
    """As agents do with a reminder at the end."""
    chats = Chats()
    number = chats.turn("a", ("history", 9_600), ("reminder", 64), answer=300)
    assert chats.turn("a", ("history", 9_600), ("answer", 300), ("result", 900), ("reminder", 64)) == number


def test_what_only_begins_alike_and_is_no_longer_is_another_conversation() -> None:
    chats = Chats()
    number = chats.turn("a", ("history", 9_600), ("one question", 64), answer=300)
    assert chats.turn("a", ("history", 9_600), ("another", 64), answer=300) != number


def test_a_conversation_that_no_cache_remembers_is_known_by_any_earlier_end() -> None:
    chats = Chats()
    number = chats.turn("a", ("system", 3_000), ("question", 72))
    turn = [("system", 3_000), ("question", 72), ("answer", 300), ("result", 90_000)]
    assert chats.turn("a", *turn) == number


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
    helper = chats.send("b", ("helper's system", 2_000), ("task", 500), session="s")
    assert helper != number
    assert chats.wanted("a", 50_000) > 0
    assert chats.turn("a", *root, ("result", 700), session="s") == number


# -- bounds, and bad luck


def test_contexts_are_bounded_and_those_in_use_are_let_go_of_safely() -> None:
    chats = Chats(most=10)
    numbers = [chats.send("a", (f"{n}", 100), session=f"{n}") for n in range(50)]
    assert len(chats.contexts) == 10
    for number in numbers:
        chats.contexts.ended(number, "a", 100, True, chats.now)
        chats.contexts.abandoned(number)
    assert len(chats.contexts) == 0


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


# -- how much is stored


def test_what_is_stored_is_told_of_one_endpoint_and_by_the_second() -> None:
    chats = Chats()
    for _ in range(200):
        chats.now += 10
        for endpoint in "ab":
            chats.fresh(endpoint, 1_000)
    assert chats.contexts.inflow(chats.now) == pytest.approx(100, rel=0.02)
    chats.contexts.cleared("b")
    for _ in range(200):
        chats.now += 10
        chats.fresh("a", 4_000)
    assert chats.contexts.inflow(chats.now) == pytest.approx(400, rel=0.02)


def test_what_was_cached_is_not_stored() -> None:
    chats = Chats()
    for number in range(100):
        chats.now += 10
        chats.contexts.placed("a", 50_000, few_keys(number), chats.now, stored=300)
    assert chats.contexts.inflow(chats.now) == pytest.approx(30, rel=0.05)


def test_the_first_minute_s_stream_is_not_taken_for_a_trickle() -> None:
    chats = Chats()
    for _ in range(60):
        chats.now += 1
        chats.fresh("a", 2_000)
    assert chats.contexts.inflow(chats.now) == pytest.approx(2_000, rel=0.05)


def test_a_pool_in_which_nothing_happens_stores_next_to_nothing() -> None:
    chats = Chats()
    assert 0 < chats.contexts.inflow(chats.now) <= 1
    chats.fresh("a", 1_000_000)
    chats.calm()
    assert 0 < chats.contexts.inflow(chats.now) <= 1
