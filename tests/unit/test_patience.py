"""Deadlines and heartbeats of an attempt, on a clock of numbers."""

import pytest

from forebay.platform.config.model import Timeouts
from forebay.platform.relay.patience import Clock, Patience

TIMES = Timeouts(connect=1, first_byte=60, idle=20, total=300, heartbeat_after=10)


def patience(*, stream: bool = True, begun: bool = False, clock: Clock | None = None) -> Patience:
    found = Patience(TIMES, clock or Clock(1000.0), stream=stream, now=1000.0)
    if begun:
        found.begin()
    return found


def test_a_silent_stream_gets_heartbeats_and_ends_at_the_first_byte_deadline() -> None:
    waiting = patience()
    assert waiting.wake_at(heard=1000.0) == 1010.0
    assert not waiting.heartbeat_due(1009.9)
    assert waiting.heartbeat_due(1010.0)
    waiting.written_at = 1010.0
    assert waiting.wake_at(heard=1000.0) == 1020.0
    assert not waiting.hangs(1059.9, heard=1000.0)
    assert waiting.hangs(1060.0, heard=1000.0)


def test_a_stream_that_trickles_nothing_of_use_has_not_begun() -> None:
    assert patience().hangs(1060.0, heard=1059.0)


def test_bytes_of_a_whole_answer_are_progress_and_it_gets_no_heartbeat() -> None:
    waiting = patience(stream=False)
    assert not waiting.hangs(1060.0, heard=1059.0)
    assert not waiting.heartbeat_due(1500.0)
    assert waiting.wake_at(heard=1059.0) == 1119.0


@pytest.mark.parametrize("stream", [True, False])
def test_once_begun_only_silence_and_the_total_count(stream: bool) -> None:
    waiting = patience(stream=stream, begun=True)
    assert not waiting.hangs(1299.0, heard=1290.0)
    assert waiting.hangs(1290.0, heard=1270.0)
    assert not waiting.spent(1299.9, heard=1299.0)
    assert waiting.spent(1300.0, heard=1300.0) == "total"
    assert not waiting.hangs(1300.0, heard=1300.0)  # it is no fault of the engine


def test_the_total_is_of_the_request_and_counts_from_when_it_came() -> None:
    waiting = patience(begun=True, clock=Clock(800.0))
    assert waiting.spent(1100.0, heard=1100.0) == "total"
    waiting.written_at = 1095.0
    assert waiting.wake_at(heard=1095.0) == 1100.0
    assert Clock(800.0).left(TIMES, 1000.0) == 100.0
    assert Clock(800.0).over(TIMES, 1100.0) == "total"


def test_all_engines_together_have_one_wait_for_the_first_byte() -> None:
    """Who was given less of it than an engine may take by itself is not at fault."""
    clock = Clock(900.0)
    first = Patience(TIMES, clock, stream=True, now=900.0)
    first.end(945.0)  # it died
    assert clock.over(TIMES, 945.0) == ""
    second = Patience(TIMES, clock, stream=True, now=1000.0, quiet_since=1000.0)  # it waited in between
    second.written_at = 1010.0
    assert second.wake_at(heard=1000.0) == 1015.0
    assert second.spent(1014.9, heard=1000.0) == ""
    assert second.spent(1015.0, heard=1000.0) == "first_byte"
    assert not second.hangs(1015.0, heard=1000.0)
    second.end(1015.0)
    assert clock.over(TIMES, 1015.0) == "first_byte"


def test_after_a_cut_the_next_engine_has_all_the_wait_for_a_byte_again() -> None:
    clock = Clock(1000.0)
    first = Patience(TIMES, clock, stream=True, now=1000.0)
    first.end(1050.0)
    second = Patience(TIMES, clock, stream=True, now=1050.0)
    second.begin()
    second.end(1100.0)
    third = Patience(TIMES, clock, stream=True, now=1110.0)
    assert third.spent(1169.9, heard=1110.0) == ""
    assert third.hangs(1170.0, heard=1110.0)
