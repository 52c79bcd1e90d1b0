"""Templates that loop, grow or pry: each ends in an error, soon, whatever they try."""

from collections.abc import Iterator
from typing import Any

import pytest

from forebay.router.prompt.chat import Chat, TemplateError
from forebay.router.prompt.template_limits import Limits
from tests.chat_templates import NOW, WEATHER, template

LIMITS = Limits(chars=100_000, made=2_000_000, steps=20_000, seconds=60)
CHAT = Chat([{"role": "user", "content": "Hello, {world} %s"}], tools=[WEATHER])


def render(source: str, chat: Chat = CHAT, **kwargs: Any) -> str:
    return template(source, limits=LIMITS, **kwargs).render(chat, NOW).text


ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for x in [1] recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{g()}}{% endcall %}{% endmacro %}{{g()}}",
    "{{ range(99999) | map('string') | list | length }}",
    "{{ range(99999) | map('center', 5000) | list | length }}",
    "{{ range(99999) | map(attribute='x', default='a' * 5000) | map('upper') | list | length }}",
    "{{ range(99999) | select('odd') | map('string') | join }}",
    "{% for x in 'ab' * 40000 %}{% endfor %}",
    "{{ range(99999) | batch(2) | list | length }}",
]
VAST = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [0] * 10**9 }}",
    "{{ (1, 2) * 10**9 }}",
    "{{ 10 ** (10 ** 9) }}",
    "{{ (-10) ** (10 ** 9) }}",
    "{% set ns = namespace(n=3) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a' | center(width=10**9) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'.rjust(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ ('a\n' * 1000) | indent(10**6) }}",
    "{{ ('a\n' * 1000) | indent('  ' * 10000) }}",
    "{{ '%1000000000d' % 5 }}",
    "{{ '%*d' % (10**9, 5) }}",
    "{{ '%.1000000000f' % 5 }}",
    "{{ '%(a)1000000000d' % {'a': 5} }}",
    "{{ '%1000000000d' | format(5) }}",
    "{{ ('%s' * 2000) % ('a' * 1000) }}",
    "{{ ('%(' * 50000) % {} }}",
    "{{ '{:1000000000}'.format(5) }}",
    "{{ '{:{w}}'.format(5, w=10**9) }}",
    "{{ '{x:1000000000}'.format_map({'x': 1}) }}",
    "{% set f = 'a'.ljust %}{{ f(10**9) }}",
    "{{ ('a' * 10000).replace('a', 'b' * 10000) }}",
    "{{ ('a' * 10000) | replace('a', 'b' * 10000) }}",
    "{{ ('a' * 10000).replace('', 'b' * 10000) }}",
    "{{ ('a' * 10000).join('b' * 10000) }}",
    "{{ ('b' * 10000) | join('a' * 10000) }}",
    "{{ range(10**9) | list }}",
    "{{ range(99) | batch(10**9, 0) | list }}",
    "{{ range(99) | slice(10**9) | list }}",
    "{{ 1.5 | round(10**9) }}",
    "{{ 1.5 | round(10**9, 'ceil') }}",
    "{{ [[1]] | sum(start=[]) }}",
    "{{ tools | tojson(indent=10**9) }}",
    "{{ tools | tojson(indent=' ' * 1000) }}",
    "{{ tools | tojson(separators=(' ' * 1000, ' ')) }}",
    "{{ strftime_now('%d' * 1000) }}",
    "{% for i in range(999) %}{{ 'a' * 1000 }}{% endfor %}",
    "{% macro f() %}{% for i in range(999) %}{{ 'a' * 1000 }}{% endfor %}{% endmacro %}{{ f() }}",
    "{% set x %}{% for i in range(999) %}{{ 'a' * 1000 }}{% endfor %}{% endset %}{{ x | length }}",
    "{% filter upper %}{% for i in range(999) %}{{ 'a' * 1000 }}{% endfor %}{% endfilter %}",
    "{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('ab') }}",
    "{% macro f(x) %}{{ f([x, x]) }}{% endmacro %}{{ f('ab') }}",
    "{% set l = range(999) | list %}{% for i in l %}{% for j in l[:15] %}{{ l * 9 }}{% endfor %}{% endfor %}",
]
GROWING = [
    "ns.x + ns.x",
    "ns.x ~ ns.x",
    "[ns.x, ns.x]",
    "(ns.x, ns.x)",
    "{'a': ns.x, 'b': ns.x}",
    "dict(a=ns.x, b=ns.x)",
]
GROWING += ["[ns.x] + [ns.x]", "namespace(a=ns.x, b=ns.x)", "[ns.x, ns.x] | join", "'%s%s' % (ns.x, ns.x)"]
GROWING += [
    "'{}{}'.format(ns.x, ns.x)",
    "ns.x.replace('a', ns.x)",
    "''.join([ns.x, ns.x])",
    "[ns.x] * 2",
    "[ns.x] | list * 2",
]
VAST += [
    "{% set ns = namespace(x='aa') %}{% for i in range(200) %}{% set ns.x = " + step + " %}{% endfor %}{{ ns.x }}"
    for step in GROWING
]


