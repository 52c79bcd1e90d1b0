"""A whole (not streamed) answer on its way to the client (pure): checked by one decode, then spliced."""

from typing import Any

import msgspec
from msgspec import Struct

from forebay.platform.relay.frames import StreamError, View
from forebay.router import Usage


class _Choice(Struct):
    finish_reason: str | None = None


class _Answer(Struct):
    choices: list[_Choice] | None = None
    data: list[msgspec.Raw] | None = None  # embeddings
    model: str | None = None
    usage: Usage | None = None


class _Message(Struct):
    content: Any = None


class _Saying(Struct):
    message: _Message | None = None
    text: Any = None


class _Said(Struct):
    choices: list[_Saying] | None = None


class Answer(Struct, frozen=True):
    """The client's bytes, and what the engine says it used."""

    body: bytes
    usage: Usage | None
    finish_reason: str | None


_decoder = msgspec.json.Decoder(_Answer)


def transform(body: bytes, view: View) -> Answer:
    """Raises `StreamError` for an answer that is not one."""
    try:
        if not body.isascii():
            body.decode()
        answer = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StreamError(f"not an answer: {error}") from error
    if answer.choices is None and answer.data is None:
        raise StreamError(f"not an answer: {body[:300]!r}")
    finish = next((c.finish_reason for c in answer.choices or () if c.finish_reason), None)
    if answer.model != view.model or view.tier is not None:
        body = _rewrite(body, view)
    return Answer(body, answer.usage, finish)


def said(body: bytes) -> list[str]:
    """The texts of an answer, as far as they are that."""
    try:
        choices = msgspec.json.decode(body, type=_Said).choices or []
    except msgspec.DecodeError:
        return []
    texts = [choice.text if choice.message is None else choice.message.content for choice in choices]
    return [text for text in texts if isinstance(text, str)]


def _rewrite(body: bytes, view: View) -> bytes:
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    members["model"] = msgspec.Raw(msgspec.json.encode(view.model))
    if view.tier is not None:
        members["service_tier"] = msgspec.Raw(msgspec.json.encode(view.tier))
    return msgspec.json.encode(members)
