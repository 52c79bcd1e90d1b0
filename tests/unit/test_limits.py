"""Limits without a clock or a socket: windows, what a request asks, shares, and how a refusal reads."""

import msgspec
import pytest

from forebay.platform.limits.mirror import Mirror, share
from forebay.platform.limits.refusal import Seen, headers, refusal
from forebay.platform.limits.rules import Check, Kind, Level, Limit, Limits, counts_input, gate, whole
from forebay.platform.limits.window import WINDOW_MS, Window, duration, phase_of, window

KEY = Limit(Level.KEY, "key_1", "", Limits(requests_per_minute=5, concurrent_requests=2, queued_requests=1))
PROJECT = Limit(Level.PROJECT, "proj_1", "tiny", Limits(requests_per_minute=3, output_tokens_per_minute=100))
TENANT = Limit(Level.TENANT, "ten_1", "", Limits(input_tokens_per_minute=1000))
ALL = (KEY, PROJECT, TENANT)


def check(kind: Kind = Kind.REQUESTS, limit: int = 10, cost: int = 1, key: bytes = b"k", model: str = "") -> Check:
    return Check(kind, Level.PROJECT, model, limit, cost, key)


@pytest.mark.parametrize(("now", "phase", "expected"), [
    (0, 0, Window(0, 60_000)),
    (59_999, 0, Window(0, 1)),
    (60_000, 0, Window(1, 60_000)),
    (59_999, 1, Window(1, 60_000)),
    (60_000, 59_999, Window(1, 1)),
])  # fmt: skip
def test_a_window_ends_where_the_next_begins(now: int, phase: int, expected: Window) -> None:
    assert window(now, phase) == expected
    assert window(now + expected.left_ms, phase) == Window(expected.number + 1, WINDOW_MS)


