"""An event that says nothing, for clients whose idle timers pass over comments."""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from forebay.platform.relay.call import Call

_SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "chat.completions": ("chatcmpl-", "chat.completion.chunk", {"delta": {}}),
    "completions": ("cmpl-", "text_completion", {"text": "", "logprobs": None}),
}


def nothing(call: Call, identity: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Of the stream that the request asks for: under the id that engines give it, or with the `identity` of the answer
    once it has begun. It has a choice: clients index it."""
    prefix, kind, said = _SHAPES[call.inference.api]
    event = {
        "id": prefix + call.request_id,
        "object": kind,
        "created": int(time.time()),
        "model": call.asked,
        "choices": [{"index": 0, **said, "finish_reason": None}],
        **identity,
    }
    if call.inference.include_usage:
        event["usage"] = None
    return b"data: " + msgspec.json.encode(event) + b"\n\n"
