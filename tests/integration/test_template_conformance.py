"""The text of a chat is what the engine makes of it: vLLM's own code and transformers' as the other side."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.prompt.chat import Chat, TemplateError
from forebay.router.prompt.template import Template
from tests.chat_templates import CONVERSATIONS, NOW, OPTIONS, TEMPLATES, WEATHER, call
from tests.tokenizers import directory, examples

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".forebay/engines/vllm/bin/python"
MODEL = ROOT / ".forebay/models/SmolLM2-135M-Instruct"
SMOLLM2 = MODEL / "chat_template.jinja"
EVERYTHING = """{{ messages | tojson }}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ enable_thinking }}{{ reasoning_effort }}{{ extra }}
{{- add_generation_prompt }}{{ documents }}{{ bos_token }}{{ tools is none }}"""
EVERY_PART = "{% for m in messages %}{% for part in m.content %}{% endfor %}{% endfor %}" + EVERYTHING
KNOWS_DEVELOPERS = EVERYTHING + "{# 'developer' #}"
SHAPES = {"everything": EVERYTHING, "every part": EVERY_PART, "knows developers": KNOWS_DEVELOPERS}


class Oracle:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._in, self._out = process.stdin, process.stdout
        self.special_tokens: dict[str, str] = json.loads(self._out.readline())

    def text(self, template: str, body: dict[str, Any]) -> str | None:
        """None for a request that the engine refuses."""
        print(json.dumps({"template": template, "body": body, "now": NOW.isoformat()}), file=self._in, flush=True)
        answer: dict[str, str] = json.loads(self._out.readline())
        return answer.get("text")


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    if not PYTHON.exists() or not SMOLLM2.exists():
        pytest.skip("needs the engine's environment and SmolLM2: forebay up --prepare")
    command = [str(PYTHON), str(Path(__file__).with_name("template_oracle.py")), str(MODEL)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        yield Oracle(process)
        process.kill()


def ours(source: str, oracle: Oracle, body: dict[str, Any]) -> tuple[str | None, bool]:
    """The text, and whether it is said to be exact; None for a request that is refused."""
    template = Template(source, special_tokens=oracle.special_tokens, clock=lambda: 0.0)
    chat = Chat(
        body["messages"],
        tools=body.get("tools"),
        tool_choice=body.get("tool_choice"),
        template_kwargs=body.get("chat_template_kwargs", {}),
        reasoning_effort=body.get("reasoning_effort"),
        add_generation_prompt=body.get("add_generation_prompt", True),
        continue_final_message=body.get("continue_final_message", False),
    )
    try:
        rendered = template.render(chat, NOW)
    except TemplateError:
        return None, True
    return rendered.text, rendered.exact


def check(source: str, oracle: Oracle, body: dict[str, Any]) -> None:
    text, exact = ours(source, oracle, body)
    theirs = oracle.text(source, body)
    if exact:
        assert text == theirs
    else:
        assert text is not None
        assert theirs is None or theirs.startswith(text)


ODD_MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hi", "name": "bob", "foo": 1},
    {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"t": 1}}],
    },
    {"role": "user", "content": []},
    {"role": "user"},
    {"role": "user", "content": "hi", "task": "t", "reasoning": "r"},
    {"role": "user", "content": [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": "", "closed": True}]},
    {"role": "user", "content": [{"type": "tool_reference", "name": "n"}, {"type": "text", "text": "x"}]},
    {"role": "assistant", "content": None, "tool_calls": [call(arguments='{"b": 1, "a": 1.50, "ü": [null]}')]},
    {
        "role": "assistant",
        "tool_calls": [{"type": "function", "id": "c", "index": 0, "function": call()["function"]}],
    },
    {
        "role": "assistant",
        "content": "x",
        "tool_calls": [call(arguments=text) for text in ("no", "[1]", "", "3", "null")],
    },
    {
        "role": "assistant",
        "content": "x",
        "tool_calls": [call(arguments='{"a": 1e400, "b": 123456789012345678901234}')],
    },
    {"role": "assistant", "content": "x", "tool_calls": []},
    {"role": "assistant", "content": "x", "tool_calls": None, "refusal": "no", "audio": None, "function_call": None},
    {"role": "assistant", "content": "x", "reasoning_content": "hmm", "name": "me"},
    {"role": "assistant", "content": "x", "reasoning": "hmm", "reasoning_content": "other"},
    {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "no", "closed": True}, {"type": "text", "text": "t"}],
    },
    {"role": "tool", "content": "res", "tool_call_id": "c1", "name": "f"},
    {
        "role": "tool",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "x": 1}],
        "tool_call_id": "c1",
    },
    {
        "role": "tool",
        "content": [{"type": "text", "text": "a"}, {"type": "tool_reference", "name": "b"}],
        "tool_call_id": "c",
    },
    {"role": "tool", "content": "res"},
    {"role": "tool", "content": [], "tool_call_id": "c1"},
    {"role": "function", "content": "r", "name": "f"},
    {"role": "system", "content": "x-anthropic-billing-header: abc\nrest\nmore"},
    {"role": "system", "content": "x-anthropic-billing-header: abc"},
    {"role": "system", "content": "x-anthropic-billing-header: abc", "name": "x"},
    {
        "role": "system",
        "content": [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "B"}],
    },
    {"role": "developer", "content": "dev", "name": "x"},
    {
        "role": "developer",
        "content": "dev",
        "tools": [{"type": "function", "function": {"parameters": {}, "name": "f"}}],
    },
    # refused by the engine
    *({"role": role, "content": None} for role in ("user", "assistant", "system", "developer", "tool")),
    {"role": "function", "content": None, "name": "f"},
    {"role": "function", "content": "x"},
    {"role": "user", "content": [{"type": "input_text", "text": "t"}]},
    {"role": "user", "content": [{"text": "t"}]},
    {"role": "user", "content": [{"type": "text", "text": None}]},
    {"role": "assistant", "content": "x", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "f"}}]},
    {"role": "assistant", "content": "x", "tool_calls": [{"type": "function", "function": {"name": "f"}}]},
    {"role": "assistant", "content": "x", "tool_calls": "f"},
    {"role": "assistant", "content": "x", "tool_calls": [call(arguments="[" * 100_000)]},
    {"role": "assistant", "content": "x", "tool_calls": [call(arguments="1" * 10_000)]},
    # with media
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
]


@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("message", ODD_MESSAGES, ids=lambda message: json.dumps(message)[:60])
def test_messages_reach_the_template_as_in_the_engine(oracle: Oracle, source: str, message: dict[str, Any]) -> None:
    before = {"role": "system", "content": "Rules."}
    check(source, oracle, {"messages": [message]})
    check(source, oracle, {"messages": [before, {"role": "user", "content": "Hi"}, message]})


@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES)
@given(st.lists(st.sampled_from(ODD_MESSAGES), min_size=1, max_size=5))
@examples(40, 1000)
def test_any_of_them_together(oracle: Oracle, source: str, messages: list[dict[str, Any]]) -> None:
    check(source, oracle, {"messages": messages})


BODIES: list[dict[str, Any]] = [
    {"tools": [WEATHER]},
    {"tools": [{"function": {"name": "g", "description": "d"}}]},
    {
        "tools": [
            {
                "type": "function",
                "function": {"parameters": {"b": 1, "a": {}}, "name": "f", "strict": True, "x": 1},
                "y": 2,
            }
        ]
    },
    {"tools": [{"type": "function", "function": {"name": "g", "defer_loading": True}}]},
    {"tools": [{"type": "function", "function": {"name": "g"}, "defer_loading": False}]},
    {"tools": [WEATHER], "tool_choice": "none"},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    {"tools": [WEATHER], "chat_template_kwargs": {"tools": [{"raw": True}]}},
    {"tools": []},
    {"tools": [{"type": "function", "function": {"name": 5}}]},
    {"reasoning_effort": "high"},
    {"reasoning_effort": "none"},
    {"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "high"}},
    {"chat_template_kwargs": {"extra": "auto", "enable_thinking": None, "add_generation_prompt": False}},
    {"chat_template_kwargs": {"extra": {"a": [1, 2.0]}, "bos_token": "!", "documents": [{"title": "t", "text": "x"}]}},
    {"chat_template_kwargs": {"documents": ["no object"]}},
    {"chat_template_kwargs": {"range": 5, "namespace": {}, "padding": True, "max_length": 3, "raise_exception": "no"}},
    {"chat_template_kwargs": {"continue_final_message": True}},
    {"chat_template_kwargs": {"return_assistant_tokens_mask": True}},
    {"chat_template_kwargs": {"conversation": []}},
    {"add_generation_prompt": False},
    {"continue_final_message": True},
    {"continue_final_message": True, "add_generation_prompt": False},
]


@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("members", BODIES, ids=lambda members: json.dumps(members)[:70])
def test_other_members_reach_the_template_as_in_the_engine(
    oracle: Oracle, source: str, members: dict[str, Any]
) -> None:
    check(source, oracle, {"messages": [{"role": "user", "content": "x"}], **members})


def source_of(name: str) -> str:
    if name in TEMPLATES:
        return TEMPLATES[name]
    if name == "smollm2":
        return SMOLLM2.read_text()
    return str(json.loads((directory(name) / "tokenizer_config.json").read_text())["chat_template"])


@pytest.mark.parametrize("name", [*TEMPLATES, "smollm2", "llama3_1", "qwen3", "gemma3", "deepseek_v3"])
@given(CONVERSATIONS, OPTIONS, st.booleans())
@examples(40, 1000)
def test_whole_conversations_are_rendered_as_by_the_engine(
    oracle: Oracle, name: str, messages: list[dict[str, Any]], options: dict[str, Any], continued: bool
) -> None:
    body = {"messages": messages, **options}
    if "template_kwargs" in body:
        body["chat_template_kwargs"] = body.pop("template_kwargs")
    if continued:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    check(source_of(name), oracle, body)


_LOOP = "{% for c in CONTENT %}{% endfor %}"
_MACRO = "{% macro f(SIGNATURE) %}" + _LOOP + "{% endmacro %}{% for m in messages %}{{ f(GIVEN) }}{% endfor %}"


def _over(content: str, messages: str = "messages", before: str = "") -> str:
    return f"{before}{{% for m in {messages} %}}" + _LOOP.replace("CONTENT", content) + "{% endfor %}"


def _macro(signature: str, content: str, given: str) -> str:
    return _MACRO.replace("SIGNATURE", signature).replace("CONTENT", content).replace("GIVEN", given)


FORMATS = [
    _over("m['content']"),
    _over("m.content | list"),
    _over("m.content[1:]", "messages[1:]"),
    _over("m.content", "rest", "{% set talk = messages %}{% set rest = talk[1:] %}"),
    _over("content", before="{% set content = m.content %}"),
    _macro("x", "x", "m.content"),
    _macro("a, x", "x", "1, x=m.content"),
    _macro("content", "content", "m.role"),
    _macro("a", "a", "m.role"),
    _over("m.content").replace("c in", "k, v in"),
    _over("m.content") + _over("m.content").replace("c in", "k, v in"),
    "{% for a, b in messages %}{% endfor %}{% for content in content %}{% endfor %}",
    _over("m.content", before="{% set a, b = messages %}"),
    _over("m.content", "others"),
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% generation %}{% for c in m.content %}{% endfor %}{% endgeneration %}{% endfor %}",
]


@pytest.mark.parametrize("loops", FORMATS)
def test_content_has_the_form_that_the_engine_finds_the_template_wants(oracle: Oracle, loops: str) -> None:
    source = "{% if false %}" + loops + "{% endif %}{{ messages | tojson }}"
    check(source, oracle, {"messages": [{"role": "user", "content": "x"}]})
