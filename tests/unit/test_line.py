"""Requests that wait in the router until an engine will start them: who is sent when, and how every wait ends."""

import random
from typing import Any

import msgspec
import pytest

from forebay.router.core_line import LOOKED, MOVED
from forebay.router.health import FIRST_OUT_S, Card, Failed
from forebay.router.line import MOST
from forebay.router.loads import Share
from forebay.router.peers import LASTING_S, Entry, Report
from forebay.router.rates import COLD_PREFILL_S
from forebay.router.routing import Group, Placed, Refused, Result, Role, Why
from forebay.router.tiers import Tier, Tiers
from forebay.router.waiting import START_S
from tests.virtual import POOL, Engines, Table

LONG = 20_000  # tokens: 10 s of prefill, until rates are learnt
SOON = round(START_S / COLD_PREFILL_S)  # tokens that an engine computes within START_S


def placed(result: Result) -> Placed:
    assert isinstance(result, Placed)
    return result


def busy(*endpoints: str, others: tuple[str, ...] = ()) -> tuple[Table, list[Placed]]:
    """Endpoints that compute something long, and idle `others`."""
    table = Table(*endpoints, *others)
    there = []
    for name in endpoints:
        without = tuple(other for other in table.pool.members if other != name)
        there.append(table.place((f"long, at {name}", LONG), without=without))
    return table, there


# -- when an engine gets work


def test_an_idle_engine_gets_a_request_at_once() -> None:
    table = Table("a")
    number = table.request(("x", LONG))
    assert placed(table.settled()[number]).endpoint == "a"
    assert table.settled() == {}  # told once
    assert not table.idle()


def test_one_behind_a_long_prompt_waits_until_that_has_begun() -> None:
    table, long = busy("a")
    number = table.request(("x", 100))
    table.now += 5
    table.pump()
    table.core.tick(table.now)
    assert table.settled() == {}
    table.begin(*long)
    table.pump()
    assert placed(table.settled()[number]).endpoint == "a"


def test_one_may_be_sent_when_the_engine_is_about_to_be_free_and_not_when_it_is_late() -> None:
    """A queue is worked off as time passes, but not all of it for as long as nothing says so."""
    table = Table("a")
    table.place(("x", 3 * SOON))
    number = table.request(("y", 10))
    assert table.settled() == {}
    table.now += 2 * START_S + 0.01
    table.pump()
    assert placed(table.settled()[number]).endpoint == "a"
    table.place(("a stuck one", 5 * LONG))
    stuck = table.request(("z", 10), patience_s=1e6)
    table.now += 3_600
    table.pump()
    assert stuck not in table.settled()


def test_it_waits_for_the_one_that_has_its_context_only_as_long_as_that_is_worth() -> None:
    table = Table("a", "b")
    home = table.serve(("history", LONG))
    other = "b" if home == "a" else "a"
    short = table.place(("something", 4 * SOON), without=(other,))  # 1 s
    number = table.request(("history", LONG), ("question", 50))
    assert table.settled() == {}
    table.begin(short)
    table.pump()
    assert placed(table.settled()[number]).endpoint == home
    table.place(("something else", 2 * LONG), without=(other,))  # 20 s
    number = table.request(("history", LONG), ("question", 50), ("and another", 50))
    assert placed(table.settled()[number]).endpoint == other


