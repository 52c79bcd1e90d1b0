"""From a body's bytes to what may be sent to an engine (pure): strict JSON, an allow-list, OpenAI's error wording."""

import difflib
import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jiter
import msgspec
from msgspec import Raw, Struct

from forebay.platform.api import content, fields
from forebay.platform.api.layout import Layout, Prior, layout, weigh, without
from forebay.platform.api.wording import explain, json_type
from forebay.platform.errors import ApiError, invalid

TYPES: dict[str, type[Struct]] = {
    "chat.completions": fields.ChatRequest,
    "completions": fields.CompletionRequest,
    "embeddings": fields.EmbeddingRequest,
}
_KNOWN = {api: frozenset(kind.__struct_fields__) for api, kind in TYPES.items()}
_FORWARDED = {
    api: {name: f'"{name}":'.encode() for name in known - fields.NOT_FORWARDED} for api, known in _KNOWN.items()
}
_raw_decoder = msgspec.json.Decoder(dict[str, Raw])
BYTES_PER_TOKEN = 4  # a guess, good enough to weigh requests against each other
EXPECTED_OUTPUT = 256  # tokens, where the request sets no limit
MAX_VALUES = 1 << 20
MAX_NESTED = 1 << 17
SHORT = 1 << 11  # bytes of a body whose messages are not remembered one by one
_RENDERED = (  # what a chat template sees beside the messages
    "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort",
    "add_generation_prompt", "continue_final_message",
)


class Inference(Struct, frozen=True):
    """A validated request. `forward` is a JSON object of the members that go to an engine, as they came: objects would
    take up to twenty times the memory. `output`: tokens expected of all its answers. `size`: tokens of its input,
    guessed from its bytes. `cache_key`: its `prompt_cache_key`, empty where it has none. `held`: characters that an
    engine keeps back of an answer, because a stop string might begin there."""

    api: str
    model: str
    forward: bytes
    stream: bool
    include_usage: bool
    continuous_usage: bool
    tier: str | None
    n: int
    prompts: int
    output: int
    size: int
    cache_key: str = ""
    held: int = 0


class ChatSource(Struct, frozen=True):
    """What a chat prompt is rendered from. `messages` and `layout` are of those that follow `prior`. `rendered` names
    the values of all other members that the template sees, `members` holds them."""

    messages: list[dict[str, Any]]
    lay: Callable[[], Layout | None]
    prior: Prior | None
    rendered: bytes
    members: dict[str, Any]

    @property
    def layout(self) -> Layout | None:
        return self.lay()


class TextSource(Struct, frozen=True):
    """Prompts of a completions request: texts, or token ids."""

    prompts: list[str] | list[list[int]]


Source = ChatSource | TextSource | None


def decode(api: str, body: bytes, prior: Prior | None = None) -> tuple[Inference, Source]:
    """The request, and what its prompt is made of. With `prior`, only what follows the messages known is read.
    Raises `ApiError` (400, or 413) that names the member at fault."""
    if prior is not None and (text := without(body, prior)) is not None:
        try:
            return _decode(api, text, body, prior)
        except ApiError:  # said again by the whole reading, which counts messages from the first
            pass
    return _decode(api, body, body, None)


def _decode(api: str, text: bytes, body: bytes, prior: Prior | None) -> tuple[Inference, Source]:
    _bound(text, prior)
    members = parse(text)
    _check_names(api, members)
    try:
        request = msgspec.convert(members, TYPES[api])
    except msgspec.ValidationError as error:
        raise explain(str(error)) from None
    raw = _raw_decoder.decode(text)
    if isinstance(request, fields.EmbeddingRequest):
        return _embedding(request, _forward(api, members, raw), body), None
    if isinstance(request, fields.CompletionRequest):
        inference = _generation(api, request, _forward(api, members, raw), len(body))  # checks its prompts
        return inference, _text_source(request.prompt)
    assert isinstance(request, fields.ChatRequest)
    _check_chat(request, prior)
    if prior is None and len(body) <= SHORT:
        inference = _generation(api, request, _forward(api, members, raw), len(body))
        return inference, _chat_source(members, raw, partial(layout, text, raw, body, None), None)
    found = layout(text, raw, body, prior)
    messages = memoryview(body)[found.start : found.end] if found else None
    inference = _generation(api, request, _forward(api, members, raw, messages), len(body))
    return inference, _chat_source(members, raw, lambda: found, prior)


def _generation(
    api: str, request: fields.ChatRequest | fields.CompletionRequest, forward: bytes, size: int
) -> Inference:
    options = request.stream_options
    if options is not None and not request.stream:
        raise invalid(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
            code="invalid_value",
        )
    if isinstance(request, fields.ChatRequest):
        prompts, limit = 1, request.max_completion_tokens or request.max_tokens
    else:
        prompts, limit = _prompt_count(request.prompt), request.max_tokens
    n = request.n or 1
    if n * prompts > fields.MAX_CHOICES:
        raise invalid(
            f"'n' times the number of prompts is {n * prompts}; at most {fields.MAX_CHOICES} answers can be asked for.",
            param="n",
            code="invalid_value",
        )
    return Inference(
        api=api,
        model=request.model,
        forward=forward,
        stream=bool(request.stream),
        include_usage=options is not None and options.include_usage,
        continuous_usage=options is not None and options.include_usage and options.continuous_usage_stats,
        tier=request.service_tier,
        n=n,
        prompts=prompts,
        output=min(limit or EXPECTED_OUTPUT, EXPECTED_OUTPUT) * n * prompts,
        size=size // BYTES_PER_TOKEN,
        cache_key=request.prompt_cache_key or "",
        held=_held(request),
    )


