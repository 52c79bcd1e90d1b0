"""The engine's event stream on its way to the client (pure): bytes are spliced, and parsed only where shapes differ.

What changes: usage, which is always asked of the engine and shown only to clients that asked; the model's name, where
the client knows it by another; the tier served, where the client chose one. Source of the shapes: vLLM 0.32's frames
and OpenAI's streaming reference.

Searching raw bytes for `"usage":` is sound because inside a JSON string a quote is always escaped: these bytes can
only be a member of an object, and where there is one alone, the decoder has told whether it is the event's own.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from forebay.platform.relay.seam import Delta, Seam
from forebay.router import Usage, decode_usage

T = TypeVar("T")
MAX_FRAME = 8 << 20  # bytes of one event; no engine sends so much, so more is a broken stream
DONE = b"data: [DONE]\n\n"
_USAGE = b'"usage":'
_SHARED = ("id", "object", "created", "system_fingerprint")


class StreamError(Exception):
    """The engine's stream is broken, or carried an error of its own. The text may hold engine internals: log it, do not
    relay it."""


class _Choice(Struct, gc=False):
    index: int = 0
    finish_reason: str | None = None


class _Spoken(_Choice, gc=False):
    """A choice with what it says, in a chat's `delta` or a completion's `text`."""

    delta: Delta | None = None
    text: Any = None


class _Event(Struct, gc=False):
    """`usage` and `error` as they stand in the event, empty where it has none."""

    choices: list[_Choice] | None = None
    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Heard(_Event, gc=False):
    choices: list[_Spoken] | None = None  # type: ignore[assignment]  # a narrower one


_event = msgspec.json.Decoder(_Event)
_heard = msgspec.json.Decoder(_Heard)
_spoken = msgspec.json.Decoder(_Spoken)
_whole = msgspec.json.Decoder(dict[str, Any])


class View(Struct, frozen=True):
    """How this client sees the stream. `served_model` is the engine's name for the model; tier None is not echoed."""

    model: str
    served_model: str
    include_usage: bool
    continuous_usage: bool
    tier: str | None = None
    n: int = 1
    prompts: int = 1

    @property
    def choices(self) -> int:
        """Answers in one stream; with more than one, continuous usage counts each by itself."""
        return self.n * self.prompts


