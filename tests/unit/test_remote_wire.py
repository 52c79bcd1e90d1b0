"""Frames between workers and router: whatever the pieces a socket cuts them into."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.remote import wire
from forebay.router.remote.wire import (
    Answered,
    Begun,
    Ended,
    Evict,
    Failed,
    FrameError,
    Framer,
    FromRouter,
    FromWorker,
    Place,
    PlaceAnswer,
    Query,
    States,
    Waits,
    Withdraw,
    frame,
)
from forebay.router.routing import Ask, EndpointState, Following, Health, Outcome, Placed, Refused, Why

_ids = st.integers(0, (1 << 63) - 1)
_asks = st.builds(
    Ask,
    st.text(max_size=8),
    st.binary(max_size=300),
    _ids,
    _ids,
    st.tuples(st.text(max_size=8)),
    session=st.text(max_size=32),
    patience_s=st.floats(0, 1e6),
    waited_s=st.floats(0, 1e6),
)
_seconds = st.none() | st.floats(0, 1e6)
_outcomes = st.builds(
    Outcome, st.none() | _ids, st.none() | _ids, st.none() | _ids, _seconds, _seconds, st.none() | st.booleans()
)
_messages = st.one_of(
    st.builds(Place, _ids, _asks),
    st.builds(Begun, _ids),
    st.builds(Withdraw, _ids),
    st.builds(Ended, _ids, _outcomes),
    st.builds(Failed, st.text(max_size=8), st.text(max_size=8), st.text(max_size=50), st.booleans()),
    st.builds(Answered, st.text(max_size=8), st.text(max_size=8)),
    st.builds(Query, _ids, st.text(max_size=8), st.binary(max_size=300)),
)


@given(st.lists(_messages, max_size=6), st.lists(st.integers(0, 2000), max_size=8))
def test_messages_arrive_whole_and_in_order_however_the_stream_is_cut(
    messages: list[FromWorker], cuts: list[int]
) -> None:
    data = b"".join(map(frame, messages))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    framer: Framer[FromWorker] = Framer(FromWorker)
    heard = [m for start, end in pairwise(places) for m in framer.feed(data[start:end])]
    assert heard == messages


def test_what_the_router_says_survives_the_wire() -> None:
    state = EndpointState("main", "e-0", Health.UP, "", 8192, "adapter", Following.FOLLOWING, 3)
    said = [
        PlaceAnswer(1, Placed("e-0", 7, 64, 0.25, True)),
        PlaceAnswer(2),
        Waits(3, 60.0),
        Evict(7),
        PlaceAnswer(3, None, Refused(Why.LATE, 2.5)),
        States([state], True),
    ]
    framer: Framer[FromRouter] = Framer(FromRouter)
    assert list(framer.feed(b"".join(map(frame, said)))) == said


@given(st.binary(min_size=1, max_size=40))
def test_a_frame_that_is_no_message_is_a_fault_of_the_peer_and_nothing_else(payload: bytes) -> None:
    framer: Framer[FromWorker] = Framer(FromWorker)
    data = len(payload).to_bytes(4, "big") + payload
    try:
        list(framer.feed(data))
    except FrameError:
        return
    assert msgspec.msgpack.decode(payload)[0] in range(1, 16)


def test_a_frame_that_is_announced_too_long_is_refused_before_it_is_held() -> None:
    framer: Framer[FromWorker] = Framer(FromWorker)
    with pytest.raises(FrameError, match="exceeds"):
        list(framer.feed((wire.FRAME_LIMIT + 1).to_bytes(4, "big")))


def test_a_message_that_the_peer_would_refuse_is_not_sent() -> None:
    with pytest.raises(FrameError, match="a Query of"):
        frame(Query(1, "snapshot", bytes(wire.FRAME_LIMIT)))


def test_the_keys_of_the_longest_context_fit_a_frame() -> None:
    assert len(frame(Place(1, Ask("main", bytes(2 << 20), 1 << 23, 100)))) < wire.FRAME_LIMIT
