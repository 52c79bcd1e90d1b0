"""Points of a rendering from which another one can go on, and what it takes for that (pure)."""

from typing import Any

from jinja2.runtime import Undefined
from msgspec import Struct

from forebay.router.prompt.causal import Hidden, Message, View

_ATOMS = frozenset({str, int, float, bool, type(None)})
MOST_PARTS = 1024  # of a variable's value that is kept
_MOST_OFTEN = 64  # where a copy is kept at each message
_MOST_SEEN = 1 << 16  # that are looked at
_EACH = 200  # bytes: about what an object takes beside its text
_SHARED = 16
LARGE = object()  # stands for a value that is too large to be kept
OPAQUE = object()  # for one that may change, or have a part in the rendering
UNSET = object()  # for one that is not there
EXACT = (1, 0)  # a use of a variable of which anything may depend; else the least and greatest value with equal outcome
Uses = dict[str, tuple[int, int]]


class From(Struct, frozen=True):
    """Stands for the messages from number `start` on."""

    start: int


class Given(Struct, frozen=True):
    """Stands for one of the variables that the template is given with every conversation."""

    name: str


class Base(Struct, frozen=True, eq=False, gc=False):
    """What all marks of one rendering have in common, and those of the renderings that go on from them.

    `owner`: the template. `view`: the message that its main loop begins with. `values`: what its variables were when
    the loop began, `spaces` what was in those that are namespaces. `rerun`: they cannot all be kept, or may be others
    for a longer conversation, so what stands before the loop runs again, on `history`; in the latter case it has to
    write `opening` again. That leaves out its `steady` statements, which depend on the first `needed` messages alone.
    `head`: of the first messages, those that may be asked for. `developer`: the first message is a developer's, which
    the template does not know and gets as a system message. `size` in bytes.
    """

    owner: object
    view: int
    values: dict[str, Any]
    spaces: dict[str, dict[str, Any]]
    rerun: bool
    opening: str | None
    steady: frozenset[int]
    needed: int
    head: dict[int, Message]
    history: list[Message]
    developer: bool
    size: int

    def __repr__(self) -> str:
        return f"<Base of {self.size} bytes>"


class State(Struct, frozen=True, eq=False, gc=False):
    """What may differ between the marks of one rendering: what was in the namespaces, which variables of the opening
    had been used and what that showed of them, and which dates had been asked for, by their format."""

    spaces: dict[str, dict[str, Any]]
    uses: Uses
    dates: tuple[tuple[str, str], ...]


class Mark(Struct, frozen=True, eq=False, gc=False):
    """A point of a rendered text. A conversation that begins with the same `messages` first messages, has at least one
    more, and is rendered with equal tools and options has the same first `length` characters. To render the rest, hand
    `Template.resume` its messages from number `start` on (`start` may be less than `messages`)."""

    messages: int
    start: int
    length: int
    base: Base
    state: State
    near: dict[int, Message]
    back: int

    def __repr__(self) -> str:
        return f"<Mark before message {self.start}, at character {self.length}>"  # what is kept cannot all be shown

    @property
    def size(self) -> int:
        """Bytes of memory, about, with a share of what all marks of a conversation have in common."""
        return _EACH + size_of(self.state.spaces) + size_of(self.near) + self.base.size // _SHARED


def known_before(mark: Mark) -> dict[int, Message]:
    """What is known of the messages before the mark, by their number."""
    base = mark.base
    if not base.rerun:
        return {**base.head, **mark.near} if base.head else mark.near
    known = dict(enumerate(base.history[: mark.start]))
    known.update(base.head)
    known.update(mark.near)
    return known


def kept(value: Any, most: int = MOST_PARTS) -> Any:
    """`value`, if it is small, or what stands for it. Lists and objects are never changed by templates."""
    if type(value) in _ATOMS:
        return value
    if type(value) is View:
        return From(value._start)  # noqa: SLF001
    if isinstance(value, Undefined):
        return UNSET
    seen, parts, hidden = 0, [value], False
    while parts:
        part = parts.pop()
        kind = type(part)
        seen += 1
        if kind is dict:
            parts.extend(part.values())
        elif kind in (list, tuple):
            parts.extend(part)
        elif kind is Hidden:
            hidden = True
        elif kind not in _ATOMS:
            return OPAQUE
        if seen > _MOST_SEEN:
            return OPAQUE
    return LARGE if hidden or seen > most else value


def kept_all(values: dict[str, Any]) -> dict[str, Any] | None:
    """A copy of what is in a namespace; None if a part of it cannot be kept."""
    copy = dict(values)
    for name, value in values.items():
        if type(value) not in _ATOMS:
            copy[name] = kept(value, _MOST_OFTEN)
            if copy[name] is OPAQUE or copy[name] is LARGE or type(value) is View:
                return None
    return copy


def same(one: Any, other: Any) -> bool:
    """Whether two kept values are the same in every respect: 1 is not True."""
    if type(one) is not type(other):
        return False
    if type(one) is dict:
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def size_of(value: Any) -> int:
    """Bytes of memory, about."""
    if isinstance(value, str):
        return _EACH + len(value)
    if isinstance(value, dict):
        return _EACH + sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return _EACH + sum(map(size_of, value))
    return 0
