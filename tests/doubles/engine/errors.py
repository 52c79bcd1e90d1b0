"""vLLM's error answers. Messages are those of 0.32."""

import json
from http import HTTPStatus

import msgspec

BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
FAILED = "Internal server error"


class WireError(Exception):
    """An answer other than success, in vLLM's shape: the code is the HTTP status as a number."""

    def __init__(
        self, message: str, *, status: int = 400, type_: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type_
        self.param = param

    def object(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.status}}

    def body(self) -> bytes:
        return msgspec.json.encode(self.object())

    def event(self) -> bytes:
        """As a frame of a stream, which vLLM prints with spaces."""
        return b"data: " + json.dumps(self.object()).encode() + b"\n\n"


def invalid(message: str, param: str, value: object = None) -> WireError:
    """What a vLLM validator says of a value that has the right type."""
    suffix = f"(parameter={param})" if value is None else f"(parameter={param}, value={value})"
    return WireError(f"{message} {suffix}", param=param)


def malformed(kind: str, loc: str, message: str, given: object, ctx: str = "") -> WireError:
    """What pydantic says of a body that does not have the right shape."""
    if isinstance(given, (list, dict)):
        given = f"<{type(given).__name__} of {len(given)} items>"
    fields = f"'type': '{kind}', 'loc': '{loc}', 'msg': '{message}', 'input': {str(given)!r}{ctx}"
    return WireError(f"1 validation error:\n  {{{fields}}}", type_="Bad Request", param=loc)


def of_status(status: int, message: str | None = None) -> WireError:
    """What vLLM says with a status that did not come of the request's own content."""
    if status == 503:
        return WireError(message or BUSY, status=503, type_="Service Unavailable")
    if status == 500:
        return WireError(message or FAILED, status=500, type_="InternalServerError")
    phrase = HTTPStatus(status).phrase
    return WireError(message or phrase, status=status, type_=phrase)
