"""What engines make of a request's other members. That they do: tests/integration."""

from typing import Any

import pytest

from forebay.router.prompt.chat import Chat
from forebay.router.prompt.chat_messages import Unsure
from forebay.router.prompt.chat_variables import variables
from tests.chat_templates import WEATHER

BARE = {"type": "function", "function": {"name": "f"}}


def made(defaults: dict[str, Any] | None = None, *, tools_despite_none: bool = True, **members: Any) -> dict[str, Any]:
    return variables(Chat([], **members), {"bos_token": "<s>"}, defaults or {}, tools_despite_none=tools_despite_none)


def test_a_tool_has_the_members_of_the_request_model() -> None:
    tool = {"x": 1, "function": {"parameters": {"b": 1, "a": 2}, "strict": False, "name": "f", "y": 2}}
    (written,) = made(tools=[tool])["tools"]
    assert repr(written) == repr(
        {
            "type": "function",
            "function": {"name": "f", "description": None, "parameters": {"b": 1, "a": 2}, "strict": False},
        }
    )


def test_the_choice_none_keeps_the_tools_unless_the_operator_has_it_otherwise() -> None:
    assert made(tools=[WEATHER], tool_choice="none")["tools"] == [WEATHER]
    assert made(tools=[WEATHER], tool_choice="none", tools_despite_none=False)["tools"] is None
    assert made(tools=[WEATHER], tool_choice="auto", tools_despite_none=False)["tools"] == [WEATHER]


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, {}),
        ({"reasoning_effort": "high"}, {"reasoning_effort": "high", "enable_thinking": True}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        (
            {"reasoning_effort": "low", "template_kwargs": {"enable_thinking": False, "reasoning_effort": "high"}},
            {"reasoning_effort": "low", "enable_thinking": False},
        ),
        ({"template_kwargs": {"a": None, "b": "auto", "c": 0, "padding": True}}, {"c": 0}),
        ({"template_kwargs": {"bos_token": "!", "add_generation_prompt": False}}, {"bos_token": "!"}),
    ],
)
def test_options_of_the_request_win_over_those_for_the_template(
    members: dict[str, Any], expected: dict[str, Any]
) -> None:
    base = {"tools": None, "documents": None, "bos_token": "<s>", "add_generation_prompt": True}
    assert made(**members) == base | expected


def test_the_operators_defaults_stand_where_the_request_says_nothing() -> None:
    defaults = {"enable_thinking": False, "style": "terse"}
    assert made(defaults, template_kwargs={"style": None, "enable_thinking": True})["style"] == "terse"
    assert made(defaults, template_kwargs={"enable_thinking": True})["enable_thinking"] is True


@pytest.mark.parametrize(
    "members",
    [
        {"tools": []},
        {"tools": ["f"]},
        {"tools": [{"type": "web_search"}]},
        {"tools": [{"type": "function", "function": {"name": 5}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]},
        {"template_kwargs": {"tools": ["f"]}},
        {"template_kwargs": {"documents": "d"}},
        {"template_kwargs": {"conversation": []}},
        {"template_kwargs": {"tokenizer": "x"}},
        {"template_kwargs": {"messages": []}},
    ],
)
def test_nothing_is_claimed_of_what_engines_refuse(members: dict[str, Any]) -> None:
    with pytest.raises(Unsure):
        made(**members)
