"""What an engine makes of the messages of a request before the template sees them.

Source: vLLM 0.32, renderers/chat_utils.py and entrypoints/openai/chat_completion/protocol.py, read and tried: members
other than those here are dropped, the parts of a content are joined by line feeds unless the template wants a list,
arguments of tool calls are parsed, and members of objects are put in the order of the request model.
"""

import json
from collections.abc import Iterable
from typing import Any

from forebay.router.prompt.template_format import ContentFormat

Message = dict[str, Any]

_BILLING = "x-anthropic-billing-header"  # a client's line at the head of a system message that changes at each request
_TEXTS = frozenset({"text", "refusal", "thinking"})  # types of parts, and the member that holds their text
_NULL = frozenset({"assistant", "function"})  # roles whose content may be null; it may be missing everywhere
# Members of parts that do not reach the template.
_PART = frozenset({"audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url"}) | {
    *("input_audio", "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid"),
    *("video_embeds", "video_url"),
}
_PLAIN = frozenset({"assistant", "system", "user"})
_CALL = ("id", "function", "type")
_FUNCTION = ("arguments", "name")
_TOOL = ("function", "type")
_DEFINITION = ("name", "description", "parameters", "strict")


class Unsure(Exception):  # noqa: N818 - not an error
    """It is not known what engines make of this: media, or something that they refuse."""


def normalized(message: Message, form: ContentFormat) -> Message:
    """The message as the template gets it; the given one is left as it is. Raises `Unsure`."""
    role, content = message.get("role"), message.get("content")
    if type(content) is str and len(message) == 2 and role in _PLAIN:
        if role == "system" and content.startswith(_BILLING):
            content = _without_billing(content)
            if not content and form == "openai":
                return {"role": role, "content": []}
        return {"role": role, "content": content if form == "string" else [{"type": "text", "text": content}]}
    if content is None and role not in _NULL and "content" in message:
        raise Unsure
    result: Message = {"role": role, "content": _content(role, content, form)}
    if role == "assistant":
        _add_assistant(result, message)
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        if type(result["content"]) is list and all(part["type"] == "text" for part in result["content"]):
            result["content"] = "\n".join(part["text"] for part in result["content"])
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "developer":
        result["tools"] = _tools_of_developer(message.get("tools"))
    return result


def as_system(message: Message) -> Message:
    """A developer's message for a template that knows no such role."""
    return {name: "system" if name == "role" else value for name, value in message.items() if name != "tools"}


def merged_systems(messages: Iterable[Message]) -> list[Message]:
    """All system messages made one at the front, as engines do once a developer's was among them."""
    texts, others = [], []
    for message in messages:
        if message["role"] != "system":
            others.append(message)
            continue
        content = message["content"]
        text = "\n".join(part["text"] for part in content if "text" in part) if type(content) is list else content
        if text:
            texts.append(text)
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _content(role: Any, content: Any, form: ContentFormat) -> Any:
    parts = [] if content is None else [content] if isinstance(content, str) else content
    if type(parts) is not list:
        raise Unsure
    if role == "system":
        parts = [_unbilled(part) for part in parts if not _dropped(part, role)]
    if form == "string":
        return "\n".join([text for part in parts if (text := _text(part))])  # empty ones leave no line
    return [_part(part) for part in parts]


def _text(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise Unsure
    text = part.get("name") if kind == "tool_reference" else part.get(kind) if kind in _TEXTS else None
    if not isinstance(text, str) or part.get("uuid") is not None:
        raise Unsure
    return text


def _part(part: Any) -> Message:
    text = _text(part)
    if isinstance(part, str):
        return {"type": "text", "text": text}
    if part["type"] == "tool_reference":
        return {"type": "tool_reference", "name": text}
    return {"type": "text", "text": text, **{name: value for name, value in part.items() if name not in _PART}}


def _billed(part: Any) -> str | None:
    text = part if isinstance(part, str) else None
    if isinstance(part, dict) and part.get("type") == "text":
        text = part.get("text")
    return text if isinstance(text, str) and text.startswith(_BILLING) else None


def _dropped(part: Any, role: Any) -> bool:
    """Whether nothing is left of a part without that line."""
    text = _billed(part) if role == "system" else None
    return text is not None and not _without_billing(text)


def _unbilled(part: Any) -> Any:
    text = _billed(part)
    if text is None:
        return part
    rest = _without_billing(text)
    return rest if isinstance(part, str) else {**part, "text": rest}


def _without_billing(text: str) -> str:
    return text.partition("\n")[2]


def _add_assistant(result: Message, message: Message) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if type(calls) is not list:
            raise Unsure
        if calls:
            result["tool_calls"] = [_call(call) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        result["reasoning"] = result["reasoning_content"] = reasoning


def _call(call: Any) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type") != "function" or not isinstance(call.get("id"), str):
        raise Unsure
    if not isinstance(function.get("name"), str) or not isinstance(function.get("arguments"), str):
        raise Unsure
    ordered = _ordered(call, _CALL)
    ordered["function"] = {**_ordered(function, _FUNCTION), "arguments": _arguments(function["arguments"])}
    return ordered


def _arguments(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError:
        return {}
    except (ValueError, RecursionError):
        raise Unsure from None
    return arguments if isinstance(arguments, dict) else {}


def _tools_of_developer(tools: Any) -> Any:
    if tools is None:
        return None
    if type(tools) is not list:
        raise Unsure
    ordered = []
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict):
            raise Unsure
        ordered.append({**_ordered(tool, _TOOL), "function": _ordered(function, _DEFINITION)})
    return ordered


def _ordered(members: Message, first: tuple[str, ...]) -> Message:
    ordered = {name: members[name] for name in first if name in members}
    ordered.update(members)
    return ordered
