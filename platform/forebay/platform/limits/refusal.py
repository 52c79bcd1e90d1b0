"""A limit's refusal as a tenant sees it, and the headers that say how much is left (pure)."""

import math
from collections.abc import Iterable

from msgspec import Struct

from forebay.platform.errors import ApiError
from forebay.platform.limits.rules import Check, Kind
from forebay.platform.limits.window import duration

CODE = "rate_limit_exceeded"
SLOT_MS = 1000  # nobody knows when a slot becomes free
_UNITS = {
    Kind.REQUESTS: "requests per minute",
    Kind.INPUT: "input tokens per minute",
    Kind.OUTPUT: "output tokens per minute",
    Kind.CONCURRENT: "requests at a time",
    Kind.QUEUED: "requests waiting for an engine",
}
Headers = list[tuple[bytes, bytes]]


class Seen(Struct):
    """What is known of a limit now: `used` of what is allowed, here or everywhere."""

    check: Check
    used: int
    allowed: int

    @property
    def remaining(self) -> int:
        return max(0, self.allowed - self.used)


def refusal(seen: Seen, left_ms: int) -> ApiError:
    """`seen`: without the request. `left_ms`: until the window ends."""
    check = seen.check
    reset_ms = SLOT_MS if check.kind.held else left_ms
    whose = f"your {check.level}" + (f" for '{check.model}'" if check.model else "")
    limit = f"{check.limit} {_UNITS[check.kind]} of {whose}"
    if check.never:
        needs = f"This request needs {check.cost}, which" if check.limit else "This request"
        message = f"{needs} can never fit the limit of {limit}."
        headers = {"x-should-retry": "false"}
    else:
        wait = math.ceil(reset_ms / 1000)
        message = f"Limit reached: {limit}, {seen.remaining} left, {check.cost} needed. Please try again in {wait} s."
        headers = {"retry-after": str(wait), "retry-after-ms": str(reset_ms)}
    return ApiError(
        429,
        CODE,
        message,
        headers=headers,
        metadata={
            "limit": check.kind.value,
            "level": check.level.value,
            **({"model": check.model} if check.model else {}),
            "limit_value": check.limit,
            "remaining": seen.remaining,
            "reset_s": round(reset_ms / 1000, 3),
        },
    )


def headers(seen: Iterable[Seen], left_ms: int) -> Headers:
    """OpenAI's, each of the limit that has the least left."""
    requests = [one for one in seen if one.check.kind is Kind.REQUESTS]
    tokens = [one for one in seen if one.check.kind in (Kind.INPUT, Kind.OUTPUT)]
    found: Headers = []
    reset = duration(left_ms).encode()
    for name, some in ((b"requests", requests), (b"tokens", tokens)):
        if some:
            least = min(some, key=lambda one: one.remaining)
            found += (
                (b"x-ratelimit-limit-" + name, b"%d" % least.check.limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % least.remaining),
                (b"x-ratelimit-reset-" + name, reset),
            )
    return found
