"""What another engine is asked for, to go on with an answer; and every row of what is not continued."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from forebay.platform.api.requests import Inference, decode
from forebay.platform.relay import continuation
from forebay.platform.relay.continuation import Resumption, members_of, resumption, unfaithful
from forebay.platform.relay.seam import Delta, Seam

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
TEXT: dict[str, Any] = {"model": "m", "prompt": "once", "stream": True}


def inference(api: str = "chat.completions", **members: Any) -> Inference:
    base = {"chat.completions": CHAT, "completions": TEXT}[api]
    return decode(api, json.dumps({**base, **members}).encode())[0]


def seam(text: str = " and then", tokens: int = 3, held: int = 0) -> Seam:
    made = Seam(held)
    if text:
        made.see(Delta(content=text), None, b'{"prompt_tokens":5,"completion_tokens":%d}' % tokens)
        made.shown()
    return made


def asked(request: Inference, of: Seam | None = None) -> dict[str, Any]:
    found = resumption(request, members_of(request), of or seam())
    assert isinstance(found, Resumption), found
    body: dict[str, Any] = json.loads(found.inference.forward)
    return body


ROWS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "choices": [("chat.completions", {"n": 2}), ("completions", {"n": 3})],
    "prompts": [("completions", {"prompt": ["a", "b"]}), ("completions", {"prompt": [[1], [2]]})],
    "echo": [("completions", {"echo": True})],
    "suffix": [("completions", {"suffix": "the end"})],
    "logprobs": [("chat.completions", {"logprobs": True}), ("completions", {"logprobs": 0})],
    "structured_output": [
        ("chat.completions", {"response_format": {"type": "json_object"}}),
        ("chat.completions", {"response_format": {"type": "json_schema", "json_schema": {}}}),
        ("completions", {"response_format": {"type": "structural_tag"}}),
    ],
    "tool_choice": [
        ("chat.completions", {"tool_choice": "required", "tools": [{}]}),
        ("chat.completions", {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": [{}]}),
    ],
    "penalties": [
        ("chat.completions", {"frequency_penalty": 0.1}),
        ("chat.completions", {"presence_penalty": -0.1}),
        ("completions", {"repetition_penalty": 1.1}),
    ],
    "bad_words": [("chat.completions", {"bad_words": ["no"]})],
    "special_tokens": [("chat.completions", {"skip_special_tokens": False})],
    "stop_shown": [("chat.completions", {"include_stop_str_in_output": True, "stop": "x"})],
    "final_message": [
        ("chat.completions", {"continue_final_message": True, "add_generation_prompt": False}),
        ("chat.completions", {"add_generation_prompt": False}),
    ],
}
BLOCKED = {
    "tool_call": [Delta(tool_calls=Raw(b'[{"index":0}]')), Delta(function_call=Raw(b'{"name":"f"}'))],
    "reasoning": [Delta(reasoning=Raw(b'"hm"')), Delta(reasoning_content=Raw(b'"hm"'))],
    "content_parts": [Delta(content=[{"type": "text", "text": "a"}])],
}


def test_every_row_of_the_table_has_a_test_and_is_told_to_users() -> None:
    """Those of `OTHERS` and `AWAY` are in `tests/integration`."""
    assert [row.reason for row in continuation.UNFAITHFUL] == list(ROWS)
    assert set(continuation.BLOCKED) == set(BLOCKED)
    tables = (continuation.BLOCKED, continuation.OTHERS, continuation.AWAY)
    page = (Path(__file__).parents[2] / "docs" / "failover.md").read_text()
    listed = page.partition("## What is not continued")[2].partition("\n\nA request")[0]
    cells = [line.split("|")[1] for line in listed.splitlines() if line.startswith("| `")]
    told = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(told) == sorted([*ROWS, *(name for table in tables for name in table)])


@pytest.mark.parametrize(("reason", "api", "members"), [
    (reason, api, members) for reason, kinds in ROWS.items() for api, members in kinds
])  # fmt: skip
def test_what_is_not_continued(reason: str, api: str, members: dict[str, Any]) -> None:
    request = inference(api, **members)
    assert unfaithful(request, members_of(request)) == reason
    assert resumption(request, members_of(request), seam()) == reason


@pytest.mark.parametrize(("reason", "delta"), [(reason, one) for reason, all_ in BLOCKED.items() for one in all_])
def test_what_is_not_continued_once_it_was_said(reason: str, delta: Delta) -> None:
    made = seam()
    made.see(delta, None, b"{}")
    request = inference()
    assert isinstance(resumption(request, members_of(request), made), Resumption)  # nobody has seen it yet
    made.shown()
    assert resumption(request, members_of(request), made) == reason


@pytest.mark.parametrize("members", [
    {}, {"n": 1}, {"logprobs": False}, {"response_format": {"type": "text"}}, {"frequency_penalty": 0},
    {"repetition_penalty": 1}, {"tools": [{}]}, {"tools": [{}], "tool_choice": "auto"}, {"tool_choice": "none"},
    {"stop": ["x"]}, {"include_stop_str_in_output": True}, {"seed": 7, "temperature": 1.5}, {"logit_bias": {"5": 1}},
    {"skip_special_tokens": True}, {"bad_words": []}, {"add_generation_prompt": True}, {"ignore_eos": True},
])  # fmt: skip
def test_what_is_continued(members: dict[str, Any]) -> None:
    body = asked(inference(**members))
    assert body["messages"] == [*CHAT["messages"], {"role": "assistant", "content": " and then"}]
    assert (body["add_generation_prompt"], body["continue_final_message"]) == (False, True)
    assert {name: body[name] for name in members if name in body and name != "add_generation_prompt"} == {
        name: value for name, value in members.items() if name in body and name != "add_generation_prompt"
    }


def test_limits_are_what_is_left_of_them() -> None:
    body = asked(inference(max_tokens=10, max_completion_tokens=8, min_tokens=5))
    assert (body["max_tokens"], body["max_completion_tokens"], body["min_tokens"]) == (7, 5, 2)
    assert asked(inference(min_tokens=2))["min_tokens"] == 0
    assert "max_tokens" not in asked(inference())
    assert asked(inference("completions"))["max_tokens"] == 13


def test_a_completions_prompt_goes_on_with_the_answer() -> None:
    body = asked(inference("completions", prompt="Once ☀"))
    assert body["prompt"] == "Once ☀ and then"
    assert "continue_final_message" not in body


@pytest.mark.parametrize(("prompt", "behind", "expected"), [
    ([1, 2], [3, 4], [1, 2, 3, 4]), ([[1, 2]], [3], [1, 2, 3]), (["Once"], None, "Once and then"),
    ([1, 2], None, "token_ids"), ([[1, 2]], None, "token_ids"),
])  # fmt: skip
def test_a_prompt_of_token_ids_goes_on_with_those_of_the_answer(prompt: Any, behind: Any, expected: Any) -> None:
    request, told = inference("completions", prompt=prompt), list[Any]()

    def says(*given: Any) -> Any:
        told.append(given)
        return behind

    found = resumption(request, members_of(request), seam(), says)
    if isinstance(found, Resumption):
        assert json.loads(found.inference.forward)["prompt"] == expected
    else:
        assert found == expected == resumption(request, members_of(request), seam())  # nor without a tokenizer
    assert told in ([], [([1, 2], " and then")])


def test_an_answer_of_which_nothing_was_said_begins_anew() -> None:
    body = asked(inference(max_tokens=9), seam(""))
    assert body["messages"] == CHAT["messages"]
    assert body["max_tokens"] == 9


def test_an_answer_that_had_all_its_tokens_is_not_continued() -> None:
    request = inference(max_tokens=3)
    assert resumption(request, members_of(request), seam()) == "complete"


@pytest.mark.parametrize("usage", [b"", b"null", b'{"prompt_tokens":3}', b'{"completion_tokens":-1}'])
def test_an_engine_that_does_not_tell_its_tokens_leaves_nothing_to_continue(usage: bytes) -> None:
    made = Seam(0)
    made.see(Delta(content="a"), None, usage)
    made.shown()
    request = inference()
    assert resumption(request, members_of(request), made) == "untold_usage"
