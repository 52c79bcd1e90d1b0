"""What a rendering leaves behind so that another one can go on from it (pure)."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from forebay.router.prompt.causal import Message, Messages, skeleton
from forebay.router.prompt.causal_marks import Base, Mark, State, size_of
from forebay.router.prompt.causal_opening import Opening

_HEAD = 2  # messages kept whole where the opening runs again
_SKELETON = 600  # bytes of a message without its long texts, about
Bound = tuple[int, int, int, State]  # message, messages needed, pieces of text before it, state


class Made(Struct):
    """A rendering from the beginning. `text` of the opening, without what its `steady` statements wrote, which depend
    on the first `needed` messages."""

    owner: object
    view: int
    opening: Opening
    text: str
    steady: frozenset[int]
    needed: int
    developer: bool


def base_of(made: Made, messages: Messages) -> Base:
    known, sure = made.opening, _sure(messages)
    head = dict(enumerate(sure[:_HEAD] if known.rerun else map(skeleton, sure[: messages.head])))
    history = list(map(skeleton, sure)) if known.rerun else []
    text = made.text if known.closed else None
    held = (known.values, known.spaces, head, text)
    return Base(
        owner=made.owner,
        view=made.view,
        values=known.values,
        spaces=known.spaces,
        rerun=known.rerun,
        opening=text,
        steady=made.steady,
        needed=made.needed,
        head=head,
        history=history,
        developer=made.developer,
        size=sum(map(size_of, held)) + _SKELETON * len(history),
    )


def extended(mark: Mark, messages: Messages, opening: Opening | None) -> Base:
    """The base of what goes on from `mark`, perhaps with other messages than followed there. `opening`: what it found
    where that ran again; variables that had not been used by the mark may have other values."""
    base = mark.base
    early = any(index >= mark.start for index in base.head)
    if not base.rerun and not early:
        return base
    head = {index: message for index, message in base.head.items() if index < mark.start}
    if early:
        for index, message in enumerate(_sure(messages)[: max(base.head) + 1 - mark.start], mark.start):
            head[index] = message if base.rerun else skeleton(message)
    if opening is not None and opening.closed:
        base = structs.replace(base, values=opening.values, spaces=opening.spaces)
    history = base.history[: mark.start]
    if base.rerun:
        history += map(skeleton, _sure(messages))
    return structs.replace(base, head=head, history=history, size=base.size + _SKELETON * len(messages.given))


def marks_of(
    bounds: Sequence[Bound], lengths: Sequence[int], base: Base, messages: Messages, *, mark: Mark | None, most: int
) -> tuple[Mark, ...]:
    """`lengths` of the text after so many pieces, `mark`: where the rendering went on, `most`: messages that another
    conversation can have in common."""
    back, began = messages.back, 0 if mark is None else mark.start
    users = _users(messages, mark) if base.rerun else []
    user = 0
    near: dict[int, Message] = {}
    marks = []
    for index, needed, pieces, state in bounds:
        count = max(index, needed)
        if not 1 <= count <= most or index <= began:
            continue
        if back or users:
            near = _before(messages, index, back)
            while user < len(users) and users[user][0] < index:
                user += 1
            if user:
                near.update([users[user - 1]])
        marks.append(Mark(count, index, lengths[pieces], base, state, near, back))
    return tuple(marks)


def _sure(messages: Messages) -> Sequence[Message]:
    """Those given of which it is known what engines make of them."""
    return messages.given[: max(0, messages.halt - messages.first)]


def _users(messages: Messages, mark: Mark | None) -> list[tuple[int, Any]]:
    """The users' messages that are known whole. An opening that looks for the last question ends at one."""
    near = {} if mark is None else mark.near
    known = [(index, message) for index, message in near.items() if message.get("role") == "user"]
    given = enumerate(_sure(messages), messages.first)
    return [*known[-1:], *((index, message) for index, message in given if message.get("role") == "user")]


def _before(messages: Messages, index: int, back: int) -> dict[int, Message]:
    """The last `back` messages before `index`, without what is large."""
    near = {}
    for place in range(max(0, index - back), index):
        here = place - messages.first
        message = messages.given[here] if here >= 0 else (messages.earlier or {}).get(place)
        if message is not None:
            near[place] = skeleton(message)
    return near
