"""The stream transformation, event by event: what a client sees of what an engine sends."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.platform.relay.frames import MAX_FRAME, StreamError, StreamTransform, View

SERVED = "engine/model"


def view(**changes: Any) -> View:
    return View(
        **{"model": SERVED, "served_model": SERVED, "include_usage": False, "continuous_usage": False, **changes}
    )


def chunk(content: str, completion: int, *, finish: str | None = None, index: int = 0, prompt: int = 45) -> bytes:
    """One event laid out as vLLM 0.32 lays it out."""
    event = {
        "id": "chatcmpl-x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": SERVED,
        "choices": [
            {
                "index": index,
                "delta": {"content": content},
                "logprobs": None,
                "finish_reason": finish,
                "token_ids": None,
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "completion_tokens_details": None,
        },
        "prompt_token_ids": None,
    }
    return _event(event)


def final(prompt: int = 45, completion: int = 2, cached: int = 32) -> bytes:
    return _event({
        "id": "chatcmpl-x", "object": "chat.completion.chunk", "created": 1, "model": SERVED, "choices": [],
        "usage": {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion,
                  "prompt_tokens_details": {"cached_tokens": cached, "created_cache_tokens": 0}},
        "system_fingerprint": "vllm",
    })  # fmt: skip


def _event(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
STREAM = chunk("In", 1) + chunk(' a "usage":{', 2, finish="stop") + final() + DONE


def events(out: bytes) -> list[dict[str, Any]]:
    assert out == b"" or out.endswith(b"\n\n")
    return [json.loads(frame.removeprefix(b"data: ")) for frame in out.split(b"\n\n")[:-1]]


def test_usage_is_removed_for_a_client_that_did_not_ask() -> None:
    stream = StreamTransform(view())
    seen = events(stream.feed(STREAM))
    assert [e["choices"][0]["delta"]["content"] for e in seen] == ["In", ' a "usage":{']
    assert all("usage" not in e for e in seen)
    assert stream.done
    assert stream.finish_reason == "stop"
    usage = stream.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached) == (45, 2, 32)


def test_usage_comes_last_and_null_before_for_a_client_that_asked() -> None:
    seen = events(StreamTransform(view(include_usage=True)).feed(STREAM))
    assert [e["usage"] for e in seen[:2]] == [None, None]
    assert seen[2]["choices"] == []
    assert seen[2]["usage"]["prompt_tokens_details"]["cached_tokens"] == 32


def test_continuous_usage_passes_for_a_client_that_asked_for_it() -> None:
    seen = events(StreamTransform(view(include_usage=True, continuous_usage=True)).feed(STREAM))
    assert [e["usage"]["completion_tokens"] for e in seen] == [1, 2, 2]


def test_an_alias_and_the_tier_are_what_the_client_knows() -> None:
    seen = events(StreamTransform(view(model='ali"as', tier="default", include_usage=True)).feed(STREAM))
    assert {e["model"] for e in seen} == {'ali"as'}
    assert [e["service_tier"] for e in seen] == ["default"] * 3  # the event of usage too


def test_running_counts_come_with_the_tier_too() -> None:
    seen = events(StreamTransform(view(tier="flex", include_usage=True, continuous_usage=True)).feed(STREAM))
    assert [e["service_tier"] for e in seen] == ["flex"] * 3
    assert [e["usage"]["completion_tokens"] for e in seen] == [1, 2, 2]


def test_a_tier_that_the_engine_names_is_replaced_and_not_repeated() -> None:
    told = STREAM.replace(b'"choices":', b'"service_tier":"priority","choices":')
    out = StreamTransform(view(tier="flex", include_usage=True)).feed(told)
    assert {e["service_tier"] for e in events(out)} == {"flex"}
    assert out.count(b"service_tier") == len(events(out)) == 3


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=12), st.booleans())
def test_any_way_of_cutting_the_bytes_gives_the_same_events(cuts: list[int], crlf: bool) -> None:
    data = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    stream = StreamTransform(view(include_usage=True))
    edges = [0, *sorted(cuts), len(data)]
    out = b"".join(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges))
    assert out == StreamTransform(view(include_usage=True)).feed(STREAM)
    assert stream.done


def test_one_byte_at_a_time() -> None:
    for data in (STREAM, STREAM.replace(b"\n", b"\r\n")):
        stream = StreamTransform(view())
        out = b"".join(stream.feed(data[i : i + 1]) for i in range(len(data)))
        assert out == StreamTransform(view()).feed(STREAM)
        assert stream.done


@given(st.text(max_size=60))
def test_no_content_can_be_mistaken_for_structure(text: str) -> None:
    stream = StreamTransform(view(include_usage=True))
    tricky = text + '","usage":{"completion_tokens":9},"model":"x","finish_reason":"stop'
    (event,) = events(stream.feed(chunk(tricky, 7)))
    assert event["choices"][0]["delta"]["content"] == tricky
    assert stream.finish_reason is None
    usage = stream.usage()
    assert usage is not None
    assert usage.completion_tokens == 7


def test_events_laid_out_with_spaces_are_understood() -> None:
    spaced = b"".join(
        b"data: " + json.dumps(json.loads(frame[6:])).encode() + b"\n\n"
        for frame in (chunk("a", 1), chunk("b", 2, finish="length"), final())
        for frame in (frame[:-2],)
    )
    stream = StreamTransform(view(model="alias"))
    seen = events(stream.feed(spaced + DONE))
    assert [e["choices"][0]["delta"]["content"] for e in seen] == ["a", "b"]
    assert {e["model"] for e in seen} == {"alias"}
    assert stream.finish_reason == "length"
    usage = stream.usage()
    assert usage is not None
    assert usage.completion_tokens == 2


def test_comments_empty_data_and_other_fields_are_dropped() -> None:
    """openai-python#2722, #3833; llm-gateway#2053, copilot-api#88."""
    noise = b": keep-alive\n\nevent: ping\n\ndata:\n\nid: 4\nevent: message\n" + chunk("a", 1)
    assert events(StreamTransform(view()).feed(noise)) == events(StreamTransform(view()).feed(chunk("a", 1)))