def _held(request: fields.ChatRequest | fields.CompletionRequest) -> int:
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return 0 if request.include_stop_str_in_output else max(map(len, stops), default=1) - 1


def _embedding(request: fields.EmbeddingRequest, forward: bytes, body: bytes) -> Inference:
    inputs = _prompt_count(request.input, "input")
    if inputs > fields.MAX_INPUTS:
        raise invalid(
            f"Invalid 'input': array too long. Expected an array with maximum length {fields.MAX_INPUTS}.",
            param="input",
            code="array_above_max_length",
        )
    return Inference(
        api="embeddings",
        model=request.model,
        forward=forward,
        stream=False,
        include_usage=False,
        continuous_usage=False,
        tier=request.service_tier,
        n=1,
        prompts=inputs,
        output=0,
        size=len(body) // BYTES_PER_TOKEN,
    )


def _chat_source(
    members: dict[str, Any], raw: Mapping[str, Raw], lay: Callable[[], Layout | None], prior: Prior | None
) -> ChatSource:
    given = [name for name in _RENDERED if members.get(name) is not None]
    named = b",".join(f'"{name}":'.encode() + raw[name] for name in given)
    return ChatSource(
        messages=members["messages"],
        lay=lay,
        prior=prior,
        rendered=hashlib.blake2b(named, digest_size=16).digest() if named else b"",
        members={name: members[name] for name in given},
    )


def _text_source(prompt: str | list[Any]) -> TextSource:
    if isinstance(prompt, list) and isinstance(prompt[0], str | list):
        return TextSource(prompt)
    return TextSource([prompt])  # type: ignore[arg-type]  # a text, or token ids


def _bound(text: bytes, prior: Prior | None) -> None:
    """Raises `ApiError` (413) where there may be too many values: parsing holds up everybody, some 50 ns for each."""
    commas, nested = (prior.commas, prior.nested) if prior else (0, 0)
    if len(text) + commas + nested < MAX_NESTED:
        return
    more_commas, more_nested = weigh(text)
    if more_commas + commas > MAX_VALUES or more_nested + nested > MAX_NESTED:
        raise invalid(
            f"The body may hold more than {MAX_VALUES} values, or {MAX_NESTED} arrays and objects (by its commas and "
            "brackets).",
            code="request_too_large",
            status=413,
        )


def _check_chat(request: fields.ChatRequest, prior: Prior | None) -> None:
    if prior is not None and prior.messages + len(request.messages) > fields.MAX_MESSAGES:
        raise invalid("Invalid 'messages': array too long.", param="messages", code="array_above_max_length")
    for number, message in enumerate(request.messages):
        if isinstance(message.content, list):
            content.check(message.content, f"messages[{number}].content")
    for name in request.chat_template_kwargs or ():
        if name in fields.TEMPLATE_RESERVED:
            raise invalid(
                f"Unsupported parameter: 'chat_template_kwargs.{name}' is not supported by this service.",
                param=f"chat_template_kwargs.{name}",
                code="unsupported_parameter",
            )


def parse(body: bytes) -> dict[str, Any]:
    """A strict JSON object: no member twice, no NaN. Raises `ApiError` 400."""
    try:
        members = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError as error:
        raise invalid(f"We could not parse the JSON body of your request: {error}.", code="invalid_json") from None
    if not isinstance(members, dict):
        raise invalid(
            f"The body of a request is a JSON object; this one is {json_type(members)}.", code="invalid_json"
        )
    return members


def _forward(
    api: str, members: dict[str, Any], raw: Mapping[str, Raw], messages: memoryview | None = None
) -> bytes:
    """Cut out of the body, not encoded again: the same numbers and escapes, at a tenth of the cost; and copied once."""
    names = _FORWARDED[api]
    parts: list[bytes | memoryview | Raw] = []
    for name, value in members.items():
        if value is not None and name in names:
            whole = messages if name == "messages" and messages is not None else raw[name]
            parts += b"," if parts else b"", names[name], whole
    return b"".join((b"{", *parts, b"}"))


def _check_names(api: str, members: dict[str, Any]) -> None:
    known = _KNOWN[api]
    if known.issuperset(members):
        return
    for name in members.keys() - known - fields.IGNORED - fields.SERVER_SET:
        if name == "modalities" and members[name] in (None, ["text"]):
            continue
        if name in fields.UNSUPPORTED:
            raise invalid(
                f"Unsupported parameter: '{name}' is not supported by this service.",
                param=name,
                code="unsupported_parameter",
            )
        near = difflib.get_close_matches(name[:64], known, n=1)
        hint = f" Did you mean '{near[0]}'?" if near else ""
        raise invalid(f"Unknown parameter: '{name[:64]}'.{hint}", param=name[:64], code="unknown_parameter")


def _prompt_count(prompt: str | list[Any], name: str = "prompt") -> int:
    """One prompt: a string, or token ids. Several: a list of either."""
    if isinstance(prompt, str):
        return 1
    if not prompt:
        raise invalid(f"Invalid '{name}': empty array. Expected at least one entry.", param=name, code="empty_array")
    if len(prompt) > 1 << 20:
        raise invalid(f"Invalid '{name}': array too long.", param=name, code="array_above_max_length")
    if all(isinstance(entry, str) for entry in prompt):
        return len(prompt)
    if _are_ids(prompt):
        return 1
    if all(isinstance(entry, list) and entry and _are_ids(entry) for entry in prompt):
        return len(prompt)
    raise invalid(
        f"Invalid type for '{name}': expected a string, an array of strings, or arrays of token ids (integers from 0).",
        param=name,
        code="invalid_type",
    )


def _are_ids(entries: list[Any]) -> bool:
    return all(type(entry) is int and 0 <= entry < 1 << 31 for entry in entries)
