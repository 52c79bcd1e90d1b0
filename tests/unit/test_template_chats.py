"""Chats rendered as a whole: what is exact, what is claimed of the rest, and what an error says."""

from datetime import UTC, timedelta
from typing import Any

import pytest

from forebay.router.prompt.chat import Chat, TemplateError
from tests.chat_templates import NOW, TEMPLATES, WEATHER, template

PLAIN = template(TEMPLATES["plain"])
DATED = template(TEMPLATES["dated"])
HI = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello!"}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}}]}
RULES = {"role": "system", "content": "Be kind."}


def test_a_chat_is_rendered_as_its_template_says() -> None:
    rendered = PLAIN.render(Chat([RULES, HI, HELLO, HI]), NOW)
    assert rendered.text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.exact
    assert [(mark.messages, mark.start) for mark in rendered.marks] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert all(rendered.text[mark.length :].startswith("<|im_start|>") for mark in rendered.marks)


def test_a_mark_behind_a_look_ahead_needs_the_message_looked_at() -> None:
    messages = [HI, {"role": "tool", "content": "r"}, {"role": "tool", "content": "s"}]
    marks = template(TEMPLATES["tools"]).render(Chat(messages), NOW).marks
    assert [(mark.messages, mark.start) for mark in marks] == [(1, 1), (3, 2)]


def test_media_end_what_is_known_but_not_what_came_before() -> None:
    rendered = PLAIN.render(Chat([RULES, HI, HELLO, IMAGE, HI]), NOW)
    assert not rendered.exact
    assert rendered.text == PLAIN.render(Chat([RULES, HI, HELLO], add_generation_prompt=False), NOW).text
    (*_, mark) = rendered.marks
    assert mark.start == 3
    resumed = PLAIN.resume(mark, Chat([IMAGE, HI]), NOW)
    assert resumed is not None
    assert (resumed.text, resumed.exact) == ("", False)


def test_a_template_that_looks_at_media_first_claims_what_it_wrote_by_then() -> None:
    rendered = template(TEMPLATES["thinking"]).render(Chat([HI, IMAGE], tools=[WEATHER]), NOW)
    assert rendered.text.startswith("<tools>{")
    assert rendered.text.endswith("</tools>")
    assert not rendered.exact


def test_a_mark_holds_while_the_date_does_that_it_was_made_with() -> None:
    messages = [RULES, HI, HELLO, HI]
    mark = DATED.render(Chat(messages[:2]), NOW).marks[-1]
    assert DATED.resume(mark, Chat(messages[mark.start :]), NOW + timedelta(hours=11)) is not None
    assert DATED.resume(mark, Chat(messages[mark.start :]), NOW + timedelta(hours=12)) is None
    assert "Today: 08 May 2031" in DATED.render(Chat(messages), NOW + timedelta(days=1)).text


def test_templates_are_told_local_time_without_a_zone() -> None:
    compiled = template("{{ strftime_now('%H:%M%z%Z') }}")
    assert compiled.render(Chat([HI]), NOW.replace(tzinfo=UTC)).text == "12:30"


def test_marks_hold_where_no_date_was_asked_for() -> None:
    mark = PLAIN.render(Chat([HI]), NOW).marks[-1]
    assert PLAIN.resume(mark, Chat([HELLO]), NOW + timedelta(days=400)) is not None


@pytest.mark.parametrize("name", ["plain", "tools", "parts"])
@pytest.mark.parametrize("said", ["Once upon", "Once upon ", "  Once\n", ""])
def test_the_last_message_is_continued_where_it_ends(name: str, said: str) -> None:
    compiled = template(TEMPLATES[name])
    options: dict[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}
    messages = [HI, HELLO, HI, {"role": "assistant", "content": said}]
    rendered = compiled.render(Chat(messages, **options), NOW)
    assert rendered.text.rstrip().endswith((said.strip(), "assistant", "model"))
    assert max(mark.start for mark in rendered.marks) == 3
    for mark in rendered.marks:
        resumed = compiled.resume(mark, Chat(messages[mark.start :], **options), NOW)
        assert resumed is not None
        assert rendered.text[: mark.length] + resumed.text == rendered.text


def test_a_developer_at_the_front_does_not_keep_a_rendering_from_going_on() -> None:
    messages = [{"role": "developer", "content": "Be brief."}, HI, HELLO, HI]
    whole = PLAIN.render(Chat(messages), NOW)
    assert whole.text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    mark = PLAIN.render(Chat(messages[:2]), NOW).marks[-1]
    resumed = PLAIN.resume(mark, Chat(messages[2:]), NOW)
    assert resumed is not None
    assert whole.text[: mark.length] + resumed.text == whole.text
    assert PLAIN.resume(mark, Chat([HELLO, RULES, HI]), NOW) is None


def test_a_mark_is_of_no_use_without_a_message_behind_those_it_needs() -> None:
    mark = PLAIN.render(Chat([HI]), NOW).marks[-1]
    assert PLAIN.resume(mark, Chat([]), NOW) is None


def test_a_mark_belongs_to_its_template() -> None:
    mark = PLAIN.render(Chat([HI]), NOW).marks[-1]
    with pytest.raises(ValueError, match="another template's"):
        DATED.resume(mark, Chat([HELLO]), NOW)


def test_messages_are_left_as_they_were() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asked: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [HI, asked, {"role": "developer", "content": "d"}]
    chat = Chat(messages, tools=[WEATHER], continue_final_message=True, add_generation_prompt=False)
    before = repr(chat)
    template(TEMPLATES["thinking"]).render(chat, NOW)
    assert repr(chat) == before


CONTINUED = Chat([HI], continue_final_message=True, add_generation_prompt=False)


@pytest.mark.parametrize(
    ("source", "chat", "says"),
    [
        (PLAIN, Chat([HI], continue_final_message=True), "cannot both be set"),
        (template("{{ messages | length }}"), CONTINUED, "no content"),
        (template("{{ 'content' }}"), CONTINUED, "does not write"),
    ],
)
def test_what_engines_refuse_as_well_is_told_apart(source: Any, chat: Chat, says: str) -> None:
    with pytest.raises(TemplateError, match=says) as caught:
        source.render(chat, NOW)
    assert caught.value.refused


def test_other_failures_say_what_the_template_ran_into() -> None:
    with pytest.raises(TemplateError, match=r"^the chat template fails: 'missing' is undefined") as caught:
        template("{{ messages[0].content + missing }}").render(Chat([HI]), NOW)
    assert not caught.value.refused


def test_a_mark_can_be_shown() -> None:
    long = [{"role": ("user", "assistant")[at % 2], "content": "x" * 1000} for at in range(9)]
    rendered = template(TEMPLATES["thinking"]).render(Chat(long), NOW)
    assert "<Mark before message 8, at character" in repr(rendered)


def test_memory_of_marks_does_not_grow_with_the_messages_before_them() -> None:
    long = [{"role": ("user", "assistant")[at % 2], "content": "x" * 10_000} for at in range(100)]
    for name in sorted(TEMPLATES.keys() - {"acausal", "strict", "stateful"}):
        marks = template(TEMPLATES[name]).render(Chat(long), NOW).marks
        assert marks[-1].size < 30_000, name
