"""Payloads that are wrong: what can be read is read, the rest is counted, and nothing else goes wrong."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.prefix.blocks import Cleared, Removed, Stored
from forebay.router.prefix.events import Decoder, UndecodableError
from tests.doubles.engine.encodings import encode
from tests.unit.test_events_encodings import EVENTS

encoded = msgspec.msgpack.encode
GOOD = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU"}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93",
        b"\xdd\xff\xff\xff\xff\x01",  # four thousand million elements
        b"\x91" * 200_000,
        b"\x81\xa6events" + b"\x91" * 200_000 + b"\x01",
        encoded(None),
        encoded([]),
        encoded([1.0]),
        encoded([1.0, None]),
        encoded({"ts": 1.0}),
        encoded([1.0, [GOOD], "zero"]),
        encoded("BlockRemoved"),
        encoded([1.0, [None]]),
        encoded([1.0, [{"type": "BlockTouched"}]]),
        encoded([1.0, [["BlockTouched", [1]]]]),
        encoded([1.0, [{"type": "BlockRemoved"}]]),
        encoded([1.0, [{"type": "BlockRemoved", "block_hashes": [1.5]}]]),
        encoded([1.0, [{"type": "BlockRemoved", "block_hashes": ["one"]}]]),
        encoded([1.0, [["BlockStored", [1], None, [1.0, 2.0], 2]]]),
        encoded([1.0, [["BlockStored", [1], None, [1, None], 2]]]),
        encoded([1.0, [["BlockStored", [1], None]]]),
        b"\x92\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x91\x81\xa4type\xa2\xff\xff",
    ],
)
def test_what_is_no_batch_of_events_is_refused(payload: bytes) -> None:
    with pytest.raises(UndecodableError):
        Decoder().decode(payload)


def test_a_refusal_says_what_was_wrong() -> None:
    with pytest.raises(UndecodableError, match=r"none of its 2 events can be read, as the last: .*BlockTouched"):
        Decoder().decode(encoded([1.0, [["BlockTouched"], {"type": "BlockTouched"}]]))
    with pytest.raises(UndecodableError, match="it is no batch of KV events"):
        Decoder().decode(b"\xc1")


@pytest.mark.parametrize("bad", [{"type": "BlockTouched"}, ["BlockTouched", 5], None, {"type": "BlockStored"}, b"", 1])
def test_one_bad_event_does_not_take_the_others_along(bad: Any) -> None:
    batch = Decoder().decode(encoded([1.0, [GOOD, bad, ["AllBlocksCleared"]]]))
    assert batch.events == [Removed([1]), Cleared()]
    assert batch.undecodable == 1


def test_members_nobody_knows_are_passed_over() -> None:
    batch = Decoder().decode(encoded([1.0, [{**GOOD, "colour": {"deep": [[[]]]}}], 0, "more"]))
    assert batch.events == [Removed([1])]


def test_what_is_nested_without_end_is_refused() -> None:
    deep = b"\x88\xa4type\xabBlockStored\xacblock_hashes\x91\x01\xb1parent_block_hash\xc0\xa9token_ids\x91\x07"
    deep += b"\xaablock_size\x01\xa6medium\xc0\xa9lora_name\xc0\xaaextra_keys" + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(UndecodableError):
        Decoder().decode(b"\x92\x00\x92" + deep + encoded(GOOD))


@pytest.mark.parametrize("encoding", ["vllm", "vllm-rows", "vllm-maps", "sglang", "sglang-rows"])
def test_every_truncation_is_refused(encoding: str) -> None:
    payload = encode(EVENTS, 1.5, 0, encoding=encoding, hashes="int")
    for end in range(len(payload)):
        with pytest.raises(UndecodableError):
            Decoder().decode(payload[:end])


@given(st.data())
def test_changed_bytes_are_read_or_refused(data: st.DataObject) -> None:
    encoding = data.draw(st.sampled_from(["vllm", "sglang-rows"]))
    payload = bytearray(encode(EVENTS, 1.5, 0, encoding=encoding, hashes="int"))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    _reads_or_refuses(bytes(payload))


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    _reads_or_refuses(payload)


_scalars = st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=4))
_values = st.recursive(_scalars | st.binary(max_size=4), lambda inner: st.lists(inner, max_size=4), max_leaves=6)
_tags = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockTouched"])
_members = st.sampled_from([*EVENTS[0], "component_type", "locality"])
_events = st.one_of(
    st.builds(lambda tag, rest: [tag, *rest], _tags, st.lists(_values, max_size=11)),
    st.builds(lambda tag, members: {**members, "type": tag}, _tags, st.dictionaries(_members, _values)),
    st.builds(lambda event, member, value: {**event, member: value}, st.sampled_from(EVENTS), _members, _values),
)


@given(st.lists(_events, max_size=5))
def test_any_event_is_read_or_refused(events: list[Any]) -> None:
    _reads_or_refuses(encoded([1.0, events, 0]))


def _reads_or_refuses(payload: bytes) -> None:
    try:
        batch = Decoder().decode(payload)
    except UndecodableError as error:
        assert str(error)
        return
    for event in batch.events:
        if isinstance(event, Stored):
            assert all(type(token) is int for token in event.tokens)
            assert event.inexact is None or event.inexact >= 0
        if isinstance(event, Stored | Removed):
            assert all(type(each) in (int, bytes) for each in event.hashes)
