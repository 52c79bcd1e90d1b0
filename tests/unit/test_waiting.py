"""The order of what waits, and what a line holds at most."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from forebay.router.line import OF_FREE, Line
from forebay.router.routing import Ask
from forebay.router.waiting import AGEING, EVEN, EVEN_S, Waiting, shortest_first


def waiting(number: int, *, prefill_s: float = 1.0, since: float = 0.0, until: float = 60.0, size: int = 8) -> Waiting:
    return Waiting(number, 0, Ask("main", bytes(size), 100, 10), since, until, prefill_s=prefill_s)


def line_of(*all_of_them: Waiting, most: int = 100, most_bytes: int = 100_000) -> Line:
    line = Line(most=most, most_bytes=most_bytes)
    for one in all_of_them:
        assert line.add(one)
    return line


def order(line: Line, now: float) -> list[int]:
    return [one.number for one in line.ordered(now)]


def test_the_shortest_is_first_and_of_equals_who_came_first() -> None:
    line = line_of(waiting(1, prefill_s=5), waiting(2, prefill_s=0.1), waiting(3), waiting(4), waiting(5, since=-1))
    assert order(line, 1.0) == [2, 5, 3, 4, 1]


@given(st.floats(0.01, 300), st.floats(0.01, 300))
def test_a_long_one_passes_whoever_came_so_much_later(long_s: float, short_s: float) -> None:
    """A second of waiting is worth `AGEING` seconds of prefill, whoever comes meanwhile."""
    later = abs(long_s - short_s) / AGEING + 0.001
    line = line_of(waiting(1, prefill_s=max(long_s, short_s)))
    line.add(waiting(2, prefill_s=min(long_s, short_s), since=later))
    for now in (later, later + 1, later + 1_000):
        assert order(line, now) == [1, 2]


def test_who_waited_elsewhere_before_is_as_old_here() -> None:
    line = line_of(waiting(1, prefill_s=1.0), waiting(2, prefill_s=2.0, since=-10.0))
    assert order(line, 1.0) == [2, 1]


def test_nobody_waits_for_ever_while_others_come() -> None:
    """A server that begins one a second; each second one comes that takes less than the long one."""
    line = line_of(waiting(0, prefill_s=12.0))
    for now in range(1, 200):
        line.add(waiting(now, prefill_s=0.5, since=now))
        first = line.ordered(now)[0]
        line.remove(first.number)
        if not first.number:
            break
    assert now <= 11.5 / AGEING + 2


def test_of_two_alike_the_one_whose_patience_ends_first_is_first() -> None:
    line = line_of(waiting(1, until=600), waiting(2, since=0.5, until=4.5), waiting(3, since=1, until=61))
    assert order(line, 1.0) == [2, 1, 3]


@given(st.floats(0.01, 300), st.floats(1, 600), st.integers(0, 50))
def test_nobody_who_comes_after_half_its_patience_goes_before(
    prefill_s: float, patience_s: float, behind: int
) -> None:
    one = waiting(1, prefill_s=prefill_s, until=patience_s)
    one.behind = behind
    assert 0 < shortest_first(one) <= min(EVEN_S, EVEN * patience_s)


def test_another_order_may_be_put_in_its_place() -> None:
    line = Line(lambda one: -one.prefill_s)
    for number, prefill_s in enumerate((1.0, 3.0, 2.0)):
        line.add(waiting(number, prefill_s=prefill_s))
    assert order(line, 5.0) == [1, 2, 0]


def test_requests_are_bounded() -> None:
    line = line_of(waiting(1), waiting(2), most=3)
    assert not line.add(waiting(3))
    assert order(line, 0) == [1, 2]
    line.remove(1)
    assert line.add(waiting(3))
    assert len(line) == 2


def test_bytes_are_bounded_and_given_back() -> None:
    line = line_of(waiting(1, size=800), most_bytes=1_100)
    assert not line.add(waiting(2, size=201))
    assert line.add(waiting(3, size=200))
    assert line.remove(1) is not None
    assert line.remove(1) is None
    assert line.remove(2) is None  # it never was in it
    assert line.add(waiting(4, size=800))
    assert not line.add(waiting(5, size=1))


def test_one_alone_gets_nearly_all_of_the_bytes_and_places() -> None:
    line = Line(most=900, most_bytes=1_000_000)
    assert 790 <= sum(line.add(waiting(number)) for number in range(900)) <= 800
    line = Line(most=100_000, most_bytes=900_000)
    assert 790 <= sum(line.add(waiting(number, size=1_000)) for number in range(900)) <= 800


def test_who_has_waited_as_long_as_it_may_is_told() -> None:
    line = line_of(waiting(1, until=5), waiting(2, until=7), waiting(3, until=7.5))
    assert [one.number for one in line.overdue(4.9)] == []
    assert [one.number for one in line.overdue(7)] == [1, 2]
    assert len(line) == 3  # to be removed by who asked


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 400)), max_size=80), st.integers(1, 9))
def test_whatever_comes_and_goes_room_is_what_is_left(steps: list[tuple[bool, int, int]], most: int) -> None:
    line, inside = Line(most=most, most_bytes=1_000), dict[int, int]()
    for comes, number, size in steps:
        if comes and number not in inside:
            places, room = most - len(inside) - 1, 1_000 - sum(inside.values()) - size
            fits = min(places, room) >= 0
            fits = fits and len(inside) <= OF_FREE * places and sum(inside.values()) <= OF_FREE * room
            assert line.add(waiting(number, size=size)) is fits
            if fits:
                inside[number] = size
        elif not comes:
            assert (line.remove(number) is not None) is (inside.pop(number, None) is not None)
        assert {one.number for one in line} == set(inside)
    assert sorted(order(line, 0)) == sorted(inside)


def test_order_is_by_what_is_known_now() -> None:
    rng = random.Random(1)
    line = line_of(*(waiting(number, prefill_s=rng.uniform(0, 9), since=rng.uniform(0, 9)) for number in range(50)))
    for now in (10.0, 100.0):
        keys = [shortest_first(one) for one in line.ordered(now)]
        assert keys == sorted(keys)
    worst = line.ordered(10.0)[-1]
    line.weighed(worst, "a", 0.0, 0.0)  # found to be cached since
    worst_at = line.ordered(10.0).index(worst)
    assert all(shortest_first(one) <= worst.since for one in line.ordered(10.0)[:worst_at])
    assert sorted(line.ordered(10.0), key=shortest_first) == line.ordered(10.0)


def test_a_tenant_whose_many_streams_wait_again_takes_no_newcomers_places() -> None:
    line = Line(most=10, most_bytes=100_000)
    again = [structs.replace(waiting(n), ask=Ask("main", b"", 100, 10, tenant="a", promised=True)) for n in range(20)]
    assert 8 <= sum(map(line.add, again)) <= 10
    others = [structs.replace(waiting(n), ask=Ask("main", b"", 100, 10, tenant=f"{n}")) for n in range(20, 40)]
    assert sum(map(line.add, others)) == 10
