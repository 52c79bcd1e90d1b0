"""A rendering that goes on from a mark gives what a whole one gives, always."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.prompt.chat import Chat, Rendered, TemplateError
from forebay.router.prompt.template import Template
from tests.chat_templates import CONVERSATIONS, NOW, OPTIONS, TEMPLATES, WEATHER, call, plainly, template
from tests.tokenizers import examples

COMPILED = {name: template(source) for name, source in TEMPLATES.items()}


def whole(compiled: Template, messages: list[dict[str, Any]], options: dict[str, Any]) -> Rendered | None:
    try:
        return compiled.render(Chat(messages, **options), NOW)
    except TemplateError:
        return None


@pytest.mark.parametrize("name", TEMPLATES)
@examples(60, 3000)
@given(CONVERSATIONS, CONVERSATIONS, OPTIONS, st.data())
def test_any_mark_of_any_turn_leads_to_the_text_that_the_whole_has(
    name: str, first: list[dict[str, Any]], second: list[dict[str, Any]], options: dict[str, Any], data: st.DataObject
) -> None:
    compiled = COMPILED[name]
    split = data.draw(st.integers(1, len(first)))
    longer = [*first[: data.draw(st.integers(1, len(first)))], *second]
    for target in (first, longer):
        shared = _shared(first[:split], target)
        expected = whole(compiled, target, options)
        started = whole(compiled, first[:split], options)
        for mark in started.marks if started else ():
            if mark.messages > shared or mark.start >= len(target):
                continue
            resumed = compiled.resume(mark, Chat(target[mark.start :], **options), NOW)
            if resumed is None:
                continue
            assert expected is not None
            assert started is not None
            assert started.text[: mark.length] + resumed.text == expected.text
            assert resumed.start == mark.length
            for later in resumed.marks:
                assert later.start > mark.start
                assert 0 <= later.length - mark.length <= len(resumed.text)


@pytest.mark.parametrize("name", TEMPLATES)
@examples(40, 2000)
@given(CONVERSATIONS, OPTIONS, st.data())
def test_a_conversation_that_grows_by_marks_of_marks_stays_right(
    name: str, messages: list[dict[str, Any]], options: dict[str, Any], data: st.DataObject
) -> None:
    compiled = COMPILED[name]
    marks, text, at = [], "", 0
    while at < len(messages):
        at = data.draw(st.integers(at + 1, len(messages)))
        expected = whole(compiled, messages[:at], options)
        usable = [mark for mark in marks if mark.start < at]
        resumed = None
        if usable:
            mark = data.draw(st.sampled_from(usable))
            resumed = compiled.resume(mark, Chat(messages[mark.start : at], **options), NOW)
        if resumed is not None:
            assert expected is not None
            assert text[: mark.length] + resumed.text == expected.text
            marks = [*(one for one in marks if one.start <= mark.start), *resumed.marks]
        else:
            marks = list(expected.marks) if expected else []
        text = expected.text if expected else ""


@pytest.mark.parametrize("name", TEMPLATES)
@examples(60, 3000)
@given(CONVERSATIONS, OPTIONS)
def test_watching_changes_nothing(name: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> None:
    compiled, chat = COMPILED[name], Chat(messages, **options)
    rendered = whole(compiled, messages, options)
    assert (rendered and rendered.text) == plainly(TEMPLATES[name], chat, compiled.form)


def _shared(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


def talk(turns: int) -> list[dict[str, Any]]:
    return [{"role": ("user", "assistant")[at % 2], "content": f"message {at} " + "x" * 300} for at in range(turns)]


def agent(steps: int) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent. " * 50},
        {"role": "user", "content": "Do it. " * 50},
    ]
    for at in range(steps):
        made.append({"role": "assistant", "content": "", "tool_calls": [call(number=at)], "reasoning_content": "Hm."})
        made.append({"role": "tool", "content": "result " * 50, "tool_call_id": f"call_{at}"})
    return made


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - {"acausal", "strict"}))
@pytest.mark.parametrize("conversation", [talk(40), agent(20)], ids=["talk", "agent"])
def test_the_next_turn_goes_on_near_the_end(name: str, conversation: list[dict[str, Any]]) -> None:
    compiled = COMPILED[name]
    options: dict[str, Any] = {"tools": [WEATHER]} if conversation[0]["role"] == "system" else {}
    before = conversation[:-2]
    started = compiled.render(Chat(before, **options), NOW)
    mark = started.marks[-1]
    assert mark.start >= len(before) - 1
    resumed = compiled.resume(mark, Chat(conversation[mark.start :], **options), NOW)
    assert resumed is not None
    assert started.text[: mark.length] + resumed.text == compiled.render(Chat(conversation, **options), NOW).text


def test_a_strict_template_goes_on_where_no_tools_hang_on_the_last_question() -> None:
    conversation, compiled = talk(41), COMPILED["strict"]
    started = compiled.render(Chat(conversation[:39]), NOW)
    mark = started.marks[-1]
    resumed = compiled.resume(mark, Chat(conversation[mark.start :]), NOW)
    assert resumed is not None
    assert started.text[: mark.length] + resumed.text == compiled.render(Chat(conversation), NOW).text
    tooled = compiled.render(Chat(conversation[:39], tools=[WEATHER]), NOW)
    assert compiled.resume(tooled.marks[-1], Chat(conversation[tooled.marks[-1].start :], tools=[WEATHER]), NOW) is None


def test_a_template_that_looks_ahead_everywhere_has_no_marks_but_is_rendered() -> None:
    rendered = COMPILED["acausal"].render(Chat(talk(5)), NOW)
    assert not rendered.marks
    assert rendered.text.startswith("usermessage 0")