def test_an_engine_with_room_is_soon_taken_by_one_that_waited_for_another() -> None:
    """Whoever waits for an engine without room is weighed anew after a moment, however many engines open meanwhile."""
    table = Table("b", "c", "d")
    long = {}
    for name, tokens in (("b", 3 * LONG), ("c", LONG), ("d", 3 * LONG)):
        without = tuple(other for other in table.pool.members if other != name)
        long[name] = table.place((f"long, at {name}", tokens), without=without)
    number = table.request(("x", LONG // 4))
    table.now += 1
    table.pump()
    assert table.settled() == {}
    began = table.now
    table.now = began + 0.001
    table.begin(long["b"])
    table.pump()
    table.now = began + 0.241
    table.begin(long["d"])
    table.pump()
    while table.now < began + 0.3:
        table.now += 0.02
        table.pump()
    assert placed(table.settled()[number]).endpoint in ("b", "d")


def test_whole_answers_are_not_held_since_they_do_not_say_when_they_begin() -> None:
    table = Table("a")
    numbers = [table.request((f"{n}", LONG), stream=False) for n in range(6)]
    assert {placed(result).endpoint for result in table.settled().values()} == {"a"}
    stream = table.request(("a stream", 100))
    assert stream in table.settled()
    assert len(numbers) == 6


@pytest.mark.parametrize("seed", range(4))
def test_no_engine_has_more_than_a_moment_s_work_ahead_of_what_it_is_sent(seed: int) -> None:
    """Whatever comes: conversations, long prompts and short ones, twice what three engines can do for a while."""
    table = Table("a", "b", "c")
    engines, rng = Engines(table), random.Random(seed)
    began = table.now
    for number in range(300):
        chat = rng.randrange(60)
        size = rng.choice([50, 300, 300, 2_000, 2_000, 8_000])
        ask = table.ask((f"chat {chat}", 1_000), (f"own {number}", size), output=rng.randrange(10, 500))
        engines.ask(ask, began + rng.uniform(0, 100))
    engines.run(began + 700)
    assert not engines.refused or engines.table.now > began + 60
    assert max(engines.queued_s.values()) < START_S * 1.2 + 0.05
    assert table.idle()


# -- whose turn it is


def test_short_ones_pass_long_ones_and_long_ones_have_their_turn() -> None:
    """One engine, 10% more short requests than it can do, and one that takes 8 s."""
    table = Table("a")
    engines = Engines(table)
    began = table.now
    long = engines.ask(table.ask(("long", 16_000)), began + 5)
    short = [engines.ask(table.ask((f"{n}", 1_000)), began + n / 2.2) for n in range(300)]
    engines.run(began + 400)
    assert 10 < engines.first_s[long] < 55  # 8 s of it is computing
    met = [engines.first_s[number] for number in short[:12]]
    assert max(met) < 3  # those who came before it and with it
    assert table.idle()


def test_of_those_that_wait_for_one_engine_the_shortest_goes_first() -> None:
    table, long = busy("a")
    sizes = [9_000, 600, 3_000]
    numbers = [table.request((f"{size}", size)) for size in sizes]
    order: list[int] = []
    table.begin(*long)
    while len(order) < len(sizes):
        table.pump()
        told = table.settled()
        assert len(told) == 1
        for number, result in told.items():
            order.append(sizes[numbers.index(number)])
            table.begin(placed(result))
    assert order == sorted(sizes)


def test_one_that_waits_for_its_home_does_not_keep_others_from_idle_engines() -> None:
    table = Table("a", "b")
    home = table.serve(("history", LONG))
    other = "b" if home == "a" else "a"
    table.place(("something", 8 * SOON), without=(other,))
    waits = table.request(("history", LONG), ("question", 50))
    goes = table.request(("new", 500))
    assert {number: placed(result).endpoint for number, result in table.settled().items()} == {goes: other}
    table.core.withdraw(waits, table.now)


def test_a_long_prompt_is_answered_within_its_patience_where_short_ones_come_without_end() -> None:
    """One engine, 10% more short requests than it can do, and each minute one that takes 20 s: somebody must be
    refused, but not all of those."""
    table = Table("a")
    engines = Engines(table)
    began = table.now
    for number in range(700):
        engines.ask(table.ask((f"{number}", 1_000)), began + number / 2.2)
    long = [engines.ask(table.ask((f"long {number}", 40_000)), began + 20 + 60 * number) for number in range(4)]
    engines.run(began + 600)
    assert set(long) & set(engines.first_s)


# -- how a wait ends


def test_a_wait_ends_at_its_deadline() -> None:
    table, _ = busy("a")
    soon, later = table.request(("x", 100), patience_s=5), table.request(("y", 100), patience_s=9)
    table.core.tick(table.now + 4.9)
    assert table.settled() == {}
    table.core.tick(table.now + 5)
    result = table.settled()[soon]
    assert isinstance(result, Refused)
    assert result.why is Why.LATE
    assert result.retry_s > 0
    table.core.tick(table.now + 100)
    assert list(table.settled()) == [later]
    table.core.tick(table.now + 200)
    assert table.settled() == {}


def test_who_waits_when_the_last_endpoint_goes_is_kept_as_long_as_a_newcomer() -> None:
    table = Table("a", tiers=Tiers([Tier(cold_s=30.0)]))
    table.place(("long", LONG))
    waits = table.request(("x", 100), patience_s=5)
    table.now += 4
    table.core.remove(POOL, "a")
    table.pump()
    comes = table.request(("y", 100), patience_s=5)
    table.now += 29
    table.core.tick(table.now)
    table.pump()
    assert table.settled() == {}
    table.core.add(POOL, "a")
    table.pump()
    assert {placed(result).endpoint for result in table.settled().values()} == {"a"}
    assert waits != comes


def test_a_pool_that_comes_and_goes_puts_no_deadline_off_for_ever() -> None:
    table = Table("a", tiers=Tiers([Tier(cold_s=30.0)]))
    table.place(("long", LONG))
    waits = table.request(("x", 100), patience_s=5)
    began = table.now
    while waits not in (settled := table.settled()):
        table.core.remove(POOL, "a")
        table.pump()
        table.now += 1
        table.core.add(POOL, "a")
        table.place(("long", LONG))
        table.pump()
        table.core.tick(table.now)
    assert isinstance(settled[waits], Refused)
    assert table.now - began <= 36


def test_one_too_many_is_told_so_at_once() -> None:
    table, _ = busy("a")
    for number in range(MOST):
        ask = msgspec.structs.replace(table.ask(("x", 40)), tenant=f"{number % 400 if number < MOST - 100 else number}")
        table.core.request(ask, table.now)
    assert table.settled() == {}
    number = table.request(("x", 40))
    result = table.settled()[number]
    assert isinstance(result, Refused)
    assert result.why is Why.FULL
    assert result.retry_s > 1
    table.core.tick(table.now + 61)
    assert len(table.settled()) == MOST  # and there is room again
    assert table.request(("x", 40)) not in table.settled()


def test_a_flood_of_one_tenant_makes_no_other_of_its_tier_refused_as_full() -> None:
    table, _ = busy("a")
    flood = msgspec.structs.replace(table.ask(("x", 40)), tenant="flood")
    for _ in range(MOST + 100):
        table.core.request(flood, table.now)
    refused = table.settled().values()
    assert {result.why for result in refused if isinstance(result, Refused)} == {Why.FULL}
    assert len(refused) < MOST / 5
    for number in range(50):
        table.core.request(msgspec.structs.replace(flood, tenant=f"other {number % 5}"), table.now)
    assert table.settled() == {}


def test_nobody_waits_in_a_pool_that_is_not_or_where_nobody_may_be_asked() -> None:
    table = Table("a", "b")
    ask = table.ask(("x", 100))
    nowhere = table.core.request(type(ask)("nowhere", b"", 5, 5), table.now)
    tried = table.request(("x", 100), without=("a", "b"))
    assert table.settled() == {nowhere: None, tried: None}
    assert Table().request(("x", 100))


@pytest.mark.parametrize("how", ["removed", "drained", "down", "of another role"])
@pytest.mark.parametrize("number", [1, 40])
def test_those_who_wait_for_endpoints_that_go_are_told_soon(how: str, number: int) -> None:
    table, _ = busy("a", "b")
    numbers = {table.request((f"{n}", 400)) for n in range(number)}
    for name in ("a", "b"):
        if how == "removed":
            table.core.remove(POOL, name)
        elif how == "drained":
            table.core.drain(POOL, name, "it goes")
        elif how == "down":
            table.core.failed(POOL, name, "refused", table.now, at_once=True)
        else:
            table.core.group(POOL, name, Group(Role.DECODE))
    told: dict[int, Result] = {}
    for _ in range(5):  # a tenth of a second
        table.now += 0.02
        table.pump()
        told |= table.settled()
    assert told == dict.fromkeys(numbers)


def test_those_who_may_only_be_sent_elsewhere_are_told_when_that_goes() -> None:
    table, _ = busy("a", others=("b",))
    table.place(("long", LONG), without=("a",))
    number = table.request(("x", 400), without=("a",))
    assert table.settled() == {}
    table.core.remove(POOL, "b")
    table.now += 0.3
    table.pump()
    assert table.settled() == {number: None}


def wait_for_two(others: int) -> tuple[Table, list[int], str]:
    """Endpoints a and b are busy with what is long; `others` wait for the one's context, and four for the other's. A
    third endpoint is idle, and nobody wants it: to compute all anew would take longer."""
    table = Table("a", "b", "c")
    one = table.serve(("history", 3 * LONG))
    other = table.serve(("another history", 3 * LONG), without=(one,))
    for name in (one, other):
        without = tuple(each for each in table.pool.members if each != name)
        table.place((f"long, at {name}", LONG // 2), without=without)
    for number in range(others):
        table.request(("history", 3 * LONG), (f"{number}", 60))
    numbers = [table.request(("another history", 3 * LONG), (f"{number}", 90)) for number in range(4)]
    assert table.settled() == {}
    return table, numbers, other


@pytest.mark.parametrize(
    ("how", "others"),
    [
        ("removed", 5),
        ("drained", 5),
        ("ejected", 5),
        ("removed", 40),
        ("drained", 40),
        ("ejected", 40),
    ],
)  # fmt: skip
def test_those_whose_home_goes_are_sent_to_an_idle_engine(how: str, others: int) -> None:
    table, numbers, home = wait_for_two(others)
    if how == "removed":
        table.core.remove(POOL, home)
    elif how == "drained":
        table.core.drain(POOL, home, "it goes")
    else:
        for _ in range(2):
            table.core.failed(POOL, home, "it hangs", table.now)
    table.now += 1
    table.pump()
    told = table.settled()
    assert [number for number in numbers if number in told] != []
    assert {placed(result).endpoint for number, result in told.items() if number in numbers} <= {"c"} | (
        {"a", "b"} - {home}
    )


def test_a_new_endpoint_takes_those_who_wait() -> None:
    table, _ = busy("a")
    numbers = [table.request((f"{n}", 2_000)) for n in range(3)]
    table.core.add(POOL, "b")
    table.pump()
    told = table.settled()
    assert {placed(result).endpoint for result in told.values()} == {"b"}
    assert len(told) == 1  # one at a time
    assert set(told) <= set(numbers)


def test_one_that_was_drained_takes_those_who_wait_when_it_is_back() -> None:
    table, _ = busy("a", others=("b",))
    table.core.drain(POOL, "b", "it is looked after")
    number = table.request(("x", 2_000))
    assert table.settled() == {}
    table.core.drain(POOL, "b", "")
    table.pump()
    assert placed(table.settled()[number]).endpoint == "b"


def test_one_that_returns_gets_one_of_those_who_wait_at_a_time() -> None:
    table, _ = busy("a", others=("b",))
    table.core.probed(POOL, "b", Card(), table.now)
    table.core.failed(POOL, "b", "refused", table.now, at_once=True)
    for n in range(8):
        table.request((f"{n}", 100))
    assert table.settled() == {}
    table.now += FIRST_OUT_S + 1
    table.core.probed(POOL, "b", Card(4_096), table.now)
    for _ in range(3):
        table.pump()
        (result,) = table.settled().values()
        assert placed(result).endpoint == "b"
        table.pump()
        assert table.settled() == {}
        table.begin(placed(result))
    table.pump()
    assert len(table.settled()) > 1
    table.core.probed(POOL, "b", Failed("it is gone", at_once=True), table.now)
    table.pump()
    assert table.settled() == {}


def test_a_peer_s_work_is_waited_for_until_it_is_silent() -> None:
    table = Table("a")
    table.core.peers.hear(Report("another", 1, [Entry(POOL, "a", Share(1, 10, LONG, 0, LONG))]), table.now)
    number = table.request(("x", 100))
    table.pump()
    assert table.settled() == {}
    table.core.tick(table.now + LASTING_S + 0.1)
    table.pump()
    assert number in table.settled()


# -- who leaves


def test_who_left_is_told_nothing_and_holds_nothing() -> None:
    table, long = busy("a")
    stays, leaves = table.request(("x", 100)), table.request(("y", 50))
    table.core.withdraw(leaves, table.now)
    table.core.withdraw(leaves, table.now)
    table.core.withdraw(12345, table.now)
    table.end(*long)
    table.pump()
    (number, result) = table.settled().popitem()
    assert number == stays
    table.core.withdraw(stays, table.now)  # it is placed: its end must be told instead
    assert table.core.bookings == 1
    table.end(placed(result))
    table.core.tick(table.now + 100)
    assert table.settled() == {}
    assert table.idle()


def test_an_owner_that_is_gone_leaves_nothing_behind() -> None:
    table, long = busy("a")
    other = table.request(("x", 100), owner=1)
    for n in range(5):
        table.request((f"{n}", 50), owner=2)
    table.core.release_owner(2, table.now)
    table.end(*long)
    table.pump()
    assert list(table.settled()) == [other]
    table.core.release_owner(1, table.now)
    assert table.idle()
    table.core.tick(table.now + 100)
    assert table.settled() == {}


@pytest.mark.parametrize("how", ["another came under its name", "it lost everything", "who computed it left"])
def test_what_has_gone_from_a_cache_while_one_waits_is_not_counted_on(how: str) -> None:
    """Else a prompt that takes 10 s is booked as one that takes none, and others are sent after it."""
    table = Table("a")
    root = table.place(("history", LONG))
    number = table.request(("history", LONG), ("question", 50))
    table.now += 0.1
    table.pump()
    assert table.settled() == {}
    if how == "another came under its name":
        table.core.remove(POOL, "a")
        table.core.add(POOL, "a")
    else:
        table.end(root)
        if how == "it lost everything":
            table.core.clear(POOL, "a")
    table.now += 0.3
    table.pump()
    assert placed(table.settled()[number]).cached == 0


# -- clocks


def test_a_clock_that_jumps_ahead_ends_waits_and_nothing_else() -> None:
    table, long = busy("a")
    number = table.request(("x", 100))
    table.now += 1e9
    table.core.tick(table.now)
    assert isinstance(table.settled()[number], Refused)
    table.end(*long)
    assert table.request(("y", 100)) in table.settled()


@pytest.mark.parametrize(
    "seconds",
    [
        0.1,
        10.0,
        3_600.0,
        86_400.0,
    ],
)
def test_a_clock_that_goes_back_leaves_placements_as_they_are(seconds: float) -> None:
    table = Table("a", "b")
    table.now += 1e6
    for number in range(20):
        table.serve((f"{number}", 400))
    home = table.serve(("history", LONG))
    table.now -= seconds
    assert all(one.delayed_s < 60 for one in table.explain(("new", LONG)).values())
    number = table.request(("history", LONG), ("question", 50))
    assert placed(table.settled()[number]).endpoint == home


def counted(table: Table, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Filled with whoever is weighed."""
    weighed, options = list[Any](), table.pool.options

    def count(*args: Any, **more: Any) -> Any:
        weighed.append(args)
        return options(*args, **more)

    monkeypatch.setattr(table.pool, "options", count)
    return weighed


def test_those_whose_time_is_over_are_told_some_at_a_time() -> None:
    table, _ = busy("x")
    numbers = [table.request((f"chat {number}", 200), patience_s=5.0) for number in range(50)]
    told = list[int]()
    while table.core.late(table.now + 5, 20):
        some = table.settled()
        assert len(some) == 20
        told += some
    told += table.settled()
    assert told == numbers
    assert not table.core.late(table.now + 5, 20)


def test_not_all_of_a_tier_are_weighed_that_others_stand_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an endpoint has room for a tier, and what goes before it has none."""
    table = Table("x", tiers=Tiers([Tier(name="high"), Tier(name="low", rank=1)]))
    line = table.core.lines[POOL]
    monkeypatch.setattr(line.ceilings, "opens", lambda tier, *_, **__: tier.name == "low" and table.now > 1_000)
    for tier in ("high", "low"):
        for number in range(400):
            ask = msgspec.structs.replace(table.ask((f"{tier} {number}", 2_000)), tier=tier, asked=tier, patience_s=9e9)
            table.core.request(ask, table.now)
    weighed = counted(table, monkeypatch)
    table.now += 1
    table.pump()
    assert table.settled() == {}
    assert 0 < len(weighed) <= MOVED + 2 * LOOKED + 1


def test_not_all_of_those_whose_engine_has_gone_are_weighed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are thousands, and everybody else would stand still meanwhile; each gets its turn soon after."""
    table, _ = busy("x", "y")
    for number in range(400):
        table.request((f"chat {number}", 200), patience_s=1_000.0)
    (gone,) = {one.home for one in table.core.lines[POOL].line}
    weighed = counted(table, monkeypatch)
    table.core.failed(POOL, gone, "refused", table.now, at_once=True)
    table.pump()
    assert 0 < len(weighed) <= MOVED + 2 * LOOKED + 1
    for _ in range(100):
        table.now += 0.06
        table.pump()
    assert {one.home for one in table.core.lines[POOL].line} == {"x", "y"} - {gone}


def test_who_waits_in_the_cold_has_its_turn_and_stands_before_others() -> None:
    """One tenant's many are not before another's one when an endpoint comes, only since nobody could weigh them."""
    table = Table("x", tiers=Tiers([Tier(cold_s=60.0)]))
    table.core.failed(POOL, "x", "refused", table.now, at_once=True)
    asks = [msgspec.structs.replace(table.ask((f"chat {n}", 2_000)), tenant="many") for n in range(50)]
    for ask in (*asks, msgspec.structs.replace(table.ask(("hello", 2_000)), tenant="one")):
        table.core.request(ask, table.now)
        table.now += 0.01
    line = table.core.lines[POOL].line
    assert [one.ask.tenant for one in line.ordered(table.now)][:2] == ["many", "one"]
    assert sum(line.seconds.values()) > 51 * 2_000 * COLD_PREFILL_S / 2
