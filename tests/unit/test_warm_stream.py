"""A router's snapshot as a stream: what is damaged or cut is noticed, and what came whole before it is not lost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.warm.stream import MAGIC, Begin, End, Part, Piece, Reader, SnapshotError, Whole, ended, written

_endpoints = st.lists(
    st.tuples(st.text(max_size=5), st.text(max_size=5), st.lists(st.binary(max_size=50), max_size=4)), max_size=4
)


def stream(endpoints: list[tuple[str, str, list[bytes]]]) -> bytes:
    return b"".join([MAGIC, *(data for one in endpoints for data in written(*one)), ended()])


def read(data: bytes, cuts: list[int] | None = None) -> tuple[list[Part], Reader]:
    reader = Reader()
    places = [0, *sorted(min(cut, len(data)) for cut in cuts or []), len(data)]
    return [part for start, end in pairwise(places) for part in reader.feed(data[start:end])], reader


@given(_endpoints, st.lists(st.integers(0, 1000), max_size=8))
def test_a_stream_is_read_back_however_it_is_cut(
    endpoints: list[tuple[str, str, list[bytes]]], cuts: list[int]
) -> None:
    parts, reader = read(stream(endpoints), cuts)
    assert reader.ended
    assert [(p.pool, p.endpoint) for p in parts if isinstance(p, Begin)] == [one[:2] for one in endpoints]
    pieces = [p.data for p in parts if isinstance(p, Piece)]
    assert pieces == [data for _, _, pieces in endpoints for data in pieces]
    assert isinstance(parts[-1], End)


@given(_endpoints, st.data())
def test_a_changed_byte_never_makes_another_endpoint_whole(
    endpoints: list[tuple[str, str, list[bytes]]], choice: st.DataObject
) -> None:
    data = bytearray(stream(endpoints))
    place = choice.draw(st.integers(0, len(data) - 1))
    data[place] ^= choice.draw(st.integers(1, 255))
    whole: list[tuple[str, str, list[bytes]]] = []
    here: tuple[str, str, list[bytes]] = ("", "", [])
    try:
        for part in Reader().feed(bytes(data)):
            if isinstance(part, Begin):
                here = (part.pool, part.endpoint, [])
            elif isinstance(part, Piece):
                here[2].append(part.data)
            elif isinstance(part, Whole):
                whole.append(here)
    except SnapshotError:
        pass
    assert whole == endpoints[: len(whole)]


@pytest.mark.parametrize("kept", [0, 5, len(MAGIC), len(MAGIC) + 3, -1, -20])
def test_a_stream_that_was_cut_does_not_look_whole(kept: int) -> None:
    _, reader = read(stream([("main", "e-0", [b"some", b"pieces"])])[:kept])
    assert not reader.ended


@pytest.mark.parametrize("said", [b"<html>", b'{"error": {}}', b"forebay router snapshot 2\n", MAGIC + b"\xff" * 9])
def test_something_else_is_refused(said: bytes) -> None:
    with pytest.raises(SnapshotError):
        read(said)