class StreamTransform:
    """Feed the engine's bytes, get the client's. `[DONE]` is swallowed (`done` tells): the relay sends the end.
    `seam` hears what the client gets to see, until it is taken away."""

    def __init__(self, view: View, seam: Seam | None = None) -> None:
        self._view = view
        self.seam = seam
        self._decoder: msgspec.json.Decoder[Any] = _event if seam is None else _heard
        self._multiple = view.choices > 1
        self._pending = b""
        same = view.model == view.served_model
        self._rename = None if same else (_member("model", view.served_model), _member("model", view.model))
        self._tier = b"" if view.tier is None else b"," + _member("service_tier", view.tier)
        self._tail = self._tier + (b',"usage":null' if view.include_usage and not view.continuous_usage else b"")
        self._last_usage: bytes | None = None
        self._choice_usage: dict[int, bytes] = {}
        self._final_usage = False
        self._newest = b""  # the engine's latest event
        self.finish_reason: str | None = None
        self.done = False
        self.events = 0
        self.finished = 0  # choices that have ended

    def feed(self, data: bytes) -> bytes:
        """Raises `StreamError`."""
        if data.find(b"\n") == len(data) - 2 and data.endswith(b"}\n\n") and not self._pending:  # one event, as usual
            _check_text(data)
            return self._frame(data[:-2])
        if self._pending:
            data = self._pending + data
            self._pending = b""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        if not data.endswith(b"\n\n"):
            cut = data.rfind(b"\n\n") + 2
            self._pending = data[cut:] if cut > 1 else data
            if len(self._pending) > MAX_FRAME:
                raise StreamError(f"an event of more than {MAX_FRAME} bytes")
            if cut <= 1:
                return b""
            data = data[:cut]
        _check_text(data)
        return b"".join([self._frame(frame) for frame in data[:-2].split(b"\n\n")])

    def usage(self) -> Usage | None:
        """The engine's latest account of this request; None when it has given none, no counts if it is unreadable."""
        try:
            if self._final_usage or not self._multiple:
                return None if self._last_usage is None else decode_usage(self._last_usage)
            return self._sum_choices()
        except msgspec.DecodeError:
            return Usage()

    def closing(self) -> bytes:
        """The event of usage for a client that asked for one, where the engine told it with its last choice (as
        DeepSeek, Z.ai and OpenRouter do) rather than in an event of its own."""
        view, usage = self._view, self._last_usage
        told = self._final_usage or view.continuous_usage
        if not view.include_usage or told or self._multiple or usage is None or usage[:1] != b"{":
            return b""
        newest = _decode(_whole, self._newest)
        event: dict[str, Any] = {name: newest[name] for name in ("id", "object", "created") if name in newest}
        event |= {"model": view.model, "choices": [], "usage": msgspec.Raw(usage)}
        if view.tier is not None:
            event["service_tier"] = view.tier
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def identity(self) -> dict[str, Any]:
        """What all events of a stream have in common."""
        if not self._newest:
            return {}
        newest = _decode(_whole, self._newest)
        return {name: newest[name] for name in _SHARED if newest.get(name) is not None}

    @property
    def complete(self) -> bool:
        """Whether the answer has all that it should, with or without `[DONE]`."""
        whole = self.done and self.events > 0
        return self.finish_reason != "abort" and (whole or self.ended)

    @property
    def ended(self) -> bool:
        """Whether every choice has, however."""
        return self.finished >= self._view.choices

    @property
    def nothing_yet(self) -> bool:
        """Whether no token was generated, as far as the engine tells: only role chunks, one a choice, or an abort."""
        if self.finish_reason == "abort":
            return True
        usage = self.usage() if self.events <= self._view.choices else None
        return usage is not None and usage.completion_tokens == 0

    def _frame(self, frame: bytes) -> bytes:
        if not frame.startswith(b"data: {"):
            return self._odd_frame(frame)
        self.events += 1
        event: _Event = _decode(self._decoder, frame)  # what is spliced is not parsed again
        choices, usage = event.choices or [], bytes(event.usage)
        if event.error and bytes(event.error) != b"null":
            raise StreamError(f"the engine reported an error: {bytes(event.error)[:300]!r}")
        self._newest = frame
        self._see(choices)
        if self.seam is not None and choices:
            first: Any = choices[0]  # a `_Spoken`
            self.seam.see(first.delta, first.text, usage)
        if self._rename is not None:
            if self._rename[0] not in frame:
                return self._slow_frame(frame, choices)
            frame = frame.replace(*self._rename, 1)
        at = frame.find(_USAGE)
        value = at + len(_USAGE)
        plain = usage[:1] == b"{" or (usage == b"null" and choices)
        laid = frame[at - 1 : at] == b"," and frame.startswith(usage, value) and frame.find(_USAGE, value) < 0
        twice = self._tier and b'"service_tier":' in frame  # the engine names one of its own
        if at < 0 or not plain or not laid or twice:
            return self._slow_frame(frame, choices)
        before, behind = frame[: at - 1], frame[value + len(usage) :]
        if usage != b"null":
            self._last_usage = usage
            if not choices:
                self._final_usage = True
                return before + self._tier + frame[at - 1 :] + b"\n\n" if self._view.include_usage else b""
            if self._multiple:
                self._choice_usage[choices[0].index] = usage
        if self._view.continuous_usage:
            return before + self._tier + frame[at - 1 :] + b"\n\n"
        return before + self._tail + behind + b"\n\n"

    def _see(self, choices: list[_Choice]) -> None:
        for choice in choices:
            if choice.finish_reason:
                self.finished += 1
                if self.finish_reason != "abort":
                    self.finish_reason = choice.finish_reason

    def _odd_frame(self, frame: bytes) -> bytes:
        """Comments and blank frames are dropped (we send our own heartbeats); other fields of SSE are not relayed."""
        if b"\n" in frame or not frame.startswith(b"data:"):
            lines = [line[5:].removeprefix(b" ") for line in frame.split(b"\n") if line.startswith(b"data:")]
            if not lines:
                return b""
            return self._frame(b"data: " + b"\n".join(lines).replace(b"\n", b" "))
        payload = frame[5:].strip()
        if payload == b"[DONE]":
            self.done = True
            return b""
        if not payload:
            return b""
        if payload.startswith(b"{") and frame != b"data: " + payload:
            return self._frame(b"data: " + payload)
        raise StreamError(f"not an event: {frame[:80]!r}")

    def _slow_frame(self, frame: bytes, choices: list[_Choice]) -> bytes:
        """A frame that is not laid out as vLLM lays it out: parsed and written anew."""
        event = _decode(_whole, frame)
        usage = event.pop("usage", None)
        account = _account_aside(event) if usage is None else usage
        if account is not None:
            self._last_usage = msgspec.json.encode(account)
            self._final_usage = self._final_usage or not choices
            if choices and self._multiple:
                self._choice_usage[choices[0].index] = self._last_usage
        if not choices and "choices" in event and not self._view.include_usage:
            return b""  # a frame that only carries usage, or nothing: SDKs index choices[0]
        if "model" in event:
            event["model"] = self._view.model
        if self._view.tier is not None:
            event["service_tier"] = self._view.tier
        if self._view.include_usage:
            event["usage"] = usage if not choices or self._view.continuous_usage else None
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def _sum_choices(self) -> Usage | None:
        """Continuous usage counts one choice and its own prompt: the request's is the sum over choices, prompts once.

        Choices are numbered through: `index // n` is the prompt. A prompt counts once it has given a token.
        """
        if not self._choice_usage:
            return None
        usages = {index: decode_usage(raw) for index, raw in self._choice_usage.items()}
        n = self._view.n
        prompts = {index // n: usage.prompt_tokens or 0 for index, usage in usages.items() if usage.completion_tokens}
        completion = sum(usage.completion_tokens or 0 for usage in usages.values())
        return Usage(prompt_tokens=sum(prompts.values()), completion_tokens=completion)


def decode_whole(frame: bytes) -> tuple[dict[str, Any], list[_Choice]]:
    """An event, and its choices as they are read everywhere. Raises `StreamError`."""
    return _decode(_whole, frame), _decode(_event, frame).choices or []


def spoken(choice: dict[str, Any]) -> _Spoken:
    """A choice that was decoded whole. Raises `StreamError`."""
    try:
        return _spoken.decode(msgspec.json.encode(choice))
    except msgspec.DecodeError as error:
        raise StreamError(f"not a choice: {error}") from error


def error_frame(body: bytes) -> bytes:
    """An error as the last event of a broken stream, then [DONE]: SDKs raise on it instead of ending quietly."""
    return b"data: " + body + b"\n\n" + DONE


HEARTBEAT = b": heartbeat\n\n"


def _check_text(data: bytes) -> None:
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise StreamError(f"not UTF-8: {error.reason}") from error


def _member(name: str, value: str) -> bytes:
    return b'"' + name.encode() + b'":' + msgspec.json.encode(value)


def _decode(decoder: msgspec.json.Decoder[T], frame: bytes) -> T:
    try:
        return decoder.decode(frame[6:])
    except msgspec.DecodeError as error:
        raise StreamError(f"not an event: {error}") from error


def _account_aside(event: dict[str, Any]) -> Any:
    """Usage where Moonshot (in the choice) and Groq (in a member of its own) put it; None where there is none."""
    places = [*(event.get("choices") or ()), event.get("x_groq")]
    return next((place["usage"] for place in places if isinstance(place, dict) and place.get("usage")), None)
