"""What becomes of bookings and of what endpoints are taken to hold: deaths, restarts, lost workers, late events."""

import pytest

from forebay.router.guesses import BRIDGE_S, LASTING_S
from forebay.router.health import Card, Failed
from forebay.router.routing import Following, Health
from tests.virtual import POOL, Table

CHAT = ("a conversation", 1_000)
FOLLOWED = Following.FOLLOWING


def test_an_endpoint_that_dies_gets_no_more_and_its_bookings_end_once() -> None:
    table = Table("a", "b")
    held = [table.place((f"{n}", 500)) for n in range(6)]
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    assert table.core.states(POOL)["a"].health is Health.DOWN
    assert {table.place((f"later {n}", 500)).endpoint for n in range(6)} == {"b"}
    for placed in held:
        table.end(placed)
        table.end(placed)
        table.begin(placed)
    assert table.loads()["a"] == (0, 0, 0)
    assert table.loads()["b"][0] == 6


def test_a_flapping_endpoint_never_has_less_than_nothing() -> None:
    table = Table("a", "b")
    for _ in range(20):
        held = [table.place(CHAT, output=7) for _ in range(4)]
        table.core.failed(POOL, "a", "reset", table.now)
        table.core.failed(POOL, "a", "reset", table.now)
        table.core.probed(POOL, "a", Failed("refused", at_once=True), table.now)
        table.begin(*held[:2])
        table.core.probed(POOL, "a", Card(8192), table.now)
        table.end(*held)
        assert table.idle()
    assert table.explain(("x", 100))["a"].queued_s == 0.0


def test_a_process_that_is_gone_has_lost_its_cache_and_one_that_is_silent_has_not() -> None:
    table = Table("a", "b")
    assert table.serve(CHAT) == "a"
    for _ in range(2):
        table.core.failed(POOL, "a", "no answer within 5 s", table.now)
    assert table.place(CHAT).endpoint == "b"
    table.core.probed(POOL, "a", Card(), table.now)
    assert table.cached(CHAT)["a"] == 992
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    table.core.probed(POOL, "a", Card(), table.now)
    assert "a" not in table.cached(CHAT)


def test_what_was_learnt_after_a_restart_survives_late_news_of_the_death() -> None:
    table = Table("a", following=FOLLOWED)
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    table.stores("a", CHAT)
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    assert table.cached(CHAT) == {"a": 992}


def test_a_refusal_while_events_go_on_costs_no_context_and_one_after_which_they_end_does() -> None:
    """A proxy or a service without ready pods refuses for an engine that is well."""
    table = Table("a", following=FOLLOWED)
    table.stores("a", CHAT)
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    table.core.probed(POOL, "a", Card(), table.now)
    assert table.cached(CHAT) == {"a": 992}
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    table.core.follows(POOL, "a", Following.AWAY)
    assert table.cached(CHAT) == {}


def test_a_broken_connection_to_an_engine_that_answers_costs_no_context() -> None:
    table = Table("a", following=FOLLOWED)
    table.stores("a", CHAT)
    table.core.follows(POOL, "a", Following.AWAY)
    assert table.cached(CHAT) == {"a": 992}


def test_a_restart_clears() -> None:
    table = Table("a", "b", following=FOLLOWED)
    table.stores("a", CHAT)
    assert table.place(CHAT).cached == 992
    table.core.clear(POOL, "a")
    assert table.cached(CHAT) == {}


def test_the_bookings_of_a_lost_worker_end_and_no_others() -> None:
    table = Table("a", "b")
    lost = [table.place((f"lost {n}", 300), owner=1) for n in range(5)]
    kept = [table.place((f"kept {n}", 300), owner=2) for n in range(3)]
    table.begin(*lost[:2])
    table.core.release_owner(1, table.now)
    table.core.release_owner(1, table.now)
    assert sum(in_flight for in_flight, _, _ in table.loads().values()) == 3
    assert sum(prefill for _, prefill, _ in table.loads().values()) == 900
    table.end(*lost)
    assert table.cached(("lost 4", 300)) == {}
    table.end(*kept)
    assert table.idle()


def test_an_attempt_that_never_began_leaves_no_guess_behind() -> None:
    table = Table("a", "b")
    failed = table.place(CHAT)
    table.end(failed)
    assert table.cached(CHAT) == {}
    assert table.place(CHAT, without=(failed.endpoint,)).cached == 0


def test_a_guess_ends_when_events_do_not_confirm_it() -> None:
    table = Table("a", "b", following=FOLLOWED)
    placed = table.place(CHAT)
    assert table.cached(CHAT) == {"a": 992}
    table.now += placed.predicted_s + BRIDGE_S - 0.1
    table.core.tick(table.now)
    assert table.cached(CHAT) == {"a": 992}
    table.begin(placed)
    table.now += BRIDGE_S - 0.1
    table.core.tick(table.now)
    assert table.cached(CHAT) == {"a": 992}
    table.now += 0.2
    table.core.tick(table.now)
    assert table.cached(CHAT) == {}
    table.stores("a", CHAT)  # late, and true all the same
    assert table.cached(CHAT) == {"a": 992}
    table.end(placed)
    assert table.cached(CHAT) == {"a": 992}


