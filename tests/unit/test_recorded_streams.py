"""Answers recorded of many providers on their way to a client: nothing that it reads is altered."""

import json
import random
from typing import Any

import msgspec
import pytest

from forebay.platform.relay import answer
from forebay.platform.relay.frames import StreamError, StreamTransform, View
from forebay.router import Usage, decode_usage
from tests.recorded import Recording, recordings, stream_with_error, whole_answers

CHANGED = ("usage", "model", "service_tier", "x_groq")  # what is ours to change, or where a provider keeps usage


def through(recording: Recording, seed: int, **view: Any) -> tuple[StreamTransform, list[dict[str, Any]]]:
    """The transformation after the whole stream, fed in pieces of random size, and the events that come out."""
    rng = random.Random(seed)
    stream = StreamTransform(View(**{
        "model": recording.model, "served_model": recording.model, "include_usage": False, "continuous_usage": False,
        **view,
    }))  # fmt: skip
    out, at = b"", 0
    while at < len(recording.raw):
        size = rng.choice((1, 7, 100, 1500, 100_000))
        out += stream.feed(recording.raw[at : at + size])
        at += size
    assert out.endswith(b"\n\n")
    return stream, Recording("out", out).events


def content(event: dict[str, Any]) -> dict[str, Any]:
    """An event without what may change; a provider's usage inside a choice goes the way of the other."""
    kept = {name: value for name, value in event.items() if name not in CHANGED}
    kept["choices"] = [{n: v for n, v in choice.items() if n not in CHANGED} for choice in event.get("choices") or ()]
    return kept


def usage_of(recording: Recording) -> Usage | None:
    """The last account in the stream, wherever the provider puts it."""
    found = None
    for event in recording.events:
        places = [event, *(event.get("choices") or ()), event.get("x_groq") or {}]
        for place in places:
            if place.get("usage") is not None:
                found = place["usage"]
                break
    return None if found is None else decode_usage(msgspec.json.encode(found))


@pytest.mark.parametrize("recording", recordings())
@pytest.mark.parametrize(
    "view",
    [
        {},
        {"include_usage": True},
        {"include_usage": True, "continuous_usage": True},
        {"model": "alias", "tier": "default"},
        {"model": "alias", "tier": "default", "include_usage": True},
    ],
    ids=["silent", "usage", "continuous", "alias-tier", "alias-tier-usage"],
)
def test_every_delta_survives_and_usage_is_found(recording: Recording, view: dict[str, Any]) -> None:
    stream, seen = through(recording, 1, **view)
    asked = view.get("include_usage", False)
    wanted = [event for event in recording.events if event.get("choices") or asked]
    assert [content(event) for event in seen] == [content(event) for event in wanted]
    assert stream.complete
    assert stream.usage() == usage_of(recording)
    assert {event["model"] for event in seen if "model" in event} <= {view.get("model", recording.model)}
    if not asked:
        assert all("usage" not in event for event in seen)
    elif not view.get("continuous_usage"):
        assert all(event["usage"] is None for event in seen if event["choices"])
    if "tier" in view:
        assert {event["service_tier"] for event in seen if event["choices"]} == {"default"}


@pytest.mark.parametrize("body", whole_answers())
@pytest.mark.parametrize(("model", "tier"), [("alias", None), ("alias", "default"), (None, None)])
def test_a_whole_answer_changes_its_model_and_tier_alone(body: bytes, model: str | None, tier: str | None) -> None:
    sent = json.loads(body)
    model = model or sent["model"]
    view = View(model=model, served_model=sent["model"], include_usage=False, continuous_usage=False, tier=tier)
    found = answer.transform(body, view)
    wanted = {**sent, "model": model, **({"service_tier": tier} if tier else {})}
    assert json.loads(found.body) == wanted
    assert found.usage == decode_usage(json.dumps(sent["usage"]).encode())
    assert found.finish_reason == (sent["choices"][0]["finish_reason"] or None)  # Snowflake's may be ""


def test_an_error_in_an_event_that_has_a_choice_and_usage_is_an_error() -> None:
    raw = stream_with_error()
    with pytest.raises(StreamError, match="Token limit reached"):
        StreamTransform(View("m", "minimax/minimax-m2:free", include_usage=False, continuous_usage=False)).feed(raw)
