"""Reading only what follows the messages of an earlier body gives what reading the whole gives."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.api.layout import Prior
from forebay.platform.api.requests import ChatSource, Inference, decode
from forebay.platform.errors import ApiError

TEXT = st.text(max_size=20)
MESSAGE = st.one_of(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "user"]), TEXT),
    st.builds(lambda text: {"content": [{"type": "text", "text": text}], "role": "user", "x": [{}, 1, None]}, TEXT),
    st.builds(
        lambda text: {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": text}}]}, TEXT
    ),
)
MEMBERS = st.sampled_from([{}, {"stream": True}, {"tools": [{"type": "function", "x": ["]", "[", ","]}]}, {"n": 2}])
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n  ", " :\t")])


def body(before: dict[str, Any], messages: list[Any], after: dict[str, Any], separators: tuple[str, str]) -> bytes:
    return json.dumps({"model": "m", **before, "messages": messages, **after}, separators=separators).encode()


def chat(body: bytes, prior: Prior | None = None) -> tuple[Inference, ChatSource]:
    inference, source = decode("chat.completions", body, prior)
    assert isinstance(source, ChatSource)
    return inference, source


def prior_of(body: bytes, count: int) -> Prior:
    """What remembering the first `count` messages of the body would say."""
    found = chat(body)[1].layout
    assert found is not None
    turns = found.turns[:count]
    end = found.start + 1 + sum(len(turn.text) for turn in turns)
    return Prior(found.start + 1, end, count, sum(t.commas for t in turns), sum(t.nested for t in turns))


@given(st.lists(MESSAGE, min_size=2, max_size=6), MEMBERS, MEMBERS, SEPARATORS, st.data())
def test_a_body_read_from_where_another_ended_is_the_body_read_whole(
    messages: list[Any], before: dict[str, Any], after: dict[str, Any], separators: tuple[str, str], data: st.DataObject
) -> None:
    known = data.draw(st.integers(1, len(messages) - 1))
    earlier = body(before, messages[:known], {}, separators)
    later = body(before, messages, after, separators)
    prior = prior_of(earlier, known)
    assert later[: prior.end] == earlier[: prior.end]
    whole, partly = chat(later), chat(later, prior)
    assert partly[0] == whole[0]
    assert partly[1].prior == prior
    assert partly[1].messages == messages[known:]
    assert partly[1].rendered == whole[1].rendered
    assert whole[1].layout is not None
    assert partly[1].layout is not None
    assert partly[1].layout.turns == whole[1].layout.turns[known:]
    assert b"".join(turn.text for turn in whole[1].layout.turns) == later[whole[1].layout.start + 1 : _close(whole[1])]


def _close(source: ChatSource) -> int:
    assert source.layout is not None
    return source.layout.start + 1 + sum(len(turn.text) for turn in source.layout.turns)


HEAD = b'{"model":"m","messages":[{"role":"user","content":"a"}'


@pytest.mark.parametrize("tail", [
    b",]}", b",,{}]}", b"]]}", b"}", b"", b",{]}", b',{"role":"user","content":"b"}],"messages":[]}',
    b',{"role":"user","content":"b"}],"model":"x"}', b',{"role":"nobody","content":"b"}]}',
    b',{"role":"user","content":7}]}',
    b',{"role":"user","content":"\xff"}]}', b',{"role":"user","content":"b"}],"temprature":1}',
])  # fmt: skip
def test_a_fault_after_what_is_known_is_named_as_if_nothing_were(tail: bytes) -> None:
    prior = Prior(len(b'{"model":"m","messages":['), len(HEAD), 1, 1, 1)
    with pytest.raises(ApiError) as whole:
        decode("chat.completions", HEAD + tail)
    with pytest.raises(ApiError) as partly:
        decode("chat.completions", HEAD + tail, prior)
    assert partly.value.body() == whole.value.body()


def test_bounds_hold_over_what_was_known_and_what_is_added() -> None:
    message = b',{"role":"user","content":"b"}'
    prior = Prior(len(b'{"model":"m","messages":['), len(HEAD), 1, 1, 1)
    with pytest.raises(ApiError, match="array too long"):
        decode("chat.completions", HEAD + message * 2048 + b"]}", prior)
    many = Prior(prior.head, prior.end, 1, 1 << 20, 1)
    body = HEAD + message + b"]}"
    assert decode("chat.completions", body, many)[0] == decode("chat.completions", body)[0]


def test_a_name_written_with_escapes_is_read_whole() -> None:
    inference, source = chat(b'{"model":"m","m\\u0065ssages":[{"role":"user","content":"a"}]}')
    assert source.layout is None
    assert json.loads(inference.forward) == {"messages": [{"role": "user", "content": "a"}]}
