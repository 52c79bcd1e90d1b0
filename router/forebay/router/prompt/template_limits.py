"""What a rendering may cost: steps, seconds, and characters made on the way."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from jinja2.utils import Namespace
from msgspec import Struct

from forebay.router.prompt.causal import Stop

_CLOCK_EVERY = 16  # steps; one may take a millisecond on a large text
_DEEPEST = 64  # lists and objects within each other, built by a template
_PART = 64  # characters that each part of a list or object counts for: about the memory it takes
Clock = Callable[[], float]


class Limits(Struct, frozen=True):
    """`made` counts every text that the template makes on its way to the result, again and again if it copies."""

    chars: int = 1 << 26  # of the result
    made: int = 1 << 29
    steps: int = 1 << 22  # turns of loops, and calls
    seconds: float = 2.0
    source: int = 1 << 17  # characters of the template itself


class LimitReached(Stop):
    """The message says which limit."""


class Budget:
    """What is left of the limits in one rendering. Every method raises `LimitReached` when nothing is. The clock, which
    the system is asked for, is not looked at for a few steps."""

    __slots__ = ("_clock", "_deadline", "_limits", "_made", "_steps")

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._deadline: float | None = None
        self._steps = limits.steps
        self._made = limits.made

    def step(self) -> None:
        self._steps -= 1
        if self._steps % _CLOCK_EVERY == 0:
            if self._steps < 0:
                self.stop(f"takes more than {self._limits.steps} steps")
            now = self._clock()
            if self._deadline is None:
                self._deadline = now + self._limits.seconds
            elif now > self._deadline:
                self.stop(f"takes longer than {self._limits.seconds:g} s")

    def make(self, characters: int) -> None:
        """So many are about to be made, or were just made by something that cannot make many."""
        self._made -= characters
        if characters > self._limits.chars:
            self.stop(f"makes a text of more than {self._limits.chars} characters")
        if self._made < 0:
            self.stop(f"makes texts of more than {self._limits.made} characters on its way")

    def counted(self, iterable: Iterable[Any]) -> Iterator[Any]:
        self.step()
        for item in iterable:
            yield item
            self.step()

    def built(self, value: Any) -> Any:
        """`value`, after making sure that it is not vast: what a list holds twice is written twice."""
        if isinstance(value, str):
            self.make(len(value))
        elif _weight(value, self._limits.chars, _DEEPEST) > self._limits.chars:
            self.stop(f"builds a list or object that takes more than {self._limits.chars} characters, or is too deep")
        return value

    def text(self, value: Any) -> str:
        """`str(value)`, accounted for."""
        if type(value) is str:
            return value
        text = str(value)
        self.make(len(text))
        return text

    def stop(self, what: str) -> NoReturn:
        raise LimitReached(f"the chat template {what}")


def contents(space: Namespace) -> dict[str, Any]:
    """What is in a namespace, which has no public way to list it."""
    inside: dict[str, Any] = object.__getattribute__(space, "_Namespace__attrs")
    return inside


def _weight(value: Any, most: int, depth: int) -> int:
    """About how many characters writing the value out would take; more than `most` if it is too much, or too deep."""
    if isinstance(value, str):
        return _PART + len(value)
    if isinstance(value, dict):
        items: Iterable[Any] = value.values()
        weight = sum(_PART + len(name) if type(name) is str else _PART for name in value)
    elif isinstance(value, list | tuple):
        items, weight = value, _PART
    elif type(value) is Namespace:
        items, weight = contents(value).values(), _PART
    else:
        return _PART
    if depth == 0:
        return most + 1
    for item in items:
        weight += _weight(item, most - weight, depth - 1)
        if weight > most:
            break
    return weight
