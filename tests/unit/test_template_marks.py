"""A rendering that goes on from a mark gives what a whole one gives, always."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.prompt.chat import Chat
from tests.chat_marks import check_fork, check_growth, check_plain
from tests.chat_templates import CONVERSATIONS, NOW, OPTIONS, TEMPLATES, WEATHER, call, template
from tests.tokenizers import examples

COMPILED = {name: template(source) for name, source in TEMPLATES.items()}


@pytest.mark.parametrize("name", TEMPLATES)
@given(CONVERSATIONS, CONVERSATIONS, OPTIONS, st.data())
@examples(60, 3000)
def test_any_mark_of_any_turn_leads_to_the_text_that_the_whole_has(
    name: str, first: list[dict[str, Any]], second: list[dict[str, Any]], options: dict[str, Any], data: st.DataObject
) -> None:
    check_fork(COMPILED[name], first, second, options, data)


@pytest.mark.parametrize("name", TEMPLATES)
@given(CONVERSATIONS, OPTIONS, st.data())
@examples(40, 2000)
def test_a_conversation_that_grows_by_marks_of_marks_stays_right(
    name: str, messages: list[dict[str, Any]], options: dict[str, Any], data: st.DataObject
) -> None:
    check_growth(COMPILED[name], messages, options, data)


@pytest.mark.parametrize("name", TEMPLATES)
@given(CONVERSATIONS, OPTIONS)
@examples(60, 3000)
def test_watching_changes_nothing(name: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> None:
    check_plain(COMPILED[name], TEMPLATES[name], messages, options)


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


@pytest.mark.parametrize(
    "source",
    [
        # looks at the second message from far on, and at all of them before it begins
        "{% for m in messages %}{{ m.content }}{{ messages[1].content if loop.index0 > 5 }}{% endfor %}",
        """{% set ns = namespace(users='') %}
        {%- for m in messages if m.role == 'user' %}{% set ns.users = ns.users ~ m.role ~ loop.index %}{% endfor %}
        {%- for m in messages %}{{ m.content }}{% if loop.index0 > 5 %}{{ ns.users }}{% endif %}{% endfor %}""",
    ],
)
def test_what_is_kept_of_a_fork_is_its_own(source: str) -> None:
    compiled = template(source)
    first = [{"role": "user", "content": str(at)} for at in range(10)]
    fork = [first[0], *({"role": "assistant", "content": chr(97 + at)} for at in range(9))]
    mark = next(mark for mark in compiled.render(Chat(first), NOW).marks if mark.start == 1)
    begun = compiled.resume(mark, Chat(fork[1:4]), NOW)
    assert begun is not None
    assert [mark.start for mark in begun.marks] == [2, 3, 4]
    text = compiled.render(Chat(fork[:4]), NOW).text
    for later in begun.marks:
        resumed = compiled.resume(later, Chat(fork[later.start :]), NOW)
        assert resumed is not None
        assert text[: later.length] + resumed.text == compiled.render(Chat(fork), NOW).text
