"""What has to hold of every mark of every template."""

from typing import Any

from hypothesis import strategies as st

from forebay.router.prompt.causal_marks import Mark
from forebay.router.prompt.chat import Chat, Rendered, TemplateError
from forebay.router.prompt.template import Template
from tests.chat_templates import NOW, plainly

Messages = list[dict[str, Any]]
Options = dict[str, Any]


def whole(compiled: Template, messages: Messages, options: Options) -> Rendered | None:
    try:
        return compiled.render(Chat(messages, **options), NOW)
    except TemplateError:
        return None


def check_fork(compiled: Template, first: Messages, second: Messages, options: Options, data: st.DataObject) -> None:
    """Marks of a conversation's beginning are right for the conversation, and for another with that beginning."""
    begun = first[: data.draw(st.integers(1, len(first)))]
    fork = [*first[: data.draw(st.integers(1, len(first)))], *second]
    started = whole(compiled, begun, options)
    if started is None:
        return
    for target in (first, fork):
        expected = whole(compiled, target, options)
        for mark in started.marks:
            if mark.messages <= _shared(begun, target) and mark.start < len(target):
                _check_resumed(compiled, mark, started.text, target, options, expected)


def check_growth(compiled: Template, messages: Messages, options: Options, data: st.DataObject) -> None:
    """A conversation that is only ever gone on with, by marks of renderings that were gone on with themselves. At times
    some of its end is taken back, and it takes another turn."""
    marks: list[Mark] = []
    talk: Messages = []
    text, at = "", 0
    while at < len(messages):
        new = messages[at : data.draw(st.integers(at + 1, len(messages)))]
        at += len(new)
        shared = len(talk) - data.draw(st.sampled_from([0, 0, 1, 2])) if talk else 0
        talk = [*talk[: max(0, shared)], *new]
        expected = whole(compiled, talk, options)
        resumed = None
        if usable := [mark for mark in marks if mark.messages <= shared and mark.start < len(talk)]:
            mark = data.draw(st.sampled_from(usable))
            resumed = _check_resumed(compiled, mark, text, talk, options, expected)
        if resumed is not None:
            marks = [*(one for one in marks if one.start <= mark.start), *resumed.marks]
        else:
            marks = list(expected.marks) if expected else []
        text = expected.text if expected else ""


def check_plain(compiled: Template, source: str, messages: Messages, options: Options) -> None:
    """A whole rendering is what Jinja makes of the same."""
    rendered = whole(compiled, messages, options)
    assert (rendered and rendered.text) == plainly(source, Chat(messages, **options), compiled.form)


def _check_resumed(
    compiled: Template, mark: Mark, text: str, target: Messages, options: Options, expected: Rendered | None
) -> Rendered | None:
    resumed = compiled.resume(mark, Chat(target[mark.start :], **options), NOW)
    if resumed is None:
        return None
    assert expected is not None
    assert resumed.exact
    assert text[: mark.length] + resumed.text == expected.text
    assert resumed.start == mark.length
    for later in resumed.marks:
        assert later.start > mark.start
        assert 0 <= later.length - mark.length <= len(resumed.text)
    return resumed


def _shared(one: Messages, other: Messages) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same
