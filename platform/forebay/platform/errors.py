"""Errors as a tenant sees them: OpenAI's shape, string codes, and hints that its SDK's retry logic understands."""

from typing import Any

import msgspec

from forebay.platform.tenancy.keys import without_secrets


class ApiError(Exception):
    """An answer other than success. `message` is shown to the caller, so it must never carry another tenant's data.
    Keys are taken out of it: callers paste theirs into names of models, URLs and members, which messages repeat."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        type: str | None = None,  # noqa: A002 - the wire's own name
        param: str | None = None,
        headers: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.message = without_secrets(message)
        super().__init__(self.message)
        self.status = status
        self.code = code
        self.type = type or _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.param = None if param is None else without_secrets(param)
        self.headers = headers or {}
        self.metadata = metadata

    def body(self) -> bytes:
        """The JSON object of OpenAI's error answers, also used as the payload of an error frame in a stream."""
        error: dict[str, Any] = {
            "message": self.message, "type": self.type, "param": self.param, "code": self.code
        }
        if self.metadata:
            error["metadata"] = self.metadata
        return msgspec.json.encode({"error": error})


_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


def invalid(message: str, *, param: str | None = None, code: str = "invalid_request", status: int = 400) -> ApiError:
    """A request that can never succeed as it stands."""
    return ApiError(status, code, message, param=param)


def unavailable(
    code: str, message: str, *, retry_after: float, metadata: dict[str, Any] | None = None
) -> ApiError:
    """A 503 that OpenAI's SDK retries after `retry_after` seconds."""
    return ApiError(503, code, message, type="server_error", headers=retry_headers(retry_after), metadata=metadata)


def retry_headers(seconds: float) -> dict[str, str]:
    """When to come back, as OpenAI's SDK reads it: it prefers `retry-after-ms`."""
    return {"retry-after": str(max(1, round(seconds))), "retry-after-ms": str(round(seconds * 1000))}
