"""Templates that do what nobody does: a rendering that goes on from a mark of theirs is right, or there is none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chat_marks import check_fork, check_growth, check_plain
from tests.chat_templates import CONVERSATIONS, OPTIONS, template
from tests.tokenizers import examples

LAST_USER = """{% set ns = namespace(q=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.q = loop.index0 %}{% endif %}{% endfor %}"""
MAIN = "{% for m in messages %}BODY{{ m.content }}|{% endfor %}"

TRICKS = {
    "generator": "{% set it = messages | map(attribute='role') %}{% for m in messages %}{{ it | first }}{% endfor %}",
    "cycler": "{% set c = cycler('a', 'b') %}{% for m in messages %}{{ c.next() }}{{ m.role }}{% endfor %}",
    "joiner": "{% set j = joiner(', ') %}{% for m in messages %}{{ j() }}{{ m.role }}{% endfor %}",
    "listed cycler": "{% set c = [cycler('a', 'b')] %}{% for m in messages %}{{ c[0].next() }}{{ m.role }}{% endfor %}",
    "alias": """{% set a = namespace(x=0) %}{% set b = a %}{% for m in messages %}{% set b.x = b.x + 1 %}{{ a.x }}
{{- m.role }}{% endfor %}""",
    "listed namespace": """{% set a = namespace(x=0) %}{% set l = [a] %}{% for m in messages %}{% for q in l %}
{%- set q.x = q.x + 1 %}{% endfor %}{{ a.x }}{{ m.role }}{% endfor %}""",
    "namespace in a namespace": """{% set a = namespace(x=0) %}{% set b = namespace(a=a) %}{% for m in messages %}
{%- set i = b.a %}{% set i.x = i.x + 1 %}{{ a.x }}{{ m.role }}{% endfor %}""",
    "namespace as an argument": """{% macro f(n) %}{% set n.x = n.x + 1 %}{{ n.x }}{% endmacro %}
{%- set a = namespace(x=0) %}{% for m in messages %}{{ f(a) }}{{ m.role }}{% endfor %}""",
    "namespace that is scanned and passed": """{% macro f(n) %}{% set n.x = n.x + 1 %}{{ n.x }}{% endmacro %}
{%- set a = namespace(x=0, q=0) %}{% for m in messages %}{% set a.q = a.q + 1 %}{% endfor %}
{%- for m in messages %}{{ f(a) }}{{ m.role }}{% if m.role == 'tool' %}{{ a.q }}{% endif %}{% endfor %}""",
    "length": MAIN.replace("BODY", "{% if m.role == 'tool' %}{{ loop.length }}{% endif %}"),
    "revindex": MAIN.replace("BODY", "{% if m.role == 'tool' %}{{ loop.revindex }}{{ loop.revindex0 }}{% endif %}"),
    "last": MAIN.replace("BODY", "{% if loop.last %}!{% endif %}"),
    "next": MAIN.replace("BODY", "{{ loop.nextitem.content if loop.nextitem is defined }}"),
    "previous": MAIN.replace("BODY", "{{ loop.previtem.role if loop.previtem is defined }}"),
    "previous content": MAIN.replace("BODY", "{{ (loop.previtem or {}).content }}"),
    "far back": MAIN.replace(
        "BODY", "{{ messages[loop.index0 - 3].content if loop.index0 > 2 }}{{ messages[1].role }}"
    ),
    "the end": MAIN.replace("BODY", "{% if m.role == 'tool' %}{{ messages[-1].role }}{{ messages | last }}{% endif %}"),
    "slices": MAIN.replace("BODY", "{{ messages[loop.index0:] | length }}{{ messages[:1] }}{{ messages[1:][0] }}"),
    "the end of a slice": MAIN.replace("BODY", "{{ messages[-2:] | map(attribute='role') | join }}"),
    "odd length": "{% if messages | length % 2 %}X{% endif %}" + MAIN.replace("BODY", ""),
    "length in a variable": "{% set n = messages | length %}"
    + MAIN.replace("BODY", "{% if m.role == 'tool' %}{{ n }}{% endif %}"),
    "length by steps": "".join(
        f"{{% if messages | length {op} 3 %}}{op}{{% endif %}}" for op in ("<", "<=", "==", "!=", ">=", ">")
    )
    + MAIN.replace("BODY", "{% if messages | count > 4 %}4{% endif %}{% if messages | length == 2 %}2{% endif %}"),
    "by its name": "{% set ns = namespace(x='') %}"
    + MAIN.replace("BODY", "{{ ns['x'] }}{% set ns.x = m.role %}{% set ns.y = ns['x'] %}{{ ns.z }}"),
    "kept message": "{% set ns = namespace(m={}) %}" + MAIN.replace("BODY", "{{ ns.m.content }}{% set ns.m = m %}"),
    "kept messages": "{% set ns = namespace(l=[]) %}"
    + MAIN.replace("BODY", "{{ ns.l | length }}{% set ns.l = ns.l + [m.role] %}"),
    "kept rest": "{% set ns = namespace(r=[]) %}"
    + MAIN.replace("BODY", "{{ ns.r }}{% set ns.r = messages[loop.index:][:1] %}"),
    "kept view": "{% set ns = namespace(r=[]) %}"
    + MAIN.replace("BODY", "{{ (ns.r or [{}])[0].role }}{% set ns.r = messages[loop.index0:] %}"),
    "kept undefined": "{% set ns = namespace() %}"
    + MAIN.replace("BODY", "{{ ns.u is defined }}{% set ns.u = m.name %}"),
    "kept true and one": "{% set ns = namespace(n=0) %}" + MAIN.replace("BODY", "{{ ns.n }}{% set ns.n = ns.n == 0 %}"),
    "shadow": "{% set c = 'P' %}{% for m in messages %}{{ c }}{% set c = m.content %}{{ c }}{% endfor %}{{ c }}",
    "set in a branch": MAIN.replace("BODY", "{% if m.role == 'user' %}{% set c = 1 %}{% endif %}{{ c }}") + "{{ c }}",
    "break": MAIN.replace("BODY", "{% if m.role == 'tool' %}{% break %}{% endif %}") + "{{ messages[0].role }}",
    "list": "{% set messages = messages | list %}" + MAIN.replace("BODY", "{{ loop.index0 }}"),
    "reversed": "{% set messages = messages[::-1] %}" + MAIN.replace("BODY", "{{ loop.last }}"),
    "rejected": "{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}"
    + MAIN.replace("BODY", ""),
    "sorted": "{% for m in messages | sort(attribute='role') %}{{ m.role }}{% endfor %}",
    "twice": MAIN.replace("BODY", "") + MAIN.replace("BODY", "{{ loop.first }}"),
    "from the third": "{{ messages[:2] | length }}{% for m in messages[2:] %}{{ loop.index }}{{ m.role }}{% endfor %}",
    "either": "{% set messages = messages[1:] if messages[0].role == 'system' else messages %}"
    + MAIN.replace("BODY", "{{ loop.first }}"),
    "filtered loop": "{% for m in messages if m.role != 'tool' %}{{ m.role }}{{ loop.index }}{% endfor %}",
    "else": "{% for m in messages[1:] %}{{ m.role }}{% else %}none{% endfor %}",
    "cycle": MAIN.replace(
        "BODY", "{{ loop.cycle('a', 'b', 'c') }}{{ loop.depth }}{{ loop.depth0 }}{{ loop['index'] }}"
    ),
    "changed": MAIN.replace("BODY", "{{ loop.changed(m.role) }}"),
    "bare loop": MAIN.replace(
        "BODY", "{% set outer = loop %}{% for x in [1] %}{{ outer.index }}{{ loop.index }}{% endfor %}"
    ),
    "inner loops": MAIN.replace(
        "BODY", "{% for x in [loop.index] %}{{ x }}{{ loop.last }}{% else %}{{ loop.last }}{% endfor %}{{ loop.index }}"
    ),
    "scan in a macro": """{% macro q() %}
{%- for m in messages %}{{ loop.index0 if m.role == 'user' }}{% endfor %}{% endmacro %}
{%- set at = q() %}{% for m in messages %}{% if m.role == 'tool' %}{{ at }}{% endif %}{{ m.role }}{% endfor %}""",
    "scan in a macro, late": """{% macro q() %}{% for m in messages %}{{ m.role }}{% endfor %}{% endmacro %}
{%- for m in messages %}{% if m.role == 'tool' %}{{ q() }}{% endif %}{{ m.role }}{% endfor %}""",
    "watched in a macro": LAST_USER
    + """{% macro f(i, d=ns.q) %}{{ 'old' if i < ns.q else d }}{% endmacro %}"""
    + MAIN.replace("BODY", "{{ f(loop.index0) if m.role == 'assistant' }}"),
    "watched in a call": LAST_USER
    + "{% macro f() %}{{ caller() }}{% endmacro %}"
    + MAIN.replace("BODY", "{% call f() %}{% if loop.index0 < ns.q %}old{% endif %}{% endcall %}"),
    "watched copy": LAST_USER + "{% set q = ns.q %}" + MAIN.replace("BODY", "{% if loop.index > q %}new{% endif %}"),
    "watched twice": LAST_USER
    + MAIN.replace("BODY", "{% if 0 < loop.index0 < ns.q %}old{% endif %}{{ ns.q if m.role == 'tool' }}"),
    "watched by number": LAST_USER + MAIN.replace("BODY", "{% if messages[ns.q].content == m.content %}it{% endif %}"),
    "watched and changed": LAST_USER + MAIN.replace("BODY", "{{ ns.q }}{% set ns.q = loop.index0 %}"),
    "watched text": LAST_USER.replace("loop.index0", "m.content")
    + MAIN.replace("BODY", "{% if loop.index0 == ns.q %}x{% endif %}{{ ns.q if m.role == 'tool' }}"),
    "watched list": "{% set u = messages | selectattr('role', 'equalto', 'user') | list %}"
    + MAIN.replace("BODY", "{% if m.role == 'tool' and u %}{{ u[-1].content }}{{ u | length }}{% endif %}"),
    "watched generator": "{% set u = messages | selectattr('role', 'equalto', 'user') %}{{ u | list | length > 99 }}"
    + MAIN.replace("BODY", "{% if m.role == 'tool' %}{{ u | first }}{% endif %}"),
    "steady, then a scan": "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[0].content }}{{ messages[1] }}"
    + LAST_USER
    + MAIN.replace("BODY", "{% if loop.index0 > ns.q %}new{% endif %}{{ tools | length if m.role == 'tool' }}"),
    "a scan, then steady": LAST_USER
    + "{% for t in tools or [] %}{% set x = t %}{{ x }}{% endfor %}{{ messages[0].content }}{{ add_generation_prompt }}"
    + MAIN.replace("BODY", "{% if loop.index0 > ns.q %}new{% endif %}"),
    "steady by macro": "{% macro f() %}{{ messages | length }}{% endmacro %}"
    "{% macro g(x) %}{{ x }}{{ s }}{% endmacro %}{% set s = messages[0].role %}{{ f() if tools }}{{ g(messages[0]) }}"
    + LAST_USER
    + MAIN.replace("BODY", "{% if loop.index0 > ns.q %}new{% endif %}"),
    "steady by chance": "{{ messages[2].content }}{% for m in messages[:2] %}{{ m.role }}{% endfor %}"
    + LAST_USER
    + MAIN.replace("BODY", "{% if loop.index0 > ns.q %}new{% endif %}"),
    "date, late": MAIN.replace("BODY", "{% if m.role == 'tool' %}{{ strftime_now('%d') }}{% endif %}"),
    "the whole in text": MAIN.replace(
        "BODY", "{% if m.role == 'tool' %}{{ messages }}{{ messages | tojson }}{% endif %}"
    ),
    "methods of lists": MAIN.replace("BODY", "{{ messages.count(m) }}{{ messages.index(m) }}"),
    "equal": MAIN.replace(
        "BODY",
        "{{ messages == messages[0:] }}{{ messages in [messages] }}{{ m in messages }}{{ messages is sequence }}",
    ),
}
for comparison in ("<", "<=", "==", "!=", ">=", ">"):
    TRICKS[f"watched {comparison}"] = LAST_USER + MAIN.replace(
        "BODY", f"{{% if loop.index {comparison} ns.q %}}x{{% endif %}}"
    )
    TRICKS[f"turned {comparison}"] = LAST_USER + MAIN.replace(
        "BODY", f"{{% if ns.q {comparison} loop.index0 %}}x{{% endif %}}"
    )
COMPILED = {name: template(source) for name, source in TRICKS.items()}


@pytest.mark.parametrize("name", TRICKS)
@given(CONVERSATIONS, CONVERSATIONS, OPTIONS, st.data())
@examples(15, 1500)
def test_marks_are_right(
    name: str, first: list[dict[str, Any]], second: list[dict[str, Any]], options: dict[str, Any], data: st.DataObject
) -> None:
    check_fork(COMPILED[name], first, second, options, data)
    check_growth(COMPILED[name], [*first, *second], options, data)
    check_plain(COMPILED[name], TRICKS[name], first, options)
