"""The stream of an engine that continues what another one began, as one answer with that (pure).

Its events get the identity of the first ones; a second role, and what the client has seen already, are taken off; usage
is that of one engine that had answered all of it.
"""

from typing import Any

import msgspec
from msgspec import Struct

from forebay.platform.relay.frames import StreamError, StreamTransform, View, decode_whole, spoken
from forebay.platform.relay.seam import Seam
from forebay.router import Usage

SOME = 4  # tokens of an answer that make a prompt longer, whatever becomes of them when it is tokenized anew


class Diverged(StreamError):  # noqa: N818 - as its kind
    """It goes on otherwise than the answer that the client has seen."""


class Carried(Struct, frozen=True):
    """What is known of an answer when it is continued: what its events have in common, the tokens of its prompt and of
    what was said, and `seen`, which comes once more. `prompt` has the counts of the first engine, as far as it told."""

    identity: dict[str, Any]
    prompt: Usage
    tokens: int
    seen: str = ""

    def merged(self, usage: Usage) -> Usage:
        """What one engine would have told that had answered all of it."""
        tokens = self.prompt.prompt_tokens or 0
        told = self.prompt if self.prompt.cached is not None else usage
        details = None
        if told.prompt_tokens_details is not None:
            cached = min(told.cached or 0, tokens)
            details = msgspec.structs.replace(
                told.prompt_tokens_details,
                cached_tokens=None if told.cached is None else cached,
                created_cache_tokens=_within(told.prompt_tokens_details.created_cache_tokens, tokens - cached),
                cache_write_tokens=_within(told.prompt_tokens_details.cache_write_tokens, tokens - cached),
            )
        return msgspec.structs.replace(
            usage,
            prompt_tokens=tokens,
            completion_tokens=self.tokens + (usage.completion_tokens or 0),
            prompt_tokens_details=details,
        )


class ResumedTransform(StreamTransform):
    """As `StreamTransform`; `usage` is this engine's own. Each event is parsed and written anew: that is seldom."""

    def __init__(self, view: View, seam: Seam, carried: Carried) -> None:
        super().__init__(view, seam)
        self._carried = carried
        self._seen = carried.seen
        self._prompt_known = carried.tokens < SOME

    def identity(self) -> dict[str, Any]:
        return self._carried.identity

    def closing(self) -> bytes:
        if not self._view.include_usage or self._final_usage or self._view.continuous_usage or not self._last_usage:
            return b""
        return self._write({"choices": []}, final=True)

    def _frame(self, frame: bytes) -> bytes:
        if not frame.startswith(b"data: {"):
            return self._odd_frame(frame)
        self.events += 1
        self._newest = frame
        event, choices = decode_whole(frame)
        if event.get("error"):
            raise StreamError(f"the engine reported an error: {str(event['error'])[:300]!r}")
        usage = event.pop("usage", None)
        if usage is not None:
            self._last_usage = msgspec.json.encode(usage)
            self._check_prompt()
            self._final_usage = self._final_usage or not choices
        self._see(choices)
        if not choices:
            return self._write(event, final=True) if self._view.include_usage and usage is not None else b""
        says = [self._rest(choice) for choice in event["choices"]]
        if self.seam is not None:
            heard = spoken(event["choices"][0])
            self.seam.see(heard.delta, heard.text, self._last_usage or b"")
        return self._write(event, final=False) if any(says) else b""

    def _check_prompt(self) -> None:
        """One that was not shown what was said already would say all of it again."""
        usage = None if self._prompt_known else self.usage()
        if usage is not None and usage.prompt_tokens is not None:
            self._prompt_known = True
            if usage.prompt_tokens <= (self._carried.prompt.prompt_tokens or 0):
                raise Diverged(f"the continuation read {usage.prompt_tokens} tokens: the question, not the answer")

    def _rest(self, choice: dict[str, Any]) -> bool:
        """Take off what the client has; whether something is left."""
        delta = choice.get("delta")
        place, name = (delta, "content") if isinstance(delta, dict) else (choice, "text")
        if isinstance(delta, dict):
            delta.pop("role", None)
        said = place.get(name)
        if self._seen and isinstance(said, str):
            known = min(len(said), len(self._seen))
            if said[:known] != self._seen[:known]:
                raise Diverged(f"the continuation says {said[:40]!r}, and not {self._seen[:40]!r}")
            place[name] = said[known:]
            self._seen = self._seen[known:]
        ends = choice.get("finish_reason") is not None
        calls = isinstance(delta, dict) and delta.get("tool_calls")
        if self._seen and (ends or calls) and self.finish_reason != "abort":
            raise Diverged(f"the continuation does not say {self._seen[:40]!r}")
        return ends or any(delta.values() if isinstance(delta, dict) else (place.get(name),))

    def _write(self, event: dict[str, Any], *, final: bool) -> bytes:
        view = self._view
        event |= self._carried.identity
        event["model"] = view.model
        if view.tier is not None:
            event["service_tier"] = view.tier
        if view.include_usage:
            told = self._told() if final or view.continuous_usage else None
            event["usage"] = told
        return b"data: " + msgspec.json.encode(event) + b"\n\n"

    def _told(self) -> dict[str, Any] | None:
        """Usage as the client is to see it, in the engine's own shape."""
        usage = self.usage()
        if usage is None or self._last_usage is None:
            return None
        shown = msgspec.json.decode(self._last_usage)
        if not isinstance(shown, dict):
            return None
        merged = self._carried.merged(usage)
        shown |= {
            "prompt_tokens": merged.prompt_tokens,
            "completion_tokens": merged.completion_tokens,
            "total_tokens": (merged.prompt_tokens or 0) + (merged.completion_tokens or 0),
        }
        details = merged.prompt_tokens_details
        if isinstance(shown.get("prompt_tokens_details"), dict) and details is not None:
            told = {name: value for name, value in msgspec.structs.asdict(details).items() if value is not None}
            shown["prompt_tokens_details"] |= told
        return shown


def _within(tokens: int | None, limit: int) -> int | None:
    return None if tokens is None else min(tokens, limit)
