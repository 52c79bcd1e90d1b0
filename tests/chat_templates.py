"""Chat templates in the manner of several model families, written for tests, and conversations to render with them."""

import json
import time
from datetime import datetime
from functools import cache
from typing import Any

import jinja2
from hypothesis import strategies as st
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forebay.router.prompt.chat import Chat
from forebay.router.prompt.chat_conversation import conversation
from forebay.router.prompt.chat_variables import variables
from forebay.router.prompt.template import Template
from forebay.router.prompt.template_format import ContentFormat

NOW = datetime(2031, 5, 7, 12, 30)  # noqa: DTZ001 - local time, as templates are told
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

PLAIN = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
Be brief.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

# A date, tools in the first question, the system message taken out before the loop.
DATED = """{{- bos_token }}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if strftime_now is defined %}
    {%- set today = strftime_now("%d %b %Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set rules = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set rules = "" %}
{%- endif %}
{{- "<|header|>system<|end|>\\n\\nToday: " + today + "\\n\\n" + rules + "<|eot|>" }}
{%- if tools is not none %}
    {%- if messages | length != 0 %}
        {%- set question = messages[0]['content'] | trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("There is no question that the tools could stand in.") }}
    {%- endif %}
    {{- '<|header|>user<|end|>\\n\\nFunctions:\\n\\n' }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- question + "<|eot|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("One call at a time.") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|header|>assistant<|end|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}<|eot|>" }}
    {%- else %}
        {{- "<|header|>ipython<|end|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""

# Tools before the conversation; results of tools between a user's marks, which takes a look back and one ahead.
TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'Help.' }}{%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) or
           (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- message.content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

# What was thought is shown only after the last question, for which the opening searches from the end.
THINKING = """{%- if tools %}{{- '<tools>' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '</tools>' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string
           and not message.content.startswith('<tool_response>') %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last_query and (loop.last or thought) %}
            {{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if not loop.first or content }}
            {{- call.function.name ~ ' ' ~ call.function.arguments | tojson }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (loop.previtem.role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>' + message.content + '</tool_response>' }}
        {%- if loop.last or (loop.nextitem.role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# Roles have to alternate; tools stand before the last question, the system message in it.
STRICT = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the system message, roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}{{- tool.function | tojson }}{{- ", " if not loop.last else "]" }}{%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}{{- call.function | tojson }}{{- ", " if not loop.last }}{%- endfor %}
        {{- "]" + eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + "}[/TOOL_RESULTS]" }}
    {%- else %}
        {{- raise_exception("Only user, assistant and tool roles are known.") }}
    {%- endif %}
{%- endfor %}
"""

# A list of parts for content; the system message is a prefix of the first question.
PARTS = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set talk = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set talk = messages -%}
{%- endif -%}
{%- for message in talk -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

# All system messages are gathered first; what came last is kept in a namespace.
STATEFUL = """{% set ns = namespace(calling=false, first=true, rules='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}
{%- set ns.rules = ns.rules + ('' if ns.first else '\n\n') + message['content'] %}{% set ns.first = false %}
{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.rules }}
{%- for message in messages %}
{%- if message['role'] == 'user' %}{%- set ns.calling = false -%}{{ '<User>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] %}{%- set ns.calling = true -%}{{ '<Calls>' }}
{%- for call in message['tool_calls'] %}{{ call['type'] + '<sep>' + call['function']['name'] }}
```json
{{ call['function']['arguments'] | tojson }}
```<end>{%- endfor %}{{ eos_token }}{%- endif %}
{%- if message['role'] == 'assistant' and not message['tool_calls'] %}
{%- if ns.calling %}{{ '<Outputs end>' }}{%- set ns.calling = false %}{%- endif %}
{{- '<Assistant>' + message['content'].split('</think>')[-1] + eos_token }}{%- endif %}
{%- if message['role'] == 'tool' %}{{ '<Output>' + message['content'] }}{%- set ns.calling = true %}{%- endif %}
{%- endfor -%}
{% if ns.calling %}{{ '<Outputs end>' }}{% elif add_generation_prompt %}{{ '<Assistant>' }}{% endif %}"""

# Macros; the last question is searched for from the front; a setting is read from any system message.
MACROS = """{%- macro shown(value, deep=true) -%}
    {%- if value is mapping -%}
        {%- for key, item in value | dictsort -%}{{ key }}:{{ shown(item) if deep else '-' }};{%- endfor -%}
    {%- elif value is string -%}{{ value | trim }}
    {%- elif value is iterable -%}[{% for item in value %}{{ shown(item) }}{{ ',' if not loop.last }}{% endfor %}]
    {%- else -%}{{ value }}{%- endif -%}
{%- endmacro -%}
{%- macro header(role) %}<|start|>{{ role }}{{ caller() }}{% endmacro -%}
{%- set seen = namespace(user=-1, quiet=false) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set seen.user = loop.index0 -%}
    {%- elif m.role == 'system' and '/quiet' in m.content %}{% set seen.quiet = true -%}{% endif %}
{%- endfor %}
{%- for tool in tools or [] %}{{ shown(tool.function) }}
{% endfor %}
{%- for message in messages %}
    {%- call header(message.role) %}<|message|>{% endcall %}
    {%- if loop.index0 <= seen.user or message.role != 'assistant' or seen.quiet %}{{ message.content }}
    {%- else %}
        {%- generation %}<think>{{ message.reasoning_content or '' }}</think>{{ message.content }}{% endgeneration %}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}{{ shown(call.function, deep=false) }}{% endfor %}
    {%- if loop.nextitem is defined and loop.nextitem.role == message.role %}{% continue %}{% endif %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{% endif %}"""

# Looks at everything that is to come, at every message: nobody can go on from the middle.
ACAUSAL = """{%- for message in messages %}
    {%- set later = namespace(final=false) %}
    {%- for other in messages[loop.index:] %}
        {%- if other.role == 'assistant' and not other.tool_calls %}{% set later.final = true %}{% endif %}
    {%- endfor %}
    {{- message.role }}{{ '' if later.final else '!' }}{{ message.content }}
{%- endfor %}"""

TEMPLATES = {
    "plain": PLAIN,
    "dated": DATED,
    "tools": TOOLS,
    "thinking": THINKING,
    "strict": STRICT,
    "parts": PARTS,
    "stateful": STATEFUL,
    "macros": MACROS,
    "acausal": ACAUSAL,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'The weather <now> & "here"',
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def template(source: str, **kwargs: Any) -> Template:
    return Template(source, special_tokens=SPECIAL, clock=kwargs.pop("clock", time.monotonic), **kwargs)


def call(name: str = "weather", arguments: str = '{"city": "Zürich", "days": 2}', number: int = 1) -> dict[str, Any]:
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


_WORDS = st.sampled_from(
    [
        "a " * 200,
        "Hi",
        " \n",
        "<|im_end|>",
        "</think>",
        "<think>\n",
        "<tool_response>",
        "/quiet",
        "été 🙂",
        "{{ x }}",
        "\t",
        "",
    ]
)
TEXTS = st.lists(_WORDS, max_size=4).map("".join)
_CALLS = st.lists(
    st.builds(
        call,
        st.sampled_from(["weather", "f"]),
        st.sampled_from(['{"b": 1, "a": [1.5, null]}', "", "no JSON", "[1]", '{"text": "<|im_end|>\\u00e9"}']),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=2,
)
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": TEXTS}, optional={"reasoning_content": TEXTS}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.one_of(st.none(), TEXTS), "tool_calls": _CALLS}),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXTS, "tool_call_id": st.just("call_1")}),
    st.fixed_dictionaries({"role": st.just("system"), "content": TEXTS}),
)


def _turns(parts: list[tuple[str, bool, str]]) -> list[dict[str, Any]]:
    """Questions, each with some calls of tools if it has, and an answer: what strict templates take."""
    made: list[dict[str, Any]] = []
    for question, tooled, answer in parts:
        made.append({"role": "user", "content": question})
        if tooled:
            made.append({"role": "assistant", "content": "", "tool_calls": [call()], "reasoning_content": answer})
            made.append({"role": "tool", "content": answer, "tool_call_id": "call_1"})
        made.append({"role": "assistant", "content": answer})
    return made


_SYSTEM = st.fixed_dictionaries({"role": st.sampled_from(["system", "developer"]), "content": TEXTS})
_ORDERLY = st.builds(
    lambda system, turns: [*system, *_turns(turns)],
    st.lists(_SYSTEM, max_size=1),
    st.lists(st.tuples(TEXTS, st.booleans(), TEXTS), min_size=1, max_size=4),
)
CONVERSATIONS = st.one_of(_ORDERLY, st.lists(MESSAGES, min_size=1, max_size=8))
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "tools": st.just([WEATHER]),
        "template_kwargs": st.sampled_from([{"enable_thinking": False}, {"enable_thinking": True}]),
        "add_generation_prompt": st.just(False),
    },
)


class _Generation(Extension):
    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller: Any) -> Any:
        return caller()


def _tojson(
    x: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


@cache
def _plain(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = NOW.strftime
    return environment.from_string(source)


def plainly(source: str, chat: Chat, form: ContentFormat) -> str | None:
    """What Jinja makes of a chat, set up as transformers does; None if the template fails."""
    developers = '"developer"' in source or "'developer'" in source
    messages = conversation(chat.messages, form, developers=developers).messages
    given = variables(chat, SPECIAL, {}, tools_despite_none=True)
    try:
        return _plain(source).render(messages=messages, **given)
    except (jinja2.TemplateError, TypeError, ValueError):
        return None
