"""Where the messages of a JSON body lie, so that what an earlier body said is not read again (pure).

A client sends the whole conversation each time, and its serializer writes the same messages as the same bytes. A body
that begins with the bytes of an earlier, valid one stands at the same place of its syntax where the two part: only the
rest has to be read, behind the same head.
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw, Struct

_SPACE = re.compile(rb"[ \t\r\n]*")
_GAP = re.compile(rb"[ \t\r\n,]*")
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_NEXT = re.compile(rb"[ \t\r\n]{0,256}+,[ \t\r\n]{0,256}+(?![ \t\r\n\]])")  # not megabytes of white space
_BRACKETS = (b"\\u005b", b"\\u005B", b"\\u007b", b"\\u007B")
_elements = msgspec.json.Decoder(list[Raw])


class Prior(Struct, frozen=True):
    """What a body has in common with an earlier one: offsets behind the `[` of its messages and behind the last message
    known, how many those are, and the commas and brackets among them."""

    head: int
    end: int
    messages: int
    commas: int
    nested: int


class Turn(Struct, frozen=True):
    """One message as it stands in the body, with what separates it from the one before."""

    text: bytes
    commas: int
    nested: int


class Layout(Struct, frozen=True):
    """`start` and `end` are those of the array of messages in the body; `turns` are the messages after `Prior`."""

    start: int
    end: int
    turns: list[Turn]


def without(body: bytes, prior: Prior) -> bytes | None:
    """The body without the messages known. None where no further message follows them."""
    gap = _NEXT.match(body, prior.end)
    return None if gap is None else body[: prior.head] + body[gap.end() :]


def layout(text: bytes, members: Mapping[str, Raw], body: bytes, prior: Prior | None) -> Layout | None:
    """`text` is the body, or what `without` left of it, and `members` its members in their order. None for a body whose
    names are written with escapes: it is read whole each time."""
    start = _find(text, members, "messages")
    if start is None:
        return None
    array = members["messages"]
    shift = len(body) - len(text)
    at = start + 1
    turns = []
    last = at if prior is None else prior.end - shift
    for element in _elements.decode(array):
        at = _GAP.match(text, at).end() + memoryview(element).nbytes  # type: ignore[union-attr]  # it always matches
        first, last = last + shift, at
        turns.append(turn(body[first : at + shift]))
    return Layout(start, start + memoryview(array).nbytes + shift, turns)


def turn(text: bytes) -> Turn:
    return Turn(text, *weigh(text))


def weigh(text: bytes) -> tuple[int, int]:
    """The commas of a JSON text, and its brackets that open. Those written with escapes count as well: the arguments
    of a tool call are JSON within a string."""
    commas, nested = text.count(b","), text.count(b"[") + text.count(b"{")
    if b"\\u00" in text:
        commas += text.count(b"\\u002c") + text.count(b"\\u002C")
        nested += sum(text.count(code) for code in _BRACKETS)
    return commas, nested


def _find(text: bytes, members: Mapping[str, Raw], wanted: str) -> int | None:
    at = _SPACE.match(text).end() + 1  # type: ignore[union-attr]
    for name, value in members.items():
        at = _GAP.match(text, at).end()  # type: ignore[union-attr]
        quoted = b'"' + name.encode() + b'"'
        colon = _COLON.match(text, at + len(quoted)) if text.startswith(quoted, at) else None
        if colon is None:
            return None
        at = colon.end()
        if name == wanted:
            return at
        at += memoryview(value).nbytes
    return None