def test_an_error_inside_the_stream_is_an_error_and_its_text_stays_here() -> None:
    with pytest.raises(StreamError, match="out of memory"):
        StreamTransform(view()).feed(b'data: {"error":{"message":"out of memory","code":500}}\n\n')


@pytest.mark.parametrize("broken", [b"data: {oops\n\n", b'data: {"a":1\n\n', b"data: hello\n\n"])
def test_a_malformed_event_is_an_error(broken: bytes) -> None:
    with pytest.raises(StreamError):
        StreamTransform(view()).feed(broken)


def test_an_endless_event_is_an_error_not_a_leak() -> None:
    stream = StreamTransform(view())
    for _ in range(MAX_FRAME // 65_536):
        assert stream.feed(b"x" * 65_536) == b""
    with pytest.raises(StreamError, match="more than"):
        stream.feed(b"x")


def test_usage_so_far_of_several_choices_is_their_sum() -> None:
    stream = StreamTransform(view(n=2))
    stream.feed(chunk("a", 3, index=0) + chunk("b", 2, index=1) + chunk("c", 4, index=0))
    usage = stream.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (45, 6)


def test_usage_so_far_of_several_prompts_counts_each_prompt_that_has_begun() -> None:
    stream = StreamTransform(view(n=1, prompts=3))
    stream.feed(chunk("a", 3, index=0, prompt=8) + chunk("b", 2, index=2, prompt=5) + chunk("", 0, index=1, prompt=9))
    usage = stream.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (13, 5)


def test_a_final_account_overrules_the_choices() -> None:
    stream = StreamTransform(view(n=2))
    stream.feed(chunk("a", 3, index=0) + final(prompt=45, completion=9))
    usage = stream.usage()
    assert usage is not None
    assert usage.completion_tokens == 9


def test_no_usage_is_not_zero_usage() -> None:
    stream = StreamTransform(view())
    stream.feed(_event({"id": "x", "model": SERVED, "choices": [{"index": 0, "delta": {"content": "a"}}]}))
    assert stream.usage() is None


@pytest.mark.parametrize("order", list(itertools.permutations(("choices", "usage", "model"))), ids="-".join)
def test_members_may_come_in_any_order(order: tuple[str, ...]) -> None:
    """As Alibaba's do: usage before the model's name, which an alias makes shorter or longer."""
    members = json.loads(chunk("hi", 1).removeprefix(b"data: "))
    data = _event({name: members[name] for name in order})
    for model in ("a", "an/alias/that/is/longer/than/the/name"):
        for asked in (False, True):
            stream = StreamTransform(view(model=model, tier="default", include_usage=asked))
            (seen,) = events(stream.feed(data))
            wanted = {"choices": members["choices"], "model": model, "service_tier": "default"}
            assert seen == {**wanted, "usage": None} if asked else wanted
            used = stream.usage()
            assert used is not None
            assert used.completion_tokens == 1


STOP = {"index": 0, "delta": {}, "finish_reason": "stop"}
SPENT = {"prompt_tokens": 3, "completion_tokens": 4}


@pytest.mark.parametrize("nested", [
    {"choices": [{**STOP, "usage": SPENT}]},
    {"choices": [STOP], "x_groq": {"id": "r", "usage": SPENT}},
], ids=["moonshot", "groq"])  # fmt: skip
def test_usage_kept_aside_is_found_and_what_holds_it_is_not_cut(nested: dict[str, Any]) -> None:
    for extra in ({}, {"usage": SPENT}, {"usage": None}):
        for data in (_event({"model": SERVED, **nested, **extra}), _event({**extra, **nested, "model": SERVED})):
            stream = StreamTransform(view(tier="default", include_usage=True))
            (seen,) = events(stream.feed(data))
            assert seen == {"model": SERVED, **nested, "service_tier": "default", "usage": None}
            used = stream.usage()
            assert used is not None
            assert (used.prompt_tokens, used.completion_tokens) == (3, 4)


@pytest.mark.parametrize("asked", [False, True])
def test_an_event_without_choices_is_only_for_those_who_asked_for_usage(asked: bool) -> None:
    """OpenAI sends one for moderation; SDKs' users index choices[0]."""
    data = _event({"model": SERVED, "choices": [], "moderation": {}, "usage": None})
    assert len(events(StreamTransform(view(include_usage=asked)).feed(data))) == asked


def test_an_error_beside_choices_and_usage_is_an_error() -> None:
    """As OpenRouter reports an upstream's failure: in an event that is otherwise well formed."""
    event = json.loads(chunk("", 1, finish="error").removeprefix(b"data: "))
    with pytest.raises(StreamError, match="down"):
        StreamTransform(view()).feed(_event({"error": {"code": 502, "message": "down"}, **event}))
    assert StreamTransform(view()).feed(_event({"error": None, **event}))


def test_usage_that_came_with_the_last_choice_gets_an_event_of_its_own() -> None:
    """As DeepSeek, Z.ai and OpenRouter send it; OpenAI's clients look for it after the choices."""
    for asked, continuous, expected in ((True, False, 1), (False, False, 0), (True, True, 0)):
        stream = StreamTransform(view(model="a", include_usage=asked, continuous_usage=continuous))
        stream.feed(chunk("hi", 1) + chunk("", 2, finish="stop") + DONE)
        closing = events(stream.closing())
        assert len(closing) == expected
        for event in closing:
            assert (event["id"], event["model"], event["choices"]) == ("chatcmpl-x", "a", [])
            assert event["usage"]["completion_tokens"] == 2
    whole = StreamTransform(view(include_usage=True))
    whole.feed(STREAM)
    assert whole.closing() == b""
