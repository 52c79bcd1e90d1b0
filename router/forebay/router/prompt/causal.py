"""A conversation that notes how much of it a rendering has looked at, or that is known in part only (pure).

What a template has written depends on nothing but the messages that it has looked at by then. So long as these are the
first `needed` ones, and nothing was asked that depends on where the conversation ends, the text so far is the same for
every conversation that begins with them. A rendering that goes on from there is given the later messages, and of the
earlier ones what is cheap to keep; it stops with `NeedWhole` as soon as it asks for anything else.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

FOREVER = 1 << 60  # messages needed by a text that depends on where the conversation ends
SHORT = 256  # characters; longer texts of earlier messages are not kept
_BACK = 4  # messages that a template may look back by before it counts as looking at the conversation's head
_HEAD = 4

Message = dict[str, Any]


class Stop(BaseException):
    """Ends a rendering. No `Exception`, since Jinja's own tests and filters swallow those."""


class NeedWhole(Stop):
    """Something was asked of the conversation that is not known here."""


class Halt(Stop):
    """The rendering came to a message of which it is not known what an engine makes of it."""


class Hidden:
    """Stands for a long text, or an object or list, of an earlier message. It is there and not empty; nothing else is
    known of it."""

    __slots__ = ("text",)

    def __init__(self, *, text: bool) -> None:
        object.__setattr__(self, "text", text)

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> NoReturn:
        raise NeedWhole

    def _ask(self, *_: object) -> NoReturn:
        raise NeedWhole

    __str__ = __repr__ = __eq__ = __ne__ = __hash__ = __lt__ = __le__ = __gt__ = __ge__ = _ask
    __len__ = __iter__ = __contains__ = __getitem__ = __call__ = __reversed__ = _ask
    __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __sub__ = __rsub__ = _ask
    __int__ = __float__ = __index__ = __format__ = __html__ = __neg__ = __pos__ = _ask


HIDDEN_TEXT = Hidden(text=True)
HIDDEN_OTHER = Hidden(text=False)


def skeleton(message: Message) -> Message:
    """A message without what is large in it."""
    kept: Message = {}
    for name, value in message.items():
        if type(value) is str:
            kept[name] = value if len(value) <= SHORT else HIDDEN_TEXT
        elif value and isinstance(value, list | dict):
            kept[name] = HIDDEN_OTHER
        else:
            kept[name] = value
    return kept


class Messages:
    """The messages of one rendering. `first` is the index of the first one given, `earlier` holds those known before
    it. From `halt` on it is not known what an engine makes of them."""

    __slots__ = ("back", "cursor", "earlier", "first", "given", "halt", "head", "needed", "total")

    def __init__(
        self,
        given: Sequence[Message],
        *,
        first: int = 0,
        earlier: Mapping[int, Message] | None = None,
        halt: int = FOREVER,
    ) -> None:
        self.given = given
        self.first = first
        self.earlier = earlier
        self.halt = halt
        self.total = first + len(given)
        self.needed = first
        self.cursor = -1  # index of the message that the main loop is at
        self.back = 0  # how far the template has looked back from there
        self.head = 0  # how many of the first messages it has looked at from there

    def at(self, index: int) -> Message:
        """The message at `index`, which is in range. Raises `NeedWhole`, `Halt`."""
        if index >= self.needed:
            self.needed = index + 1
        if index < self.cursor:
            self._look_back(index)
        if index >= self.halt:
            raise Halt
        here = index - self.first
        if here >= 0:
            return self.given[here]
        message = None if self.earlier is None else self.earlier.get(index)
        if message is None:
            raise NeedWhole
        return message

    def exists(self, count: int) -> bool:
        """Whether there are `count` messages. A text that depends on there being more than are `needed` is no problem
        if it is one more: a mark is only used where at least one message follows."""
        if count > self.total:
            self.needed = FOREVER
            return False
        self.needed = max(self.needed, count - 1)
        return True

    def end(self) -> int:
        """How many there are, which makes the text depend on it."""
        self.needed = FOREVER
        return self.total

    def _look_back(self, index: int) -> None:
        if self.cursor - index <= _BACK:
            self.back = max(self.back, self.cursor - index)
        elif index < _HEAD:
            self.head = max(self.head, index + 1)


class View:
    """The messages from `_start` on, as templates see them: like a list, but not one, so that nothing can read it
    without asking. What a list can do and this cannot fails, and the rendering is done again with a list."""

    __slots__ = ("_messages", "_start")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, messages: Messages, start: int = 0) -> None:
        self._messages = messages
        self._start = start

    def __bool__(self) -> bool:
        return self._messages.exists(self._start + 1)

    def __len__(self) -> int:
        return self._messages.end() - self._start

    def __iter__(self) -> Iterator[Message]:
        index = self._start
        while self._messages.exists(index + 1):
            yield self._messages.at(index)
            index += 1

    def __reversed__(self) -> Iterator[Message]:
        return iter(self[::-1])

    def __getitem__(self, key: Any) -> Any:
        if type(key) is int and key >= 0:
            if not self._messages.exists(self._start + key + 1):
                raise IndexError(key)
            return self._messages.at(self._start + key)
        if type(key) is slice and key.step is None and key.stop is None:
            start = 0 if key.start is None else key.start
            if type(start) is int and start >= 0 and self._messages.exists(self._start + start):
                return View(self._messages, self._start + start)
        if type(key) is int and -len(self) <= key < 0:
            return self._messages.at(self._messages.total + key)
        if type(key) is slice:
            messages, end = self._messages, self._messages.end()
            return [messages.at(index) for index in range(self._start, end)[key]]
        if type(key) is int or type(key) is str:
            raise IndexError(key)
        raise ValueError(f"messages have no item {key!r} here")  # a list might have one

    def __eq__(self, other: object) -> bool:
        return self is other or list(self) == (list(other) if type(other) is View else other)

    def __repr__(self) -> str:
        return repr(list(self))


def stands(messages: Messages, operator: str, shift: int, bound: int) -> bool | None:
    """Whether `total - shift <operator> bound` holds, if it then holds for every longer conversation as well; else
    None. `operator` is one of Jinja's names for comparisons."""
    above = messages.total - shift > bound
    reached = messages.total - shift >= bound
    if operator in ("gt", "ne", "eq", "lteq") and above:
        messages.exists(shift + bound + 1)
        return operator in ("gt", "ne")
    if operator in ("gteq", "lt") and reached:
        messages.exists(shift + bound)
        return operator == "gteq"
    return None

