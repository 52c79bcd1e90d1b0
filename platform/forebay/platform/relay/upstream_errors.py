"""Engines' failures levelled: what to tell the tenant, and whether another endpoint may do better.

Sources: vLLM 0.32's error objects (`{"error": {…, "code": 400}}`), SGLang's flat ones, facts seen on live servers.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from forebay.platform.errors import ApiError, invalid, retry_headers, unavailable
from forebay.platform.relay.call import Call
from forebay.router import Refused, Why

MAX_MESSAGE = 1000
RETRY_AFTER_S = 1.0
MOST_RETRY_AFTER_S = 60.0  # of the headers: beyond it clients give up
MOST_TOLD_S = 3600.0
TIMEOUT = "engine_timeout"
NO_ENDPOINT_S = 2.0
_REASONS = {
    Why.FULL: "Too many requests wait for an engine",
    Why.LATE: "No engine became free in time",
    Why.DEADLINE: "No engine will become free in time",
    Why.CAPACITY: "The engines are busy with more urgent requests",
}
_PROMPT = {"chat.completions": "messages", "completions": "prompt", "embeddings": "input"}
_CONTEXT = re.compile(
    r"context length|maximum model length|max_model_len|longer than the model|input is too long", re.I
)


class Refusal(Struct, frozen=True):
    """`endpoint_fault`: counts against the endpoint's health."""

    error: ApiError
    retry: bool
    endpoint_fault: bool


def for_status(status: int, body: bytes, call: Call) -> Refusal:
    """What an engine's answer other than 200 means."""
    if status in (400, 413, 422):
        return Refusal(_request_fault(body, call), retry=False, endpoint_fault=False)
    if status in (429, 503):  # its queue is full
        error = unavailable(
            "engine_overloaded", "The engines are at capacity. Please try again.", retry_after=RETRY_AFTER_S
        )
        return Refusal(error, retry=True, endpoint_fault=False)
    if status in (401, 403, 404):  # our credentials or our configuration, nothing the tenant did
        return Refusal(broken(), retry=True, endpoint_fault=True)
    return Refusal(broken(), retry=True, endpoint_fault=status >= 500)


def broken() -> ApiError:
    """The engine failed; the text says nothing of how, which is the operator's business."""
    return unavailable(
        "engine_error", "The engine failed while answering. Please try again.", retry_after=RETRY_AFTER_S
    )


def lost(reason: str) -> ApiError:
    """The engine was lost in the middle of an answer, which does not go on: `reason` is one of `continuation`, or what
    became of that."""
    return ApiError(
        503,
        "engine_lost",
        "The engine was lost while answering, and the answer could not be continued by another one. Please try again.",
        type="server_error",
        metadata={"reason": reason},
    )


def preempted(reason: str = "") -> ApiError:
    """The request had to make room for one of a higher tier."""
    return ApiError(
        503,
        "preempted",
        "The request was stopped to make room for requests of a higher tier. Please try again later.",
        type="server_error",
        headers={"retry-after": "5", "retry-after-ms": "5000"},
        metadata={"reason": reason or "preempted"},
    )


def drained() -> ApiError:
    """Its engine is about to end."""
    return lost("drained")


def silent(reason: str = "") -> ApiError:
    """An engine said nothing for too long, and where it had begun an answer, that does not go on elsewhere; or the
    request has had all its time."""
    metadata = {"reason": reason} if reason else None
    message = "The answer took longer than it may." if reason == "total" else "The engine did not answer in time."
    return ApiError(504, TIMEOUT, message, type="server_error", metadata=metadata)


CUT: Mapping[str, Callable[[str], ApiError]] = {TIMEOUT: silent, "preempted": preempted}  # else it was `lost`


def no_endpoint(call: Call) -> ApiError:
    return unavailable(
        "no_endpoint",
        f"No engine that serves '{call.asked}' is available at the moment.",
        retry_after=NO_ENDPOINT_S,
        metadata={"reason": "no_endpoint", "tier": call.tier, "retry_after_s": NO_ENDPOINT_S},
    )


def refused(refused: Refused) -> ApiError:
    """The engines are there, and have no time for this request. Nothing was used."""
    told = min(MOST_TOLD_S, max(RETRY_AFTER_S, refused.retry_s))
    return ApiError(
        429,
        "rate_limit_exceeded",
        f"{_REASONS[refused.why]} (tier '{refused.tier}'). Please try again later.",
        headers=retry_headers(min(MOST_RETRY_AFTER_S, told)),
        metadata={"reason": refused.why, "tier": refused.tier, "retry_after_s": round(told, 3)},
    )


def no_router() -> ApiError:
    return unavailable(
        "router_unavailable", "Requests cannot be placed at the moment. Please try again.", retry_after=RETRY_AFTER_S
    )


def _request_fault(body: bytes, call: Call) -> ApiError:
    message, param = _read(body)
    if _CONTEXT.search(message):
        return invalid(message, param=_PROMPT[call.inference.api], code="context_length_exceeded")
    return invalid(message, param=param)


def _read(body: bytes) -> tuple[str, str | None]:
    try:
        answer: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        answer = None
    error = answer.get("error", answer) if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return "The engine refused the request.", None
    message, param = error.get("message"), error.get("param")
    text = message if isinstance(message, str) and message else "The engine refused the request."
    return text[:MAX_MESSAGE], param if isinstance(param, str) else None
