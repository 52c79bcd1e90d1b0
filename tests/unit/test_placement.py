"""Placement: the least work ahead wins, equal work goes where the conversation went before, bookings end once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forebay.router.placement import BOUND, COLD_DECODE_S, Booking, Load, Work, pick


def test_the_least_work_ahead_wins_whatever_the_affinity() -> None:
    busy, idle = Load(), Load()
    Booking(busy, 3.0)
    for n in range(50):
        assert pick([("busy", busy), ("idle", idle)], b"%d" % n) == "idle"


def test_a_conversation_stays_on_an_idle_pool_and_conversations_spread() -> None:
    loads = [(f"e{n}", Load()) for n in range(4)]
    assert len({pick(loads, b"one conversation") for _ in range(20)}) == 1
    spread = Counter(pick(loads, b"%d" % n) for n in range(2000))
    assert set(spread) == {"e0", "e1", "e2", "e3"}
    assert max(spread.values()) < 1.3 * min(spread.values())


def test_a_conversation_moves_only_when_its_endpoint_goes() -> None:
    loads = [(f"e{n}", Load()) for n in range(4)]
    before = {n: pick(loads, b"%d" % n) for n in range(400)}
    after = {n: pick(loads[:3], b"%d" % n) for n in range(400)}
    assert all(after[n] == before[n] for n in before if before[n] != "e3")


def test_no_candidate() -> None:
    assert pick([], b"x") is None


@given(st.lists(st.floats(0.001, 100), max_size=20), st.randoms())
def test_bookings_return_to_zero_in_any_order_and_only_once(seconds: list[float], rng) -> None:  # type: ignore[no-untyped-def]
    load = Load()
    bookings = [Booking(load, s) for s in seconds]
    rng.shuffle(bookings)
    for booking in bookings:
        booking.release()
        booking.release()
    assert (load.booked_s, load.in_flight) == (0.0, 0)


def test_rates_follow_what_is_seen_and_an_outlier_moves_them_little() -> None:
    load = Load()
    for _ in range(100):
        load.learn_decode(10, 1.0)
    assert abs(load.decode_s - 0.1) < 0.001
    load.learn_decode(10, 10_000.0)
    assert load.decode_s < 0.1 * BOUND
    assert Load().seconds(Work(0, 10)) == 10 * COLD_DECODE_S
    load.learn_decode(0, 1.0)
    load.learn_prefill(5, 0.0)
    assert load.prefill_s == Load().prefill_s
