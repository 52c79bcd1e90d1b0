"""The second engine's stream as a part of the first one's answer."""

import json
from typing import Any

import pytest

from forebay.platform.relay.frames import StreamError, View
from forebay.platform.relay.resumed import Carried, Diverged, ResumedTransform
from forebay.platform.relay.seam import Seam
from forebay.router import Usage, decode_usage

IDENTITY = {"id": "first", "object": "chat.completion.chunk", "created": 7}


def frame(content: str = "", tokens: int = 0, finish: str | None = None, **delta: Any) -> bytes:
    body = {
        "id": "second", "object": "chat.completion.chunk", "created": 99, "model": "engine",
        "choices": [{"index": 0, "delta": {**delta, "content": content}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 30, "total_tokens": 30 + tokens, "completion_tokens": tokens},
    }  # fmt: skip
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def final(tokens: int, cached: int | None = 24, **details: Any) -> bytes:
    told = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached, **details}}
    usage = {"prompt_tokens": 30, "total_tokens": 30 + tokens, "completion_tokens": tokens, **told}
    return b"data: " + json.dumps({"id": "second", "created": 99, "choices": [], "usage": usage}).encode() + b"\n\n"


ROLE = frame(role="assistant")


def resumed(seen: str = "", *, usage: bool = True, continuous: bool = False, prompt: Usage | None = None) -> Any:
    view = View("shown", "engine", include_usage=usage, continuous_usage=continuous, tier="flex")
    carried = Carried(IDENTITY, prompt or Usage(prompt_tokens=20), 10, seen)
    return ResumedTransform(view, Seam(0), carried)


def events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(one.removeprefix(b"data: ")) for one in data.split(b"\n\n") if one]


def test_its_events_are_the_first_ones_and_have_no_second_role() -> None:
    stream = resumed()
    assert stream.feed(ROLE) == b""
    (one,) = events(stream.feed(frame("x", 1, role="assistant")))
    assert {name: one[name] for name in IDENTITY} == IDENTITY
    assert (one["model"], one["service_tier"], one["usage"]) == ("shown", "flex", None)
    assert one["choices"][0]["delta"] == {"content": "x"}


def test_what_the_client_has_is_taken_off() -> None:
    stream = resumed("abcd")
    assert stream.feed(frame("ab", 1)) == b""
    (one,) = events(stream.feed(frame("cdef", 2)))
    assert one["choices"][0]["delta"]["content"] == "ef"
    (two,) = events(stream.feed(frame("abcd", 3)))
    assert two["choices"][0]["delta"]["content"] == "abcd"


@pytest.mark.parametrize("data", [
    frame("abX", 1), frame("ab", 1, "stop"), frame("ab", 1) + frame("X", 2),
    frame("", 1, tool_calls=[{"index": 0, "function": {"name": "f"}}]),
])  # fmt: skip
def test_one_that_says_something_else_is_found_out(data: bytes) -> None:
    with pytest.raises(Diverged):
        resumed("abcd").feed(data)


def test_usage_is_that_of_one_engine() -> None:
    stream = resumed()
    out = events(stream.feed(frame("x", 1) + frame("y", 2, "stop") + final(2, created_cache_tokens=6)))
    assert [one["usage"] for one in out[:-1]] == [None, None]
    assert out[-1]["choices"] == []
    assert out[-1]["id"] == "first"
    assert out[-1]["usage"] == {
        "prompt_tokens": 20, "completion_tokens": 12, "total_tokens": 32,
        "prompt_tokens_details": {"cached_tokens": 20, "created_cache_tokens": 0},
    }  # fmt: skip
    assert stream.usage() == decode_usage(final(2, created_cache_tokens=6)[6:].partition(b'"usage": ')[2][:-3])


def test_cached_tokens_are_those_of_the_engine_that_told_first() -> None:
    told = decode_usage(b'{"prompt_tokens":20,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":8}}')
    out = events(resumed(prompt=told).feed(final(2)))
    assert out[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 8


def test_continuous_usage_goes_on_counting() -> None:
    out = events(resumed(continuous=True).feed(ROLE + frame("x", 1) + frame("y", 2)))
    assert [one["usage"]["completion_tokens"] for one in out] == [11, 12]


def test_a_client_that_did_not_ask_for_usage_gets_none() -> None:
    out = events(resumed(usage=False).feed(frame("x", 1, "stop") + final(1)))
    assert len(out) == 1
    assert "usage" not in out[0]


def test_usage_that_came_with_the_last_choice_is_told_once_more_at_the_end() -> None:
    stream = resumed()
    stream.feed(frame("x", 3, "stop") + b"data: [DONE]\n\n")
    (one,) = events(stream.closing())
    assert (one["choices"], one["usage"]["completion_tokens"], one["id"]) == ([], 13, "first")


@pytest.mark.parametrize("usage", [b"[1]", b"5", b'"x"', b"true", b'{"prompt_tokens":30,"prompt_tokens_details":[1]}'])
def test_an_engine_that_tells_no_usage_but_something_else_ends_no_answer(usage: bytes) -> None:
    known = decode_usage(b'{"prompt_tokens":20,"prompt_tokens_details":{"cached_tokens":2}}')
    transform = resumed(continuous=True, prompt=known)
    (event,) = events(transform.feed(b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"so"}}],"usage":'
                                     + usage + b"}\n\n"))  # fmt: skip
    assert event["choices"][0]["delta"]["content"] == "so"


def test_a_choice_that_is_none_is_its_engines_fault() -> None:
    with pytest.raises(StreamError):
        resumed().feed(b'data: {"id":"x","choices":[{"index":0,"delta":"so"}],"usage":null}\n\n')
