"""What engines make of messages before the template sees them. That they do: tests/integration."""

from typing import Any

import pytest

from forebay.router.prompt.chat_conversation import conversation
from forebay.router.prompt.chat_messages import Unsure, normalized
from tests.chat_templates import call

TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        ({"content": "hi", "role": "user", "name": "bob", "x": 1}, {"role": "user", "content": "hi", "name": "bob"}),
        ({"role": "user"}, {"role": "user", "content": ""}),
        ({"role": "user", "content": [TEXT, {"type": "text", "text": ""}, TEXT]}, {"role": "user", "content": "a\na"}),
        ({"role": "tool", "content": "r", "tool_call_id": "c"}, {"role": "tool", "content": "r", "tool_call_id": "c"}),
        (
            {"role": "assistant", "content": None, "reasoning_content": "hm", "refusal": None},
            {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm"},
        ),
        (
            {"role": "assistant", "tool_calls": [{**call(arguments='{"b": 1, "a": [2.0]}'), "index": 0}]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "function": {"arguments": {"b": 1, "a": [2.0]}, "name": "weather"},
                        "type": "function",
                        "index": 0,
                    }
                ],
            },
        ),
        ({"role": "assistant", "content": "x", "tool_calls": []}, {"role": "assistant", "content": "x"}),
        (
            {"role": "system", "content": "x-anthropic-billing-header: 1\nRules"},
            {"role": "system", "content": "Rules"},
        ),
        ({"role": "developer", "content": "d"}, {"role": "developer", "content": "d", "tools": None}),
    ],
)
def test_a_message_has_the_members_of_the_request_model_in_its_order(message: Any, expected: Any) -> None:
    given = repr(message)
    made = normalized(message, "string")
    assert made == expected
    assert repr(made) == repr(expected)  # in the same order, at every depth
    assert repr(message) == given


@pytest.mark.parametrize("arguments", ["", "no", "[1]", "null", "3", '"{}"'])
def test_arguments_that_are_no_object_are_an_empty_one(arguments: str) -> None:
    made = normalized({"role": "assistant", "tool_calls": [call(arguments=arguments)]}, "string")
    assert made["tool_calls"][0]["function"]["arguments"] == {}


def test_a_list_of_parts_is_kept_for_a_template_that_wants_one() -> None:
    marked = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}, "name": "dropped"}
    made = normalized({"role": "user", "content": ["a", marked]}, "openai")
    assert made["content"] == [TEXT, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert normalized({"role": "user", "content": "a"}, "openai")["content"] == [TEXT]
    assert normalized({"role": "tool", "content": "a"}, "openai")["content"] == "a"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"text": "a"}]},
        {"role": "user", "content": [{"type": ["text"], "text": "a"}]},
        {"role": "user", "content": [5]},
        {"role": "user", "content": None},
        {"role": "user", "content": 5},
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [call(arguments="[" * 100_000)]},
        {"role": "assistant", "tool_calls": [call(arguments="1" * 10_000)]},
        {"role": "assistant", "tool_calls": ["f"]},
        {"role": "assistant", "tool_calls": "f"},
        {"role": "developer", "content": "d", "tools": ["f"]},
    ],
)
def test_nothing_is_claimed_of_media_and_of_what_engines_refuse(message: Any) -> None:
    with pytest.raises(Unsure):
        normalized(message, "string")
    made = conversation([{"role": "user", "content": "a"}, message, {"role": "user"}], "string", developers=True)
    assert made.halt == 1
    assert len(made.messages) == 3


def roles(*given: str, developers: bool = False) -> tuple[list[tuple[str, str]], bool, bool]:
    messages = [{"role": role, "content": f"{role} {at}"} for at, role in enumerate(given)]
    made = conversation(messages, "string", developers=developers)
    return [(one["role"], one["content"]) for one in made.messages], made.developer, made.scattered


def test_a_developer_speaks_as_the_system_to_templates_that_know_none() -> None:
    assert roles("developer", "user") == ([("system", "developer 0"), ("user", "user 1")], True, False)
    assert roles("developer", "user", developers=True) == (
        [("developer", "developer 0"), ("user", "user 1")],
        False,
        False,
    )
    merged = ("system", "system 0\n\ndeveloper 2")
    assert roles("system", "user", "developer") == ([merged, ("user", "user 1")], False, True)
    assert roles("system", "user", "system") == (
        [("system", "system 0"), ("user", "user 1"), ("system", "system 2")],
        False,
        False,
    )
