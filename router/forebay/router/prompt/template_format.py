"""Whether a template is written for messages whose content is a string, or a list of parts.

Engines find out by looking at the template, and give every message that form. Source: vLLM 0.32, renderers/hf.py; what
it makes of odd templates is followed as well: a loop over content that unpacks its items counts as none.
"""

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


def content_format(tree: nodes.Template) -> ContentFormat:
    """`openai` for a template that loops over a message's content: it is then given a list of parts."""
    try:
        return "openai" if next(_loops_over_content(tree), None) else "string"
    except _Odd:
        return "string"


class _Odd(Exception):  # noqa: N818 - not an error
    """The template assigns such a thing to more than one name."""


def _loops_over_content(tree: nodes.Template) -> Iterator[nodes.For]:
    messages = [name for loop in _message_loops(tree) if (name := _target(loop.target))]
    given, inside = _content_parameters(tree, messages)
    for loop in tree.find_all(nodes.For):
        over = loop.iter
        named = over.name if isinstance(over, nodes.Name) else None
        hit = (
            any(_reads(over, message, "content") for message in messages)
            or (named is not None and named in given.get(id(loop), ()))
            or (named == "content" and id(loop) not in inside)
        )
        if hit and _target(loop.target):
            yield loop


def _message_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    names = list(_messages_names(tree))
    for loop in tree.find_all(nodes.For):
        if any(_reads(loop.iter, name) for name in names):
            yield loop


def _messages_names(tree: nodes.Template) -> Iterator[str]:
    """`messages`, and what it or a part of it is assigned to."""
    names = ["messages"]
    for name in names:
        yield name
        for assign in tree.find_all(nodes.Assign):
            if _reads(assign.node, name):
                target = _target(assign.target)
                if target not in names:
                    names.append(target)


def _content_parameters(tree: nodes.Template, messages: list[str]) -> tuple[dict[int, set[str]], set[int]]:
    """For the loops in macros, by identity: which parameters of the macro are given a message's content somewhere."""
    given: dict[int, set[str]] = {}
    inside: set[int] = set()
    for macro in tree.find_all(nodes.Macro):
        parameters = [argument.name for argument in macro.args]
        found: set[str] = set()
        for call in tree.find_all(nodes.Call):
            if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
                continue
            named = [(keyword.key, keyword.value) for keyword in call.kwargs if keyword.key in parameters]
            for name, value in [*zip(parameters, call.args, strict=False), *named]:
                if any(_reads(value, message, "content") for message in messages):
                    found.add(name)
        for loop in macro.find_all(nodes.For):
            inside.add(id(loop))
            if found:
                given[id(loop)] = found
    return given, inside


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether an expression is the variable `name`, or its item `key`, or a part of that, filtered or not."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _reads_plainly(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _reads_plainly(node.node, name)


def _reads_plainly(node: nodes.Node, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _target(node: nodes.Node) -> str:
    if not isinstance(node, nodes.Name):
        raise _Odd
    return node.name