@pytest.mark.parametrize("source", ENDLESS + VAST)
def test_what_would_not_end_is_stopped(source: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source)
    assert not caught.value.refused
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("source", ENDLESS[:6])
def test_time_is_bounded_by_the_clock(source: str) -> None:
    def ticking() -> Iterator[float]:
        at = 0.0
        while True:
            at += 0.001
            yield at

    clock = ticking()
    compiled = template(source, clock=lambda: next(clock), limits=Limits(seconds=0.1))
    with pytest.raises(TemplateError, match=r"takes longer than 0.1 s|too deeply"):
        compiled.render(CHAT, NOW)


BROKEN = [
    "{% for m in messages %}",
    "{{ 'a }}",
    "{% do x %}",
    "{% include 'x' %}",
    "{% import 'x' as x %}",
    "{% from 'x' import y %}",
    "{% extends 'x' %}",
    "{% block x %}{% endblock %}",
    "{% autoescape true %}{% endautoescape %}",
    "{{ x | nofilter }}",
    "{{ x is notest }}",
    "{{ x | #made }}",
    "{{ __forebay }}",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "[" * 150 + "]" * 150 + " }}",
    "{{ " + "not " * 50_000 + "1 }}",
    "{% if x %}" * 3000 + "{% endif %}" * 3000,
    "{% for x in y %}" * 40 + "{% endfor %}" * 40,
    "{% break %}",
    "x" * 200_000,
]


@pytest.mark.parametrize("source", BROKEN, ids=[source[:30] for source in BROKEN])
def test_a_template_that_cannot_be_compiled_says_so(source: str) -> None:
    with pytest.raises(TemplateError, match="the chat template"):
        template(source)


def test_what_the_template_says_itself_is_passed_on() -> None:
    with pytest.raises(TemplateError, match=r"^Roles must alternate\.$") as caught:
        render("{% for m in messages %}{{ raise_exception('Roles must alternate.') }}{% endfor %}")
    assert caught.value.refused


@pytest.mark.parametrize("content", ["</think>" * 2_000_000, " a" * 8_000_000, "\n" * 16_000_000])
def test_a_message_made_to_be_taken_apart_is_stopped(content: str) -> None:
    source = (
        "{% for m in messages %}{{ m.content.split('</think>') | length }}{{ m.content.split() | length }}{% endfor %}"
    )
    source += "{{ messages[0].content.splitlines() | length }}{{ messages[0].content | list | length }}"
    compiled = template(source, limits=Limits(made=1 << 28))
    with pytest.raises(TemplateError, match=r"makes a text|takes a text|makes texts"):
        compiled.render(Chat([{"role": "user", "content": content}]), NOW)


def test_tools_as_deep_as_json_allows_are_written() -> None:
    deep: dict[str, Any] = {}
    for _ in range(190):
        deep = {"a": deep}
    tools = [{"type": "function", "function": {"name": "f", "parameters": deep}}]
    source = (
        "{{ tools | tojson }}{% macro f(x) %}{% for k, v in x.items() %}{{ k }}{{ f(v) }}{% endfor %}{% endmacro %}"
    )
    assert render(source, Chat(CHAT.messages, tools=tools)).count('"a"') == 190
    with pytest.raises(TemplateError, match="too deeply"):
        render(source + "{{ f(tools[0].function.parameters) }}", Chat(CHAT.messages, tools=tools))
