"""What differs between engines: fields only the server may set, how a request is stopped, how usage is read.

Source: vLLM 0.32, read and observed.
"""

from typing import Any, ClassVar

import msgspec
from msgspec import Struct


class ServerFields(Struct, frozen=True):
    """What Forebay tells an engine about a request, whatever the tenant sent. `rank` 0 is ordinary; lower is sooner.
    `data_parallel_rank`: which of the engine's ranks is to answer; None where it has but one."""

    request_id: str
    cache_salt: str
    rank: int = 0
    data_parallel_rank: int | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None
    created_cache_tokens: int | None = None  # vLLM
    cache_write_tokens: int | None = None  # OpenAI


class _CompletionDetails(Struct):
    reasoning_tokens: int | None = None


class Usage(Struct):
    """An engine's usage object. Counts may be absent; an explicit zero is a count."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    reasoning_tokens: int | None = None  # SGLang puts it here

    @property
    def cached(self) -> int | None:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None

    @property
    def cache_write(self) -> int | None:
        details = self.prompt_tokens_details
        if details is None:
            return None
        return details.created_cache_tokens if details.cache_write_tokens is None else details.cache_write_tokens

    @property
    def reasoning(self) -> int | None:
        details = self.completion_tokens_details
        return self.reasoning_tokens if details is None else details.reasoning_tokens


_usage_decoder = msgspec.json.Decoder(Usage)


def decode_usage(data: bytes) -> Usage:
    """Raises `msgspec.DecodeError` for anything that is not a usage object."""
    return _usage_decoder.decode(data)


class Adapter:
    """A plain OpenAI-compatible server: nothing beyond the public wire is assumed."""

    engine: ClassVar[str] = "openai"
    health_path: ClassVar[bytes] = b""  # without one, /v1/models alone decides
    continuous_usage: ClassVar[bool] = False
    prompt_counted_per_choice: ClassVar[bool] = False
    tokenizes: ClassVar[bool] = False  # at POST /tokenize
    continues: ClassVar[bool] = False  # an answer that another engine began, exactly as if it were its own

    def fields(self, server: ServerFields, *, priority: bool) -> dict[str, Any]:
        """Body fields that the server sets."""
        return {}

    def headers(self, server: ServerFields) -> bytes:
        """Header lines that the server sets."""
        return b"x-request-id: " + server.request_id.encode() + b"\r\n"

    def abort(self, api: str, request_id: str, prompts: int) -> tuple[bytes, bytes] | None:
        """Path and body of the call that stops a request; None where closing its connection is the only way."""
        return None


class VllmAdapter(Adapter):
    engine = "vllm"
    health_path = b"/health"
    continuous_usage = True
    prompt_counted_per_choice = True
    tokenizes = True
    continues = True

    def fields(self, server: ServerFields, *, priority: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {"cache_salt": server.cache_salt}
        if priority:
            fields["priority"] = server.rank  # lower runs earlier
        return fields

    def headers(self, server: ServerFields) -> bytes:
        lines = super().headers(server)
        if server.data_parallel_rank is not None:  # read by both generating routes: GenerateBaseServing, vLLM 0.32
            lines += b"x-data-parallel-rank: %d\r\n" % server.data_parallel_rank
        return lines

    def abort(self, api: str, request_id: str, prompts: int) -> tuple[bytes, bytes] | None:
        """Needs `--enable-scale-out`; without it the engine answers 403."""
        if api == "chat.completions":
            ids = [f"chatcmpl-{request_id}"]
        elif api == "completions":
            ids = [f"cmpl-{request_id}-{i}" for i in range(prompts)]
        else:
            return None
        return b"/inference/v1/abort_requests", msgspec.json.encode({"request_ids": ids})


_ADAPTERS: dict[str, type[Adapter]] = {a.engine: a for a in (Adapter, VllmAdapter)}


def adapter(engine: str) -> Adapter:
    """Raises `KeyError` for an engine that has no adapter."""
    return _ADAPTERS[engine]()
