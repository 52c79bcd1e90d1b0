"""From a request's bytes to a `Job`, or to vLLM's refusal. Pure."""

from typing import Any

import msgspec

from tests.doubles.engine import tokens
from tests.doubles.engine.errors import WireError, invalid, malformed
from tests.doubles.engine.generation import Job, ToolCall
from tests.doubles.engine.settings import Settings

_MEDIA = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
_NUMBERS = {
    "temperature": float, "top_p": float, "min_p": float, "frequency_penalty": float, "presence_penalty": float,
    "repetition_penalty": float, "max_tokens": int, "max_completion_tokens": int, "n": int, "seed": int, "top_k": int,
    "min_tokens": int, "priority": int, "stream_interval": int,
}
_MAX_CHOICES = 16_384
_FLAGS = ("stream", "ignore_eos", "echo", "continue_final_message", "add_generation_prompt", "return_token_ids")
_SHAPES = {
    "model": (str, "string"), "stream_options": (dict, "dictionary"), "tools": (list, "list"),
}  # fmt: skip


def parse_body(body: bytes, content_type: str) -> dict[str, Any]:
    """The JSON object of a body. Raises WireError."""
    if content_type.split(";", maxsplit=1)[0].strip().lower() != "application/json":
        raise WireError(_MEDIA, type_="Bad Request")
    if not body:
        raise malformed("missing", "body", "Field required", None)
    try:
        given = msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise UnreadableBodyError from None
    except msgspec.DecodeError as error:
        try:
            body.decode()
        except UnicodeDecodeError:
            raise UnreadableBodyError from None
        ctx = f", 'ctx': {{'error': {str(error)!r}}}"
        raise malformed("json_invalid", "body.1", "JSON decode error", {}, ctx) from None
    if not isinstance(given, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise malformed("model_attributes_type", "body", message, given)
    return given


class UnreadableBodyError(WireError):
    """The body is not UTF-8, for which FastAPI answers before vLLM's handlers."""

    def __init__(self) -> None:
        super().__init__("There was an error parsing the body")

    def object(self) -> dict[str, object]:
        return {"detail": self.message}


def parse_chat(body: dict[str, Any], settings: Settings, request_id: str) -> Job:
    """The job of a chat request. Raises WireError."""
    _check_shared(body)
    messages = body.get("messages")
    if "messages" not in body:
        raise malformed("missing", "body.messages", "Field required", body)
    if not isinstance(messages, list):
        raise malformed("list_type", "body.messages", "Input should be a valid list", messages)
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            loc = f"body.messages.{number}"
            raise malformed("dict_type", loc, "Input should be a valid dictionary", message)
    _check_logprobs(body.get("top_logprobs"), "top_logprobs")
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    continued = bool(body.get("continue_final_message"))
    if continued and body.get("add_generation_prompt", False):
        raise WireError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
    tool = _tool(body)
    check_model(body, settings)
    if tool is not None:
        tool = _parsed_tool(tool, body, settings, messages)
    if not messages:
        raise WireError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    prompt, begun = tokens.encode_chat(
        messages,
        open_turn=body.get("add_generation_prompt", True) is not False,
        continue_last=continued,
    )
    asked = body.get("max_completion_tokens")
    asked = body.get("max_tokens") if asked is None else asked
    job = _job(body, settings, "chatcmpl-" + request_id, [prompt], asked)
    job.chat = True
    job.begun = begun
    job.tool = tool
    if body.get("logprobs"):
        job.logprobs = int(body.get("top_logprobs") or 0)
    return job


def parse_completion(body: dict[str, Any], settings: Settings, request_id: str) -> Job:
    """The job of a completion request. Raises WireError."""
    _check_shared(body)
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    _check_logprobs(body.get("logprobs"), "logprobs")
    if not isinstance(prompt, (str, list)):
        raise malformed("string_type", "body.prompt", "Input should be a valid string", prompt)
    check_model(body, settings)
    if prompt == []:
        raise WireError("You must pass at least one prompt")
    single = isinstance(prompt, str) or isinstance(prompt[0], int)
    prompts = [_prompt_tokens(each) for each in ([prompt] if single else prompt)]
    asked = body.get("max_tokens", 16)
    job = _job(body, settings, "cmpl-" + request_id, prompts, 16 if asked is None else asked)
    if body.get("logprobs") is not None:
        job.logprobs = int(body["logprobs"])
    if body.get("echo"):
        job.echo = [each if isinstance(each, str) else "" for each in ([prompt] if single else prompt)]
    return job


def _prompt_tokens(prompt: Any) -> list[int]:
    if isinstance(prompt, str):
        return tokens.encode(prompt)
    if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
        return list(prompt)
    raise malformed("string_type", "body.prompt", "Input should be a valid string", prompt)


def _check_shared(body: dict[str, Any]) -> None:
    for name, kind in _NUMBERS.items():
        value = body.get(name)
        if value is not None:
            _check_number(name, kind, value)
    for name in _FLAGS:
        if not isinstance(body.get(name), (bool, type(None))):
            message = "Input should be a valid boolean, unable to interpret input"
            raise malformed("bool_parsing", f"body.{name}", message, body[name])
    for name, (kind, word) in _SHAPES.items():
        if not isinstance(body.get(name), (kind, type(None))):
            raise malformed(f"{word}_type", f"body.{name}", f"Input should be a valid {word}", body[name])
    if body.get("stream_options") and not body.get("stream"):
        raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    salt = body.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
    _check_stop(body.get("stop"))


def _check_stop(stop: Any) -> None:
    texts = stop if isinstance(stop, list) else [stop or ""]
    if len(texts) > 4:
        message = f"List should have at most 4 items after validation, not {len(texts)}"
        raise malformed("too_long", "body.stop", message, texts)
    for text in texts:
        if not isinstance(text, str):
            raise malformed("string_type", "body.stop", "Input should be a valid string", text)
    if isinstance(stop, list) and "" in stop:
        raise WireError("stop cannot contain an empty string.")


def _check_number(name: str, kind: type, value: Any) -> None:
    word = "number" if kind is float else "integer"
    if isinstance(value, str):
        message = f"Input should be a valid {word}, unable to parse string as a{'n' if kind is int else ''} {word}"
        raise malformed(f"{kind.__name__}_parsing", f"body.{name}", message, value)
    if isinstance(value, float) and kind is int and not value.is_integer():
        message = "Input should be a valid integer, got a number with a fractional part"
        raise malformed("int_from_float", f"body.{name}", message, value)
    if not isinstance(value, (int, float)) or not -(2**63) <= value < 2**63:
        raise malformed(f"{kind.__name__}_type", f"body.{name}", f"Input should be a valid {word}", value)


def _check_logprobs(value: Any, name: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise malformed("int_type", f"body.{name}", "Input should be a valid integer", value)
    if value is not None and not -1 <= value <= 20:
        raise invalid(f"Requested sample logprobs of {value}, which is greater than max allowed: 20", name, value)


def check_model(body: dict[str, Any], settings: Settings) -> None:
    model = body.get("model")
    if model and model != settings.model:
        message = f"The model `{model}` does not exist. Valid aliases: {settings.model}."
        raise WireError(message, status=404, type_="NotFoundError", param="model")


def _check_sampling(body: dict[str, Any]) -> None:
    n = body.get("n")
    if n is not None and n < 1:
        raise WireError(f"n must be at least 1, got {n}.")
    if n is not None and n > _MAX_CHOICES:
        hint = "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        raise WireError(f"n must be at most {_MAX_CHOICES}, got {n}. {hint}")
    heat = body.get("temperature")
    if heat is not None and heat < 0:
        raise invalid(f"temperature must be non-negative, got {float(heat)}.", "temperature", float(heat))
    if heat == 0 and (n or 1) > 1:
        raise WireError(f"n must be 1 when using greedy sampling, got {n}.")
    top_p = body.get("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise invalid(f"top_p must be in (0, 1], got {float(top_p)}.", "top_p", float(top_p))


def _check_length(settings: Settings, prompt: list[int], asked: int | None) -> int:
    """How many tokens the answer may have. vLLM cuts what does not fit beside the prompt, without a word."""
    limit = settings.max_model_len
    if asked is not None and asked > limit:
        message = f"max_tokens={asked} cannot be greater than max_model_len={limit}."
        raise invalid(f"{message} Please request fewer output tokens.", "max_tokens", asked)
    if len(prompt) > limit:
        message = (
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
            f"{limit + 1} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt."
        )
        raise invalid(message, "input_tokens", limit + 1)
    room = limit - len(prompt)
    asked = room if asked is None else min(asked, room)
    if asked < 1:
        raise invalid(f"max_tokens must be at least 1, got {asked}.", "max_tokens", asked)
    return asked


def _job(body: dict[str, Any], settings: Settings, request_id: str, prompts: list[list[int]], asked: int | None) -> Job:
    limits = [_check_length(settings, prompt, None if asked is None else int(asked)) for prompt in prompts]
    _check_sampling(body)
    options = body.get("stream_options") or {}
    stop = body.get("stop") or []
    usage = bool(options.get("include_usage"))
    return Job(
        id=request_id,
        prompts=prompts,
        limits=limits,
        n=int(body.get("n") or 1),
        stream=bool(body.get("stream")),
        usage=usage,
        continuous=usage and bool(options.get("continuous_usage_stats")),
        salt=body.get("cache_salt"),
        priority=int(body.get("priority") or 0) if settings.priority_scheduling else 0,
        stop=[stop.encode()] if isinstance(stop, str) else [text.encode() for text in stop],
        ignore_eos=bool(body.get("ignore_eos")),
        token_ids=bool(body.get("return_token_ids")),
    )


def _tool(body: dict[str, Any]) -> Any:
    """The tool choice that asks for something: "auto", "required" or a named function's object."""
    tools = body.get("tools")
    if tools == []:
        message = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise invalid(message, "tools")
    for number, tool in enumerate(tools or ()):
        if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict) or "name" not in tool["function"]:
            raise malformed("missing", f"body.tools.{number}.function.name", "Field required", tool)
    choice = body.get("tool_choice", "auto" if tools else None)
    if choice in (None, "none"):
        return None
    if not tools:
        raise invalid("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        wanted = function.get("name") if isinstance(function, dict) else None
        if wanted not in [tool["function"]["name"] for tool in tools]:
            message = "The tool specified in `tool_choice` does not match any of the specified `tools`"
            raise invalid(message, "tool_choice")
    elif choice not in ("auto", "required"):
        message = f"Invalid value for `tool_choice`: {choice}!"
        raise invalid(f'{message} Only named tools, "none", "auto" or "required" are supported.', "tool_choice")
    return choice


def _parsed_tool(choice: Any, body: dict[str, Any], settings: Settings, messages: list[Any]) -> ToolCall | None:
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    if not settings.auto_tools:
        if choice == "auto":
            raise WireError('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        what = f'function "{named}"' if named else '"required"'
        raise WireError(f"tool_choice={what} requires --tool-call-parser to be set")
    if choice == "auto" and not (messages and messages[-1].get("role") == "user"):
        return None
    function = next(tool["function"] for tool in body["tools"] if named in (None, tool["function"]["name"]))
    return ToolCall(name=str(function["name"]), arguments=_arguments(function.get("parameters")), named=bool(named))


def _arguments(schema: Any) -> bytes:
    """JSON that has a value of the right type for each property."""
    samples: dict[Any, Any] = {"integer": 1, "number": 0.5, "boolean": True, "array": [], "object": {}, "null": None}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    made = {}
    for name, given in properties.items() if isinstance(properties, dict) else ():
        spec = given if isinstance(given, dict) else {}
        kind = spec.get("type") if isinstance(spec.get("type"), str) else "string"
        choices = spec.get("enum") or [samples.get(kind, "text")]
        made[name] = choices[0] if isinstance(choices, list) else "text"
    return msgspec.json.encode(made)
