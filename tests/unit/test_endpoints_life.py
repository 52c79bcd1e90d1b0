"""Endpoints that come, go, drain and come back: what the core remembers of them, and what becomes of bookings."""

import pytest

from forebay.router.health import Card
from forebay.router.prefix.blocks import Cleared
from forebay.router.routing import Following, Group, Role
from tests.virtual import POOL, Table

CHAT = ("a conversation", 1_000)


def test_one_that_comes_is_picked_like_the_others_and_one_that_goes_no_more() -> None:
    table = Table("a")
    table.core.add(POOL, "b")
    assert {table.place((f"{n}", 500)).endpoint for n in range(4)} == {"a", "b"}
    table.core.remove(POOL, "a")
    assert {table.place((f"later {n}", 500)).endpoint for n in range(4)} == {"b"}
    assert set(table.explain(CHAT)) == {"b"}
    assert set(table.core.states(POOL)) == {"b"}
    table.core.remove(POOL, "b")
    assert table.core.place(table.ask(CHAT), table.now) is None
    table.core.remove(POOL, "b")


def test_what_is_booked_on_one_that_goes_ends_once_and_quietly_whenever_it_does() -> None:
    table = Table("a", "b")
    held = [table.place((f"{n}", 500)) for n in range(6)]
    table.begin(*held[:3])
    table.core.remove(POOL, "a")
    assert table.core.bookings == 3
    table.core.add(POOL, "a")
    table.begin(*held)
    for placed in held:
        table.end(placed, prompt_tokens=500, cached=0, output=3, first_token_s=0.1, decode_s=0.1)
        table.end(placed)
    assert table.idle()


def test_a_name_that_comes_back_has_nothing() -> None:
    table = Table("a", "b", following=Following.FOLLOWING)
    table.stores("a", CHAT)
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    assert table.cached(CHAT) == {"a": 992}
    table.core.remove(POOL, "a")
    assert table.cached(CHAT) == {}
    table.core.add(POOL, "a")
    assert table.cached(CHAT) == {}
    assert table.core.states(POOL)["a"].open
    table.stores("a", CHAT)
    table.core.add(POOL, "a")  # it is there
    assert table.cached(CHAT) == {"a": 992}


def test_a_draining_one_gets_nothing_new_and_ends_what_it_has() -> None:
    table = Table("a", "b")
    assert table.serve(CHAT) == "a"
    held = table.place(CHAT)
    assert held.endpoint == "a"
    table.core.drain(POOL, "a", "it is being replaced")
    assert table.place(CHAT).endpoint == "b"
    told = table.explain(CHAT)["a"]
    assert (told.available, told.reason, told.chosen) == (False, "it is being replaced", False)
    assert table.loads()["a"][0] == 1
    table.begin(held)
    table.end(held)
    assert table.loads()["a"] == (0, 0, 0)
    table.core.drain(POOL, "b", "it too")
    assert table.core.place(table.ask(CHAT), table.now) is None
    table.core.drain(POOL, "a", "")
    assert table.place(CHAT).cached == 992


def test_one_that_comes_later_is_reckoned_at_the_pools_rates() -> None:
    table = Table("a")
    for n in range(30):
        placed = table.place((f"{n}", 2_000))
        table.begin(placed)
        table.end(placed, prompt_tokens=2_000, cached=0, output=101, first_token_s=8.0, decode_s=1.0)
    table.core.add(POOL, "b")
    seconds = {name: one.prefill_s for name, one in table.explain(("new", 2_000)).items()}
    assert seconds["b"] == pytest.approx(seconds["a"], rel=0.2)


def test_late_news_of_one_that_has_gone_is_nobodys() -> None:
    table = Table("a", "b")
    table.core.remove(POOL, "a")
    table.core.probed(POOL, "a", Card(), table.now)
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    table.core.answered(POOL, "a", table.now)
    table.core.follows(POOL, "a", Following.AWAY)
    table.core.clear(POOL, "a")
    table.core.apply(POOL, "a", [Cleared()])
    table.core.drain(POOL, "a", "gone")
    assert set(table.core.states(POOL)) == {"b"}
    assert set(table.pool.index.sizes().blocks) == {"b"}


def test_only_unified_endpoints_are_picked() -> None:
    table = Table("a", "b")
    table.core.group(POOL, "a", Group(Role.PREFILL, "r2", "h200"))
    assert {table.place((f"{n}", 500)).endpoint for n in range(4)} == {"b"}
    told = table.explain(CHAT)["a"]
    assert (told.available, told.reason) == (False, "role prefill is not placed on yet")
    assert told.group == Group(Role.PREFILL, "r2", "h200")
    table.core.group(POOL, "b", Group(Role.DECODE))
    assert table.core.place(table.ask(CHAT), table.now) is None
    table.core.group(POOL, "a", Group(revision="r2"))
    assert table.place(CHAT).endpoint == "a"
