"""What a template's main loop knows as `loop`: the same as Jinja's, except that it can begin in the middle and that the
conversation notes what was asked."""

from typing import Any

from jinja2.runtime import Undefined

from forebay.router.prompt.causal import Messages

OF_LOOPS = frozenset(
    {"cycle", "depth", "depth0", "first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex"}
    | {"revindex0"}
)


class Loop:
    """`index0`, `index` and `first` are set at each turn; `_at` is the index of the message of this turn."""

    __slots__ = ("_at", "_messages", "_start", "first", "index", "index0")

    depth = 1
    depth0 = 0

    def __init__(self, messages: Messages, start: int) -> None:
        self._messages = messages
        self._start = start
        self._at = start
        self.index0, self.index, self.first = 0, 1, True

    def turn(self, at: int) -> None:
        self._at = at
        self.index0 = at - self._start
        self.index = self.index0 + 1
        self.first = self.index0 == 0

    @property
    def last(self) -> bool:
        return not self._messages.exists(self._at + 2)

    @property
    def length(self) -> int:
        return self._messages.end() - self._start

    @property
    def revindex(self) -> int:
        return self.length - self.index0

    @property
    def revindex0(self) -> int:
        return self.length - self.index

    @property
    def previtem(self) -> Any:
        return Undefined("there is no previous item") if self.first else self._messages.at(self._at - 1)

    @property
    def nextitem(self) -> Any:
        return Undefined("there is no next item") if self.last else self._messages.at(self._at + 1)

    def cycle(self, *args: Any) -> Any:
        if not args:
            raise TypeError("no items for cycling given")
        return args[self.index0 % len(args)]
