"""Templates that pry: nothing is to be had but what they are given, and that cannot be changed."""

import pytest

from forebay.router.prompt.chat import Chat, TemplateError
from tests.chat_templates import NOW, template

PRYING = [
    "''.__class__.__mro__",
    "''['__class__'].__mro__",
    "(''|attr('__class__')).__mro__",
    "messages.__class__.__init__.__globals__",
    "messages._messages.given",
    "messages[0].__class__()",
    "namespace.__init__.__globals__",
    "namespace().__class__()",
    "cycler.__init__.__globals__.os",
    "raise_exception.__globals__.json",
    "strftime_now.__globals__.json",
    "range.__globals__.types",
    "self.__init__.__globals__",
    "self._TemplateReference__context.environment",
    "tools[0].pop('type')",
    "tools[0].clear()",
    "tools.append(1)",
    "messages.append(1)",
    "messages[0].update({'role': 'system'})",
    "messages[0].setdefault('x', 1)",
    "''.encode().hex()",
    "'x'.translate({120: 'y'})",
    "'a\t'.expandtabs(10**9)",
    "(5).to_bytes(10**9, 'big')",
    "true.to_bytes(10**9, 'big')",
    "{}.fromkeys(range(99999))",
    "messages|map('#value')|list",
    "messages|map('#begin', {})|list",
    "'x'|map('#made')|list",
    "lipsum(n=10**9)",
    "dict.mro()",
    "messages[0].content()",
    "'{0.__class__.__mro__}'.format('')",
    "'{0[a].__init__}'.format_map({'0': 1})",
    "('<b>'|e).join(['a'])",
    "messages|random",
    "messages|pprint",
]


@pytest.mark.parametrize("pry", PRYING)
@pytest.mark.parametrize("frame", ["{{ X }}", "{% for m in messages %}{{ X }}{% endfor %}"])
def test_nothing_is_reached_but_what_was_given(pry: str, frame: str) -> None:
    chat = Chat([{"role": "user", "content": "Hello"}], tools=[{"type": "function", "function": {"name": "f"}}])
    before = repr(chat)
    with pytest.raises(TemplateError):
        template(frame.replace("X", pry)).render(chat, NOW)
    assert repr(chat) == before


def test_methods_of_texts_and_lists_that_change_nothing_work() -> None:
    source = """{% set m = messages[0] %}{{ m.content.strip().split('|') | join(',') }};{{ m.get('x', 'none') }}
{%- for k, v in m.items() %}{{ k }}={{ v | length }} {% endfor %}{{ '{:>5}|{a[b]}'.format(7, a={'b': 'c'}) }}
{{- '%s-%03d' % ('a', 7) }}{{ [m] | map('tojson') | join }}
{{- [1, 2] | select('in', [2]) | list }}{{ [1, 2, 1].count(1) }}{{ 'ab'.replace('a', 'A').rjust(4) }}
{{- 'a' * 3 }}{{ 2 ** 5 }}"""
    rendered = template(source).render(Chat([{"role": "user", "content": " a|b "}]), NOW)
    assert rendered.text == 'a,b;nonerole=4 content=5     7|ca-007{"role": "user", "content": " a|b "}[2]2  Abaaa32'
