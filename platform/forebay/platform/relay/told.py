"""What the router is told of one attempt."""

from msgspec import structs

from forebay.platform.api.requests import Inference
from forebay.router import Endpoint, Outcome, Pool, Router, Usage

MOST_TOKENS = 1 << 31  # in one request, that are believed
_RETURNS = {"tool_calls": True, "function_call": True, "stop": False, "length": False}  # by finish reason


class Told:
    """`booked` until the engine is done with the request."""

    def __init__(self, router: Router, pool: Pool, endpoint: Endpoint, booking: int) -> None:
        self._router = router
        self._pool = pool
        self._endpoint = endpoint
        self._booking: int | None = booking

    @property
    def booked(self) -> bool:
        return self._booking is not None

    def begun(self) -> None:
        if self._booking is not None:
            self._router.begun(self._booking)

    def answered(self) -> None:
        self._router.answered(self._pool.name, self._endpoint.name)

    def failed(self, reason: str, *, at_once: bool = False) -> None:
        if self._pool.has(self._endpoint):
            self._router.failed(self._pool.name, self._endpoint.name, reason, at_once=at_once)

    def ended(self, outcome: Outcome) -> None:
        """The engine is done with the request. Only the first time counts."""
        booking, self._booking = self._booking, None
        if booking is not None:
            self._router.ended(booking, outcome)


def outcome(
    inference: Inference,
    usage: Usage | None,
    finish_reason: str | None,
    *,
    first_token_s: float,
    decode_s: float | None,
) -> Outcome:
    """Of an answer that is complete; `decode_s` is None where its tenant held the engine up. Of several choices or
    prompts an engine names the cached tokens of one, and nobody knows which of them the agent goes on with."""
    one = inference.n * inference.prompts == 1
    seen = inference.stream
    return structs.replace(
        used(inference, usage),
        first_token_s=first_token_s if seen else None,
        decode_s=decode_s if seen and one else None,
        returns=_RETURNS.get(finish_reason or "") if one else None,
    )


def used(inference: Inference, usage: Usage | None) -> Outcome:
    """Of an answer that was left: what it took, and nothing of its times."""
    usage = usage or Usage()
    one = inference.n * inference.prompts == 1
    return Outcome(
        prompt_tokens=_plausible(usage.prompt_tokens) if one else None,
        cached=_plausible(usage.cached) if one else None,
        output=_plausible(usage.completion_tokens),
    )


def _plausible(tokens: int | None) -> int | None:
    """An engine may say any number."""
    return tokens if tokens is not None and 0 <= tokens < MOST_TOKENS else None
