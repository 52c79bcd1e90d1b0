"""What an engine makes of the members of a request other than its messages: the variables that a template is given.

Source: vLLM 0.32, entrypoints/openai/chat_completion/protocol.py (`build_chat_params`, `ChatCompletionToolsParam`),
renderers/online_renderer.py and renderers/params.py; transformers 5, `apply_chat_template`.
"""

from collections.abc import Mapping
from typing import Any

from forebay.router.prompt.chat import Chat
from forebay.router.prompt.chat_messages import Unsure

# Arguments of functions that the options are handed to: they reach no template, or the engine fails on them.
_CONSUMED = frozenset(
    {"chat_template", "continue_final_message", "max_length", "padding", "return_dict", "return_tensors", "tokenize"}
    | {"tokenizer_kwargs", "truncation"}
)
_FATAL = frozenset(
    {"chat_template", "conversation", "messages", "model_config", "return_assistant_tokens_mask", "self", "tokenize"}
    | {"tokenizer", "compiled_template", "conversations"}
)


def variables(
    chat: Chat, special_tokens: Mapping[str, str], defaults: Mapping[str, Any], *, tools_despite_none: bool
) -> dict[str, Any]:
    """All but `messages`. `defaults` are what the operator sets for every request. Without `tools_despite_none` a
    request with the tool choice `none` has no tools. Raises `Unsure`."""
    options = chat.template_kwargs
    if not _FATAL.isdisjoint(options):
        raise Unsure
    asked = {**options, "add_generation_prompt": chat.add_generation_prompt}
    effort = chat.reasoning_effort
    if effort is not None:
        if effort != "auto":
            asked["reasoning_effort"] = effort
        if "enable_thinking" not in options:
            asked["enable_thinking"] = effort != "none"
    merged = dict(defaults)
    if chat.tools is not None and (tools_despite_none or chat.tool_choice != "none"):
        merged["tools"] = tools_of(chat.tools)
    merged.update((name, value) for name, value in asked.items() if value is not None and value != "auto")
    if "tools" in options and not _are_objects(merged.get("tools")):
        raise Unsure
    if not _are_objects(merged.get("documents")):
        raise Unsure
    given = {"tools": None, "documents": None, **special_tokens}
    given.update((name, value) for name, value in merged.items() if name not in _CONSUMED)
    return given


def tools_of(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools as the request model writes them: some members only, in its order. Raises `Unsure`."""
    if not tools:
        raise Unsure
    return [_tool(tool) for tool in tools]


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise Unsure
    name, description, parameters = (function.get(member) for member in ("name", "description", "parameters"))
    strict, deferred = function.get("strict"), tool.get("defer_loading")
    if not isinstance(name, str) or not isinstance(description, str | None) or not isinstance(parameters, dict | None):
        raise Unsure
    if not isinstance(strict, bool | None) or not isinstance(deferred, bool | None):
        raise Unsure
    inner: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    if strict is not None:
        inner["strict"] = strict
    late = function.get("defer_loading")
    if not isinstance(late, bool | None):
        raise Unsure
    late = deferred if late is None else late
    if late is not None:
        inner["defer_loading"] = late
    outer: dict[str, Any] = {"type": "function", "function": inner}
    if deferred is not None:
        outer["defer_loading"] = deferred
    return outer


def _are_objects(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, dict) for item in value))
