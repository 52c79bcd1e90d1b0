"""Where requests go: (ask, placed) on virtual time. Rates are the cold ones: half a millisecond for a prompt token."""

from collections import Counter

import pytest

from forebay.router.routing import Ask, Following
from tests.virtual import POOL, Table, endpoints_of

CHAT = ("a conversation", 1_000)
SYSTEM = ("a system prompt", 4_000)


def test_different_cold_requests_spread_evenly_at_once_and_one_after_another() -> None:
    table = Table("a", "b", "c")
    burst = [table.place((f"{n}", 500)) for n in range(12)]
    assert Counter(endpoints_of(burst)) == {"a": 4, "b": 4, "c": 4}
    table = Table("a", "b", "c")
    assert [table.serve((f"{n}", 500)) for n in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_identical_cold_requests_at_once_spread_as_well() -> None:
    table = Table("a", "b")
    assert Counter(endpoints_of([table.place(("the same", 500)) for _ in range(8)])) == {"a": 4, "b": 4}


def test_requests_without_keys_spread() -> None:
    table = Table("a", "b")
    assert Counter(endpoints_of([table.place(("short", 20)) for _ in range(8)])) == {"a": 4, "b": 4}


def test_a_conversation_stays_with_its_context() -> None:
    table = Table("a", "b")
    first = table.serve(CHAT)
    for turn in range(1, 6):
        table.now += 30.0
        placed = table.place(CHAT, *((f"turn {n}", 100) for n in range(turn)))
        assert placed.endpoint == first
        assert placed.cached == (1_000 + 100 * (turn - 1)) // 32 * 32
        table.begin(placed)
        table.end(placed)


def test_a_conversation_that_events_can_never_match_stays_with_its_context_all_the_same() -> None:
    table = Table("a", "b", following=Following.FOLLOWING)
    first = table.serve(CHAT, exact=False)
    table.now += 120.0
    table.core.tick(table.now)
    assert table.serve(CHAT, ("next", 50), exact=False) == first
    assert table.place(CHAT, ("more", 50), exact=False).cached >= 1_000 // 32 * 32


@pytest.mark.parametrize(("block", "cached"), [(16, 992), (32, 992), (64, 960), (128, 896), (256, 768)])
def test_of_a_block_that_is_cached_in_part_nothing_is_counted(block: int, cached: int) -> None:
    table = Table("a", "b", following=Following.FOLLOWING)
    table.stores("a", CHAT, ("and more", 1_000), block=block)
    assert table.place(CHAT, ("something else", 100)).cached == cached


def test_what_an_engine_without_events_had_forgotten_it_has_again_once_it_has_answered() -> None:
    table = Table("a", "b")
    assert table.serve(CHAT) == "a"
    placed = table.place(CHAT, ("more", 50))
    table.begin(placed)
    table.end(placed, prompt_tokens=1_050, cached=0)
    assert table.place(CHAT, ("more", 50), ("next", 50)).cached == 1_050 // 32 * 32


def test_it_stays_beside_a_few_others_and_leaves_a_long_queue() -> None:
    table = Table("a", "b")
    assert table.serve(CHAT) == "a"
    others = [table.place(("x", 20), without=("b",)) for _ in range(5)]
    assert table.place(CHAT, ("next", 50)).endpoint == "a"
    table.begin(*others)
    assert table.place(("a large prompt", 20_000), without=("b",)).endpoint == "a"
    moved = table.place(CHAT, ("next", 50))
    assert (moved.endpoint, moved.cached) == ("b", 0)
    assert table.pool.counts.placements["moved"] == 1


def test_a_match_that_saves_next_to_nothing_does_not_draw_requests() -> None:
    """All share their first block, and come one after another."""
    table = Table("a", "b")
    rates = table.pool.members["a"].rates, table.pool.members["b"].rates
    for one in rates:
        one.prefill_s = 1 / 50_000
    assert Counter(table.serve(("hello", 32), (f"{n}", 400)) for n in range(10)) == {"a": 5, "b": 5}


def test_a_short_conversation_stays_together_on_a_fast_idle_pool() -> None:
    table = Table("a", "b")
    for member in table.pool.members.values():
        member.rates.prefill_s = 1 / 100_000
    pieces = [("hello", 70)]
    for turn in range(5):
        assert table.serve(*pieces) == "a"
        pieces.append((f"turn {turn}", 40))


def test_a_burst_on_a_hot_prefix_stays_until_the_queue_is_worth_more_then_spreads() -> None:
    table = Table("a", "b")
    assert table.serve(SYSTEM) == "a"
    burst = endpoints_of([table.place(SYSTEM, (f"question {n}", 100)) for n in range(80)])
    moved = burst.index("b")
    assert 15 <= moved <= 40  # 4,000 tokens are two seconds; each question ahead is 50 ms and its answer
    after = Counter(burst[moved + 1 :])
    assert abs(after["a"] - after["b"]) <= 2  # both hold it, and both have two seconds of work ahead
    assert table.pool.counts.placements == {"cold": 1, "cached": 79, "moved": 1}


def test_a_busy_decoder_is_not_preferred_for_a_small_match() -> None:
    """Its queue of prefill is empty; what it generates slows every further answer."""
    table = Table("a", "b")
    assert table.serve(("prefix", 200)) == "a"
    running = [table.place((f"{n}", 10), without=("b",), output=256) for n in range(40)]
    table.begin(*running)
    assert table.place(("prefix", 200), ("more", 20), output=256).endpoint == "b"
    table.end(*running)
    assert table.explain(("prefix", 200), output=256)["a"].interference_s == 0.0


def test_prefill_ahead_is_worked_off_and_one_that_does_not_move_keeps_weight() -> None:
    table = Table("a")
    big = table.place(("big", 20_000))
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(10.0)
    table.now += 6.0
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(4.0)
    table.now += 600.0
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(2.5)
    table.begin(big)
    assert table.explain(("x", 100))["a"].queued_s == 0.0
    assert table.loads() == {"a": (1, 0, 64)}


def test_a_whole_answer_is_not_waited_for_longer_than_its_prefill_takes() -> None:
    table = Table("a")
    table.place(("big", 20_000), stream=False)
    table.now += 6.0
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(4.0)
    table.now += 6.0
    assert table.explain(("x", 100))["a"].queued_s == 0.0


def test_explaining_shows_what_would_happen_and_books_nothing() -> None:
    table = Table("a", "b", "c")
    assert table.serve(CHAT) == "a"
    table.core.failed(POOL, "c", "no route to host", table.now, at_once=True)
    before = table.loads()
    seen = table.explain(CHAT, ("next", 10), without=("b",))
    assert table.loads() == before
    assert [name for name, one in seen.items() if one.chosen] == ["a"]
    assert seen["a"].cached == 992
    assert seen["a"].predicted_s == pytest.approx(seen["a"].queued_s + seen["a"].prefill_s)
    assert seen["a"].predicted_s < seen["b"].predicted_s
    assert (seen["b"].available, seen["b"].reason) == (False, "was tried already")
    assert (seen["c"].available, seen["c"].reason) == (False, "no route to host")
    assert seen["c"].events is Following.NONE
    assert table.place(CHAT, ("next", 10), without=("b",)).endpoint == "a"


def test_nobody_is_left() -> None:
    table = Table("a")
    assert table.core.place(table.ask(("x", 10), without=("a",)), table.now) is None
    assert not any(one.chosen for one in table.explain(("x", 10), without=("a",)).values())
    table.core.failed(POOL, "a", "refused", table.now, at_once=True)
    assert table.core.place(table.ask(("x", 10)), table.now) is None
    unknown = Ask("nowhere", b"", 10, 10)
    assert table.core.place(unknown, table.now) is None
    assert table.core.explain(unknown, table.now) == []
    assert table.core.states("nowhere") == {}


def test_a_named_session_goes_back_where_it_was_although_nothing_is_known_to_be_cached() -> None:
    table = Table("a", "b", "c")
    first = {name: table.place((name, 4_000), session=name) for name in ("x", "y", "z")}
    table.end(*first.values())
    again = {name: table.place((f"{name}, rewritten", 4_000), session=name) for name in ("z", "y", "x")}
    assert {name: one.endpoint for name, one in again.items()} == {name: one.endpoint for name, one in first.items()}
    for number in range(3):
        table.place((f"long {number}", 20_000), without=tuple({"a", "b", "c"} - {first["x"].endpoint}))
    placed = table.place(("x, again", 4_000), session="x")
    assert placed.endpoint != first["x"].endpoint  # it is advice, and nobody waits for it