def test_tenants_windows_do_not_all_end_at_once() -> None:
    assert len({phase_of(f"ten_{number}") // 6000 for number in range(200)}) == 10


@pytest.mark.parametrize(("ms", "text"), [
    (0, "0ms"), (20, "20ms"), (999, "999ms"), (1000, "1s"), (1001, "2s"), (59_001, "1m0s"), (360_000, "6m0s"),
])  # fmt: skip
def test_durations_read_like_openai_s(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_the_gate_asks_of_all_models_together_and_the_rest_of_this_one() -> None:
    asked = gate(ALL, b"root")
    assert [(one.level, one.kind, one.cost) for one in asked] == [
        (Level.KEY, Kind.REQUESTS, 1), (Level.KEY, Kind.CONCURRENT, 1),
    ]  # fmt: skip
    costs = {Kind.INPUT: 40, Kind.OUTPUT: 256}
    then = whole(ALL, b"root", "tiny", costs)
    assert [(one.level, one.kind, one.cost) for one in then] == [
        (Level.KEY, Kind.QUEUED, 1),
        (Level.PROJECT, Kind.REQUESTS, 1),
        (Level.PROJECT, Kind.OUTPUT, 100),  # the guess at the answer is more than a window has: it alone refuses nobody
        (Level.TENANT, Kind.INPUT, 40),
    ]
    other = whole(ALL, b"root", "other", costs)
    assert [one.level for one in other] == [Level.KEY, Level.TENANT]
    names = [one.key for one in (*asked, *then)]
    assert len(set(names)) == len(names)


def test_only_who_limits_input_needs_to_know_what_is_cached() -> None:
    assert counts_input(ALL, "tiny")
    assert not counts_input((KEY, PROJECT), "tiny")


def test_null_is_unlimited_and_zero_is_nothing() -> None:
    unlimited = Limit(Level.KEY, "key_1", "", Limits())
    assert gate((unlimited,), b"r") == whole((unlimited,), b"r", "m", {Kind.INPUT: 10**9}) == []
    none = Limit(Level.KEY, "key_1", "", Limits(requests_per_minute=0, output_tokens_per_minute=0))
    assert all(one.never for one in (*gate((none,), b"r"), *whole((none,), b"r", "m", {Kind.OUTPUT: 5})))


@pytest.mark.parametrize(("limit", "processes", "expected"), [(100, 4, 25), (3, 4, 1), (0, 4, 0), (7, 1, 7), (7, 0, 7)])
def test_a_share_is_at_least_one_unless_nothing_may_pass(limit: int, processes: int, expected: int) -> None:
    assert share(limit, processes) == expected


def test_what_is_left_of_a_window_is_shared_as_it_was_when_last_heard() -> None:
    mirror, one = Mirror(), check(limit=80)
    mirror.spend(b"k", 0, 5, 10)
    mirror.hear(one, 60, 5, 0)
    assert mirror.allowed(one, 5, 0, 4) == 10 + 5
    mirror.spend(b"k", 0, 5, -3)  # what is given back may be used again
    assert mirror.used(one, 5) == 7
    assert mirror.allowed(one, 6, 0, 4) == 20  # of a window that nothing was heard of
    mirror.hear(one, 95, 5, 0)
    assert mirror.allowed(one, 5, 0, 4) == 7
    mirror.hear(one, 8, 5, 0)  # others may have used some that it has not heard of
    assert mirror.allowed(one, 5, 0, 4) == 20


def test_slots_are_shared_anew_after_a_while() -> None:
    mirror, slot = Mirror(), check(Kind.CONCURRENT, limit=16)
    mirror.take(slot.key, b"a")
    mirror.hear(slot, 16, 5, 0)
    assert mirror.allowed(slot, 5, 11_000, 4) == 1
    assert mirror.allowed(slot, 5, 13_000, 4) == 4


def test_a_prompt_larger_than_the_share_passes_once() -> None:
    mirror, large = Mirror(), check(Kind.INPUT, limit=100, cost=60)
    assert mirror.allowed(large, 5, 0, 4) == 60
    mirror.spend(b"k", 0, 5, 60)
    assert mirror.allowed(large, 5, 0, 4) == 25
    assert Mirror().allowed(check(Kind.INPUT, limit=100, cost=101), 5, 0, 4) == 25


def test_windows_that_are_over_are_forgotten_and_cannot_be_changed() -> None:
    mirror = Mirror()
    mirror.spend(b"k", 0, 5, 4)
    mirror.spend(b"k", 0, 4, 9)
    assert (mirror.of(b"k", 5), mirror.of(b"k", 4)) == (4, 0)
    mirror.spend(b"k", 0, 5, -9)
    assert mirror.of(b"k", 5) == 0
    mirror.forget(6 * WINDOW_MS)
    assert not mirror.spent


def test_slots_are_counted_by_request() -> None:
    mirror = Mirror()
    slot = check(Kind.CONCURRENT, limit=2)
    for request in (b"a", b"b", b"b"):
        mirror.take(slot.key, request)
    assert (mirror.used(slot, 0), mirror.leases) == (2, 2)
    mirror.give(slot.key, b"a")
    mirror.give(slot.key, b"a")
    mirror.give(slot.key, b"b")
    assert not mirror.slots


def test_a_refusal_says_which_limit_and_when_it_ends() -> None:
    error = refusal(Seen(check(model="tiny"), 9, 10), 12_345)
    assert error.status == 429
    assert error.headers == {"retry-after": "13", "retry-after-ms": "12345"}
    body = msgspec.json.decode(error.body())["error"]
    assert (body["type"], body["code"], body["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)
    assert body["metadata"] == {
        "limit": "requests_per_minute", "level": "project", "model": "tiny", "limit_value": 10, "remaining": 1,
        "reset_s": 12.345,
    }  # fmt: skip


def test_what_can_never_fit_is_not_tried_again() -> None:
    error = refusal(Seen(check(Kind.INPUT, limit=100, cost=101), 0, 100), 5_000)
    assert error.headers == {"x-should-retry": "false"}
    assert "can never fit the limit of 100 input tokens per minute" in error.message


def test_headers_are_of_the_limit_with_the_least_left() -> None:
    seen = [
        Seen(check(limit=100), 1, 100),
        Seen(check(limit=50, key=b"j"), 48, 50),
        Seen(check(Kind.INPUT, limit=1000), 10, 1000),
        Seen(check(Kind.OUTPUT, limit=500), 600, 500),
        Seen(check(Kind.CONCURRENT, limit=1), 1, 1),
    ]
    assert dict(headers(seen, 59_500)) == {
        b"x-ratelimit-limit-requests": b"50",
        b"x-ratelimit-remaining-requests": b"2",
        b"x-ratelimit-reset-requests": b"1m0s",
        b"x-ratelimit-limit-tokens": b"500",
        b"x-ratelimit-remaining-tokens": b"0",
        b"x-ratelimit-reset-tokens": b"1m0s",
    }
    assert headers([], 1000) == []
