"""The templates that real models come with: rendered as Jinja does, and gone on with from marks."""

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.prompt.chat import Chat
from forebay.router.prompt.template import Template
from tests.chat_marks import check_fork, check_growth, check_plain
from tests.chat_templates import CONVERSATIONS, NOW, OPTIONS, template
from tests.tokenizers import directory, examples

FAMILIES = ("llama3_1", "qwen3", "gemma3", "deepseek_v3")


@cache
def source(family: str) -> str:
    return str(json.loads((directory(family) / "tokenizer_config.json").read_text())["chat_template"])


@cache
def compiled(family: str) -> Template:
    return template(source(family))


@pytest.mark.parametrize("family", FAMILIES)
@given(CONVERSATIONS, CONVERSATIONS, OPTIONS, st.data())
@examples(40, 2000)
def test_marks_of_real_templates_are_right(
    family: str, first: list[dict[str, Any]], second: list[dict[str, Any]], options: dict[str, Any], data: st.DataObject
) -> None:
    check_fork(compiled(family), first, second, options, data)
    check_growth(compiled(family), [*first, *second], options, data)
    check_plain(compiled(family), source(family), first, options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_long_conversation_goes_on_from_its_end(family: str) -> None:
    talk = [{"role": ("user", "assistant")[at % 2], "content": f"message {at} " + "x" * 300} for at in range(41)]
    mark = compiled(family).render(Chat(talk[:39]), NOW).marks[-1]
    assert mark.start == 39
    assert compiled(family).resume(mark, Chat(talk[39:]), NOW) is not None
