"""From a body's bytes to what may be sent to an engine (pure): strict JSON, an allow-list, OpenAI's error wording."""

import difflib
import re
from typing import Any

import jiter
import msgspec
from msgspec import Struct

from forebay.platform.api import content, fields
from forebay.platform.errors import ApiError, invalid
from forebay.router import Work

TYPES: dict[str, type[Struct]] = {
    "chat.completions": fields.ChatRequest,
    "completions": fields.CompletionRequest,
    "embeddings": fields.EmbeddingRequest,
}
_KNOWN = {api: frozenset(kind.__struct_fields__) for api, kind in TYPES.items()}
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
BYTES_PER_TOKEN = 4  # a guess, good enough to weigh requests against each other
EXPECTED_OUTPUT = 256  # tokens, where the request sets no limit
MAX_VALUES = 1 << 20
MAX_NESTED = 1 << 17


class Inference(Struct, frozen=True):
    """A validated request. `forward` is a JSON object of the members that go to an engine, as they came: objects would
    take up to twenty times the memory. `affinity` names the conversation as far as placement is concerned."""

    api: str
    model: str
    forward: bytes
    stream: bool
    include_usage: bool
    continuous_usage: bool
    tier: str | None
    n: int
    prompts: int
    affinity: bytes
    work: Work


def decode(api: str, body: bytes) -> Inference:
    """Raises `ApiError` (400) that names the member at fault."""
    _bound(body)
    members = _parse(body)
    _check_names(api, members)
    try:
        request = msgspec.convert(members, TYPES[api])
    except msgspec.ValidationError as error:
        raise _explain(str(error)) from None
    if isinstance(request, fields.ChatRequest):
        _check_chat(request)
    forward = _forward(api, members, body)
    if isinstance(request, fields.EmbeddingRequest):
        return _embedding(request, forward, body)
    assert isinstance(request, fields.ChatRequest | fields.CompletionRequest)
    return _generation(api, request, forward, body)


def _generation(
    api: str, request: fields.ChatRequest | fields.CompletionRequest, forward: bytes, body: bytes
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
        affinity=_affinity(request),
        work=Work(len(body) // BYTES_PER_TOKEN, min(limit or EXPECTED_OUTPUT, EXPECTED_OUTPUT) * n * prompts),
    )


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
        affinity=b"",
        work=Work(len(body) // BYTES_PER_TOKEN, 0),
    )


def _bound(body: bytes) -> None:
    """Raises `ApiError` (413) where there may be too many values: parsing holds up everybody, some 50 ns for each."""
    if len(body) < MAX_NESTED:
        return
    if body.count(b",") > MAX_VALUES or body.count(b"[") + body.count(b"{") > MAX_NESTED:
        raise invalid(
            f"The body may hold more than {MAX_VALUES} values, or {MAX_NESTED} arrays and objects (by its commas and "
            "brackets).",
            code="request_too_large",
            status=413,
        )


def _check_chat(request: fields.ChatRequest) -> None:
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


def _parse(body: bytes) -> dict[str, Any]:
    try:
        members = jiter.from_json(body, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError as error:
        raise invalid(f"We could not parse the JSON body of your request: {error}.", code="invalid_json") from None
    if not isinstance(members, dict):
        raise invalid(
            f"The body of a request is a JSON object; this one is {_json_type(members)}.", code="invalid_json"
        )
    return members


def _forward(api: str, members: dict[str, Any], body: bytes) -> bytes:
    """Cut out of the body, not encoded again: the same numbers and escapes, at a tenth of the cost."""
    names = _KNOWN[api] - fields.NOT_FORWARDED
    raw = _raw_decoder.decode(body)
    kept = [f'"{name}":'.encode() + raw[name] for name, value in members.items() if value is not None and name in names]
    return b"{" + b",".join(kept) + b"}"


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


def _affinity(request: fields.ChatRequest | fields.CompletionRequest) -> bytes:
    """The same for every turn of a conversation: the client's own cache key, or how the conversation begins."""
    if request.prompt_cache_key:
        return request.prompt_cache_key.encode()
    if isinstance(request, fields.CompletionRequest):
        prompt = request.prompt
        return (prompt[:256] if isinstance(prompt, str) else repr(prompt[:64])).encode("utf-8", "surrogatepass")
    opening = []
    for message in request.messages[:8]:
        said = message.content
        opening.append(said[:1024] if isinstance(said, str) else repr(said)[:1024])
        if message.role == "user":
            break
    return "\0".join(opening).encode("utf-8", "surrogatepass")


_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_TYPE = re.compile(r"^Expected `(?P<expected>[^`]*)`, got `(?P<got>[^`]*)`$")
_LENGTH = re.compile(r"^Expected `array` of length (?P<sense><=|>=) (?P<bound>\d+)$")
_ENUM = re.compile(r"^Invalid enum value (?P<value>.*)$", re.DOTALL)
_NAMES = {
    "int": "an integer",
    "str": "a string",
    "bool": "a boolean",
    "float": "a number",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _explain(message: str) -> ApiError:
    """msgspec's words turned into OpenAI's, with its codes."""
    located = _PATH.search(message)
    path = located["path"] if located else ""
    text = _PATH.sub("", message)
    if missing := _MISSING.search(text):
        name = f"{path}.{missing['name']}" if path else missing["name"]
        return invalid(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if typed := _TYPE.match(text):
        expected = " or ".join(
            _NAMES.get(t.strip(), t.strip()) for t in typed["expected"].split("|") if t.strip() != "null"
        )
        got = _NAMES.get(typed["got"], typed["got"])
        return invalid(
            f"Invalid type for '{path}': expected {expected}, but got {got} instead.", param=path, code="invalid_type"
        )
    if length := _LENGTH.match(text):
        bound = length["bound"]
        if length["sense"] == ">=":
            return invalid(
                f"Invalid '{path}': empty array. Expected an array with minimum length {bound}.",
                param=path,
                code="empty_array",
            )
        return invalid(
            f"Invalid '{path}': array too long. Expected an array with maximum length {bound}.",
            param=path,
            code="array_above_max_length",
        )
    if enum := _ENUM.match(text):
        return invalid(
            f"Invalid value for '{path}': {enum['value'][:80]} is not one of the values allowed.",
            param=path,
            code="invalid_value",
        )
    return invalid(f"Invalid '{path}': {text[:1].lower()}{text[1:]}.", param=path, code="invalid_value")


def _json_type(value: object) -> str:
    kinds = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")
