"""What an engine's refusal becomes: the tenant's fault, ours, or nobody's, and whether another engine is asked."""

import json
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from forebay.platform.relay.upstream_errors import for_status

CALL: Any = SimpleNamespace(inference=SimpleNamespace(api="chat.completions"))
VLLM = {"error": {"message": "temperature must be low", "type": "BadRequestError", "param": "temperature", "code": 400}}
SGLANG = {"object": "error", "message": "temperature must be low", "type": "BadRequestError", "code": 400}
LONG = {"error": {"message": "This model's maximum context length is 256 tokens.", "code": 400}}


@pytest.mark.parametrize(("status", "body", "told", "code", "elsewhere", "blamed"), [
    (400, VLLM, 400, "invalid_request", False, False),
    (400, SGLANG, 400, "invalid_request", False, False),
    (413, VLLM, 400, "invalid_request", False, False),
    (422, VLLM, 400, "invalid_request", False, False),
    (400, LONG, 400, "context_length_exceeded", False, False),
    # Its queue is full. A 429 of an engine is no limit of the tenant's.
    (429, VLLM, 503, "engine_overloaded", True, False),
    (503, {"error": "busy"}, 503, "engine_overloaded", True, False),
    # Our key, our address, our model's name.
    (401, {"error": "Unauthorized"}, 503, "engine_error", True, True),
    (403, VLLM, 503, "engine_error", True, True),
    (404, VLLM, 503, "engine_error", True, True),
    (500, VLLM, 503, "engine_error", True, True),
    (502, b"<html>", 503, "engine_error", True, True),
    (504, b"", 503, "engine_error", True, True),
    (400, b"\xff", 400, "invalid_request", False, False),
    (302, b"", 503, "engine_error", True, False),
])  # fmt: skip
def test_each_status_of_an_engine_has_one_meaning(
    status: int, body: Any, told: int, code: str, elsewhere: bool, blamed: bool
) -> None:
    """litellm#4259, #16881, #37599, #5764: codes are texts, and one kind of failure is not told as another."""
    refusal = for_status(status, body if isinstance(body, bytes) else json.dumps(body).encode(), CALL)
    assert (refusal.error.status, refusal.error.code) == (told, code)
    assert (refusal.retry, refusal.endpoint_fault) == (elsewhere, blamed)
    error = msgspec.json.decode(refusal.error.body())["error"]
    assert isinstance(error["code"], str)
    assert set(error) == {"message", "type", "param", "code"}
    assert ("retry-after" in refusal.error.headers) == (told == 503)
    if body is VLLM and told == 400:
        assert (error["message"], error["param"]) == ("temperature must be low", "temperature")
    if told == 503:  # what an engine says of itself is not for tenants
        assert "temperature" not in error["message"]
