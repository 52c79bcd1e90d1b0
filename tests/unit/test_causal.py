"""What a rendering is noted to depend on."""

import json
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.prompt import causal
from forebay.router.prompt.causal import (
    FOREVER,
    Halt,
    Messages,
    NeedWhole,
    View,
    skeleton,
    stands,
)
from forebay.router.prompt.causal_marks import LARGE, OPAQUE, UNSET, kept, same
from forebay.router.prompt.causal_opening import interval
from forebay.router.prompt.chat import Chat
from tests.chat_templates import NOW, template
from tests.tokenizers import examples

TALK = [{"role": "user", "content": str(at)} for at in range(5)]
COMPARE = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<="}
CHECK = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
}


def needed(asked: Any) -> int:
    messages = Messages(TALK)
    asked(View(messages))
    return messages.needed


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (lambda view: view[0], 1),
        (lambda view: view[3], 4),
        (lambda view: view[1:], 0),
        (lambda view: view[1:][0], 2),
        (lambda view: view[1:][1:][0], 3),
        (bool, 0),
        (lambda view: bool(view[2:]), 2),
        (lambda view: next(iter(view)), 1),
        (lambda view: [one for one, _ in zip(view, range(2), strict=False)], 3),
        (lambda view: view[:2], FOREVER),
        (lambda view: view[-1], FOREVER),
        (lambda view: view[7:], FOREVER),
        (lambda view: bool(view[5:]), FOREVER),
        (len, FOREVER),
        (list, FOREVER),
        (lambda view: next(reversed(view)), FOREVER),
        (repr, FOREVER),
        (lambda view: view == TALK, FOREVER),
        (lambda view: TALK[4] in view, 5),
    ],
)
def test_each_question_needs_the_messages_that_its_answer_depends_on(asked: Any, expected: int) -> None:
    assert needed(asked) == expected


@given(st.lists(st.integers(0, 3), max_size=6), st.integers(-8, 8) | st.none(), st.integers(-8, 8) | st.none(),
       st.sampled_from([None, 1, 2, -1]), st.integers(-8, 8))  # fmt: skip
def test_a_view_answers_as_the_list_would(
    roles: list[int], start: int | None, stop: int | None, step: int | None, at: int
) -> None:
    plain = [{"role": str(role)} for role in roles]
    view, part = View(Messages(plain)), slice(start, stop, step)
    assert list(view[part]) == plain[part]
    assert (list(view), len(view), bool(view), list(reversed(view))) == (plain, len(plain), bool(plain), plain[::-1])
    if -len(plain) <= at < len(plain):
        assert view[at] == plain[at]
    else:
        with pytest.raises(IndexError):
            view[at]


@given(st.sampled_from(sorted(COMPARE)), st.integers(0, 7), st.integers(0, 6), st.integers(0, 2))
@examples(200, 2000)
def test_a_count_that_stands_does_so_for_every_conversation_with_the_messages_needed(
    comparison: str, total: int, bound: int, shift: int
) -> None:
    messages = Messages([{}] * (total + shift))
    outcome = stands(messages, comparison, shift, bound)
    if outcome is None:
        return
    for other in range(messages.needed + 1, 20):  # a mark is used where at least one message follows
        assert CHECK[comparison](other - shift, bound) == outcome
    assert CHECK[comparison](total, bound) == outcome


@given(st.integers(-3, 9), st.sampled_from(sorted(COMPARE)), st.integers(-3, 9))
@examples(200, 2000)
def test_an_interval_holds_only_values_with_the_same_outcome(index: int, comparison: str, value: int) -> None:
    least, most = interval(index, comparison, value)
    assert least <= value <= most
    for other in range(max(least, -9), min(most, 15) + 1):
        assert CHECK[comparison](index, other) == CHECK[comparison](index, value)


@pytest.mark.parametrize("comparison", COMPARE)
def test_a_count_in_a_template_needs_as_many_messages(comparison: str) -> None:
    source = "{% if messages | length OP 3 %}x{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
    source = source.replace("OP", COMPARE[comparison])
    compiled = template(source)
    started = compiled.render(Chat(TALK), NOW)
    for mark in started.marks:
        for total in range(mark.messages + 1, 6):
            resumed = compiled.resume(mark, Chat(TALK[mark.start : total]), NOW)
            expected = compiled.render(Chat(TALK[:total]), NOW)
            assert resumed is None or started.text[: mark.length] + resumed.text == expected.text


ASKED = ["str(h)", "len(h)", "iter(h)", "hash(h)", "repr(h)", "float(h)", "int(h)", "h == 'a'", "'a' == h", "'a' in h"]
ASKED += ["h in 'a'", "h in ['a']", "h + 'a'", "'a' + h", "'%s' % h", "f'{h}'", "h.split", "h[0]", "h < 'a'", "{h: 1}"]
ASKED += ["''.join([h])", "json.dumps([h])", "h * 2", "2 * h", "h != h", "reversed(h)", "h()", "-h", "sorted([h, h])"]


@pytest.mark.parametrize("asked", ASKED)
def test_what_is_hidden_tells_nothing(asked: str) -> None:
    for hidden in (causal.HIDDEN_TEXT, causal.HIDDEN_OTHER):
        with pytest.raises((NeedWhole, TypeError)):
            eval(asked, {"h": hidden, "json": json})
        assert hidden


def test_a_skeleton_keeps_what_is_short() -> None:
    message = {"role": "user", "content": "x" * 1000, "tool_calls": [{"id": "c"}], "name": None, "parts": []}
    bare = skeleton(message)
    assert bare["content"] is causal.HIDDEN_TEXT
    assert bare["tool_calls"] is causal.HIDDEN_OTHER
    assert (bare["role"], bare["name"], bare["parts"]) == ("user", None, [])


def test_earlier_messages_are_known_only_if_they_were_kept() -> None:
    messages = Messages(TALK[3:], first=3, earlier={2: TALK[2]})
    view = View(messages)
    assert (view[3], view[2], messages.total) == (TALK[3], TALK[2], 5)
    with pytest.raises(NeedWhole):
        view[0]


def test_nothing_is_claimed_behind_what_is_not_known() -> None:
    view = View(Messages(TALK, halt=2))
    assert view[1] == TALK[1]
    for asked in (lambda: view[2], lambda: view[-1], lambda: list(view)):
        with pytest.raises(Halt):
            asked()


def test_values_are_kept_if_nothing_can_change_them() -> None:
    assert kept({"a": [1, ("b", None)]}) == {"a": [1, ("b", None)]}
    assert kept(list(range(2000))) is LARGE
    cyclic: list[Any] = []
    cyclic.append(cyclic)
    assert [kept(value) for value in (iter([]), [iter([])], cyclic, object())] == [OPAQUE] * 4
    assert kept([{"content": causal.HIDDEN_TEXT}]) is LARGE
    assert kept(template("{{ x }}")._environment.undefined()) is UNSET


@pytest.mark.parametrize(("one", "other"), [(1, True), (0, 0.0), ([1], [True]), ({"a": 1}, {"a": 1.0}), ([1], (1,))])
def test_equal_values_that_are_written_differently_are_not_the_same(one: Any, other: Any) -> None:
    assert same(one, one)
    assert not same(one, other)
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