def test_a_guess_that_came_true_outlives_its_time() -> None:
    table = Table("a", following=FOLLOWED)
    placed = table.place(CHAT)
    table.stores("a", CHAT)
    table.begin(placed)
    table.now += 2 * LASTING_S
    table.core.tick(table.now)
    assert table.cached(CHAT) == {"a": 992}


@pytest.mark.parametrize("following", [Following.NONE, Following.STARTING, Following.UNDECODABLE, Following.AWAY])
def test_without_events_a_guess_is_all_there_is(following: Following) -> None:
    table = Table("a", "b", following=following)
    assert table.serve(CHAT) == "a"
    table.now += 0.9 * LASTING_S
    table.core.tick(table.now)
    assert table.place(CHAT).endpoint == "a"


def test_a_conversation_that_goes_on_keeps_its_beginning() -> None:
    table = Table("a", "b")
    first = table.serve(CHAT)
    turns: list[tuple[str, int]] = []
    for turn in range(20):
        turns.append((f"turn {turn}", 40))
        table.now += LASTING_S / 5
        table.core.tick(table.now)
        assert table.serve(CHAT, *turns) == first
    table.now += 2 * LASTING_S
    table.core.tick(table.now)
    assert table.cached(CHAT, *turns) == {}


def test_events_that_can_no_longer_be_read_say_nothing_of_what_is_held() -> None:
    table = Table("a", following=FOLLOWED)
    table.stores("a", CHAT)
    table.core.clear(POOL, "a")
    table.core.follows(POOL, "a", Following.UNDECODABLE)
    assert table.cached(CHAT) == {}
    assert table.serve(CHAT) == "a"
    table.core.clear(POOL, "a")  # at each event that cannot be read
    assert table.cached(CHAT) == {"a": 992}
    table.core.follows(POOL, "a", FOLLOWED)
    table.core.clear(POOL, "a")
    assert table.cached(CHAT) == {}


def test_the_engine_had_more_than_was_known() -> None:
    table = Table("a", "b")
    placed = table.place(CHAT)
    table.begin(placed)
    table.core.clear(POOL, placed.endpoint)
    table.end(placed, prompt_tokens=1_000, cached=640, output=5)
    assert table.cached(CHAT) == {"a": 992}  # it has computed the rest since
    counts = table.pool.counts
    assert (counts.prompt_tokens, counts.predicted, counts.observed) == (1_000, 0, 640)
    assert (counts.more, counts.less) == (1, 0)


def test_what_was_computed_before_anybody_listened_is_known_once_the_engine_has_said_so() -> None:
    """The replay does not reach back that far, and of what follows a block that is not known events say nothing."""
    table = Table("a", "b", following=FOLLOWED)
    placed = table.place(CHAT)
    table.begin(placed)
    table.end(placed, prompt_tokens=1_000, cached=640)
    table.now += 10 * BRIDGE_S
    table.core.tick(table.now)
    assert table.cached(CHAT) == {"a": 640}
    table.now += LASTING_S
    table.core.tick(table.now)
    assert table.cached(CHAT) == {}


@pytest.mark.parametrize(("following", "cached"), [(Following.NONE, 992), (Following.FOLLOWING, 512)])
def test_the_engine_had_clearly_less_than_was_guessed(following: Following, cached: int) -> None:
    """It has computed the rest since, of which events tell where there are any."""
    table = Table("a", "b", following=following)
    assert table.serve(CHAT) == "a"
    placed = table.place(CHAT)
    assert placed.cached == 992
    table.begin(placed)
    table.end(placed, prompt_tokens=1_000, cached=512)
    assert table.cached(CHAT) == {"a": cached}
    assert table.pool.counts.less == 1


def test_a_difference_of_a_block_is_none() -> None:
    table = Table("a", "b")
    assert table.serve(CHAT) == "a"
    placed = table.place(CHAT)
    table.begin(placed)
    table.end(placed, prompt_tokens=1_000, cached=896)
    assert table.cached(CHAT) == {"a": 992}
    assert (table.pool.counts.more, table.pool.counts.less) == (0, 0)


def test_tokens_that_were_guessed_from_bytes_are_compared_by_their_share() -> None:
    table = Table("a", "b")
    assert table.serve(CHAT) == "a"
    placed = table.place(CHAT)
    table.begin(placed)
    table.end(placed, prompt_tokens=500, cached=480)
    assert table.cached(CHAT) == {"a": 992}
    counts = table.pool.counts
    assert (counts.predicted, counts.observed, counts.less) == (496, 480, 0)


def test_an_answer_counts_against_earlier_failures() -> None:
    table = Table("a", "b")
    table.core.failed(POOL, "a", "reset", table.now)
    table.begin(table.place(CHAT, without=("b",)))
    table.core.failed(POOL, "a", "reset", table.now)
    assert table.core.states(POOL)["a"].available
    table.core.answered(POOL, "a", table.now)
    table.core.failed(POOL, "a", "reset", table.now)
    assert table.core.states(POOL)["a"].available
    table.core.failed(POOL, "a", "reset", table.now)
    assert not table.core.states(POOL)["a"].available


def test_news_of_what_is_not_known_changes_nothing() -> None:
    table = Table("a")
    for pool, endpoint in (("nowhere", "a"), (POOL, "z")):
        table.core.failed(pool, endpoint, "reset", table.now, at_once=True)
        table.core.answered(pool, endpoint, table.now)
    table.core.begun(99, table.now)
    assert table.core.states(POOL)["a"].available
