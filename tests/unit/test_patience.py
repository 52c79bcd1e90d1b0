"""Deadlines and heartbeats of an attempt, on a clock of numbers."""

import pytest

from forebay.platform.config.model import Timeouts
from forebay.platform.relay.patience import Patience

TIMES = Timeouts(connect=1, first_byte=60, idle=20, total=300, heartbeat_after=10)


def patience(*, stream: bool = True, begun: bool = False) -> Patience:
    found = Patience(TIMES, stream=stream, now=1000.0)
    found.begun = begun
    return found


def test_a_silent_stream_gets_heartbeats_and_ends_at_the_first_byte_deadline() -> None:
    waiting = patience()
    assert waiting.wake_at(heard=1000.0) == 1010.0
    assert not waiting.heartbeat_due(1009.9)
    assert waiting.heartbeat_due(1010.0)
    waiting.written_at = 1010.0
    assert waiting.wake_at(heard=1000.0) == 1020.0
    assert not waiting.overdue(1059.9, heard=1000.0)
    assert waiting.overdue(1060.0, heard=1000.0)


def test_a_stream_that_trickles_nothing_of_use_has_not_begun() -> None:
    assert patience().overdue(1060.0, heard=1059.0)


def test_bytes_of_a_whole_answer_are_progress_and_it_gets_no_heartbeat() -> None:
    waiting = patience(stream=False)
    assert not waiting.overdue(1060.0, heard=1059.0)
    assert not waiting.heartbeat_due(1500.0)
    assert waiting.wake_at(heard=1059.0) == 1119.0


@pytest.mark.parametrize("stream", [True, False])
def test_once_begun_only_silence_and_the_total_count(stream: bool) -> None:
    waiting = patience(stream=stream, begun=True)
    assert not waiting.overdue(1299.0, heard=1290.0)
    assert waiting.overdue(1290.0, heard=1270.0)
    assert waiting.overdue(1300.0, heard=1300.0)
