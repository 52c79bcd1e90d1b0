"""What a pool does with endpoints that fail: whom it asks instead, and how it lets them back in."""

from forebay.router.health import ANSWERS_TO_UP, LONGEST_OUT_S, Card, Failed
from forebay.router.routing import Health, Placed
from tests.virtual import POOL, Table

CHAT = ("a conversation", 1_000)


def fails(table: Table, *endpoints: str, requests: int = 2) -> None:
    for endpoint in endpoints:
        for _ in range(requests):
            table.core.failed(POOL, endpoint, "answered 500", table.now)


def well(table: Table, *endpoints: str) -> None:
    for endpoint in endpoints:
        table.core.probed(POOL, endpoint, Card(), table.now)


def health(table: Table) -> dict[str, str]:
    return {name: state.health.value for name, state in table.core.states(POOL).items()}


def picked(table: Table, count: int = 6) -> set[str]:
    """Who gets as many requests at once."""
    placed = [table.place((f"{table.now} {n}", 100)) for n in range(count)]
    table.end(*placed)
    return {one.endpoint for one in placed}


def test_one_that_fails_requests_is_asked_no_more_until_a_probe_after_its_time() -> None:
    table = Table("a", "b")
    well(table, "a", "b")
    fails(table, "a")
    told = table.explain(CHAT)["a"]
    assert (told.available, told.reason) == (False, "answered 500; back in 1 s at the earliest")
    assert picked(table) == {"b"}
    well(table, "a")
    assert picked(table) == {"b"}
    table.now += LONGEST_OUT_S
    assert picked(table) == {"b"}
    well(table, "a")
    assert health(table)["a"] == "returning"
    assert picked(table) == {"a", "b"}


def test_one_that_returns_has_one_request_at_a_time_until_some_are_answered() -> None:
    table = Table("a", "b")
    well(table, "a", "b")
    table.core.failed(POOL, "a", "connection refused", table.now, at_once=True)
    table.now += LONGEST_OUT_S
    well(table, "a")
    held: list[Placed] = []
    for _ in range(ANSWERS_TO_UP):
        placed = [table.place((f"{n}", 100)) for n in range(6)]
        (trial,) = [one for one in placed if one.endpoint == "a"]
        told = table.explain(CHAT)["a"]
        assert (told.available, told.reason) == (False, "gets one request at a time until some are answered")
        assert table.core.states(POOL)["a"].health is Health.RETURNING
        table.begin(trial)  # which may go on for long
        held += placed
    assert health(table)["a"] == "up"
    table.end(*held)
    later = [table.place((f"later {n}", 100)).endpoint for n in range(6)]
    assert later.count("a") == 3


def test_requests_never_put_out_so_many_that_the_rest_would_not_do() -> None:
    """A tenant's poison fails wherever it goes."""
    table = Table("a", "b", "c", "d")
    well(table, "a", "b", "c", "d")
    fails(table, "a", "b", "c", "d", requests=9)
    assert sorted(health(table).values()) == ["ejected", "ejected", "up", "up"]
    alone = Table("a")
    well(alone, "a")
    fails(alone, "a", requests=9)
    assert health(alone) == {"a": "up"}
    assert picked(alone) == {"a"}


def test_what_refuses_connections_is_out_however_many_they_are() -> None:
    table = Table("a", "b")
    well(table, "a", "b")
    for name in ("a", "b"):
        table.core.failed(POOL, name, "connection refused", table.now, at_once=True)
    assert table.core.place(table.ask(CHAT), table.now) is None


def test_where_nobody_else_is_left_one_that_failed_requests_is_asked_again() -> None:
    table = Table("a", "b")
    well(table, "a", "b")
    fails(table, "a")
    for _ in range(2):
        table.core.probed(POOL, "b", Failed("timeout"), table.now)
    assert health(table) == {"a": "ejected", "b": "down"}
    assert picked(table) == {"a"}
    assert table.core.states(POOL)["a"].open
    table.core.drain(POOL, "a", "it goes")
    assert table.core.place(table.ask(CHAT), table.now) is None


def test_where_the_others_go_one_that_failed_requests_is_asked_again() -> None:
    table = Table("a", "b")
    well(table, "a", "b")
    fails(table, "a")
    table.core.remove(POOL, "b")
    assert picked(table) == {"a"}
    table.core.add(POOL, "c")
    assert picked(table) == {"c"}
    table.core.drain(POOL, "c", "it goes")
    assert picked(table) == {"a"}


def test_where_all_return_nobody_waits_for_a_turn() -> None:
    table = Table("a", "b")
    well(table, "a", "b")
    for name in ("a", "b"):
        table.core.probed(POOL, name, Failed("refused", at_once=True), table.now)
    table.now += LONGEST_OUT_S
    well(table, "a", "b")
    assert health(table) == {"a": "returning", "b": "returning"}
    held = [table.place((f"{n}", 100)).endpoint for n in range(6)]
    assert held.count("a") == 3


def test_an_endpoint_that_replaces_a_failed_one_starts_with_a_clean_slate() -> None:
    table = Table("a", "b")
    well(table, "a", "b")
    fails(table, "a")
    table.core.remove(POOL, "a")
    table.core.add(POOL, "a")
    assert health(table)["a"] == "unknown"
    assert picked(table) == {"a", "b"}
