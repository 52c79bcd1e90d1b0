"""One rendering that is watched, or goes on from a mark: what the hooks of the rewritten templates do.

A text up to some message may be relied on for every conversation that begins the same when nothing that led to it was
asked of later messages (causal.py), or when what was asked has the same answer (causal_opening.py).
"""

import operator
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import accumulate
from typing import Any

from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from forebay.router.prompt.causal import FOREVER, Message, Messages, NeedWhole, View, stands
from forebay.router.prompt.causal_loop import Loop
from forebay.router.prompt.causal_making import Bound, Made, base_of, extended, marks_of
from forebay.router.prompt.causal_marks import EXACT, UNSET, From, Given, Mark, State, kept_all
from forebay.router.prompt.causal_opening import ANY, Opening, check, interval, opening, put_back
from forebay.router.prompt.causal_plan import Plan
from forebay.router.prompt.template_limits import Budget, contents

_PATTERN = 256  # characters of a date's format
_NO_STATE = State({}, {}, ())
_COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
}


class Run:
    """`plan` is None for a rendering that is not watched. `given` are the template's other variables."""

    def __init__(
        self,
        messages: Messages,
        budget: Budget,
        given: dict[str, Any],
        now: datetime,
        *,
        owner: object = None,
        plan: Plan | None = None,
        mark: Mark | None = None,
        developer: bool = False,
    ) -> None:
        self.messages = messages
        self.budget = budget
        self.pieces: list[str] = []
        self.opened = 0  # pieces that the opening wrote, again, where a rendering goes on
        self.began = False  # whether the main loop was come to
        self._owner = owner
        self._plan = plan
        self._now = now
        self._given = given
        self._mark = mark
        self._developer = developer
        self._view = 0
        self._steady: dict[int, tuple[int, int]] = {}  # the pieces that steady statements wrote
        self._needed = 0  # messages that these depend on
        self._text = ""  # what the opening wrote beside them
        self._rerun = mark is not None and mark.base.rerun
        self._bounds: list[Bound] = []
        self._opening: Opening | None = None
        self._spaces: dict[str, Namespace] = {}
        self._state = _NO_STATE
        if mark is not None:
            messages.needed = mark.messages
            messages.back = mark.back
            self._view = mark.base.view
            self._state = mark.state

    # what the hooks call

    def strftime(self, pattern: str) -> str:
        if len(pattern) > _PATTERN:
            self.budget.stop(f"asks for a date with a format of more than {_PATTERN} characters")
        text = self._now.strftime(pattern)
        state = self._state
        if (pattern, text) not in state.dates:
            self._state = State(state.spaces, state.uses, (*state.dates, (pattern, text)))
        return text

    def write(self, place: int) -> bool:
        """Whether a steady statement is to run. Its text is the same wherever a rendering goes on."""
        if self._mark is not None and place in self._mark.base.steady:
            return False
        if self.messages.needed < FOREVER:
            self._steady[place] = len(self.pieces), len(self.pieces)
        return True

    def settle(self, place: int) -> None:
        """It has run."""
        if place in self._steady:
            if self.messages.needed < FOREVER:
                self._steady[place] = self._steady[place][0], len(self.pieces)
                self._needed = self.messages.needed
            else:
                del self._steady[place]

    def begin(self, values: dict[str, Any]) -> None:
        """The opening is over, with these variables."""
        assert self._plan is not None
        state = self._state
        if self._mark is None:
            closed = self.messages.needed >= FOREVER
            self._opening = opening(values, self._plan, self._given, closed=closed)
            self._text = self._written() if closed else ""
            self._rerun = self._opening is not None and self._opening.rerun
            self._state = State({}, {}, state.dates)
            if closed:
                self.messages.needed = 0
        else:
            closed = self._mark.base.opening is not None
            self._opening = opening(values, self._plan, self._given, closed=closed)
            check(self._opening, "".join(self.pieces), self._mark, self._plan)
            put_back(values, self._mark)
            self.opened = len(self.pieces)
            self._state = State(self._mark.state.spaces, self._mark.state.uses, state.dates)
            self.messages.needed = self._mark.messages
        for name, value in values.items():
            if type(value) is Namespace and (not self._rerun or _changed(self._plan, name)):
                self._spaces[name] = value

    def value(self, name: str) -> Any:
        """A variable of the opening, put back."""
        assert self._mark is not None
        base, saved = self._mark.base, self._state.spaces.get(name)
        if saved is not None:
            space = Namespace({key: Undefined(name=key) if part is UNSET else part for key, part in saved.items()})
            self._spaces[name] = space
            return space
        value = base.values[name]
        if value is UNSET:
            return Undefined(name=name)
        if type(value) is From:
            return View(self.messages, value.start)
        return self._given[value.name] if type(value) is Given else value

    def walk(self, iterable: Any) -> Iterator[Message]:
        messages, start = self._walked(iterable)
        step, bound = self.budget.step, self._bound
        for index in range(max(start, messages.first), messages.total):
            step()
            bound(index)
            messages.cursor = index
            yield messages.at(index)
        messages.cursor = messages.total
        bound(messages.total)

    def walk_with_loop(self, iterable: Any) -> Iterator[tuple[Message, Loop]]:
        messages, start = self._walked(iterable)
        loop = Loop(messages, start)
        step, bound, turn = self.budget.step, self._bound, loop.turn
        for index in range(max(start, messages.first), messages.total):
            step()
            bound(index)
            messages.cursor = index
            turn(index)
            yield messages.at(index), loop
        messages.cursor = messages.total
        bound(messages.total)

    def use(self, value: Any, name: str) -> Any:
        if self._state.uses.get(name) != EXACT:
            self._use(name, EXACT)
        return value

    def than(self, index: Any, comparison: str, value: Any, name: str) -> Any:
        """`index <comparison> value`, of which only the outcome is known afterwards."""
        if type(value) is not int:
            self.use(value, name)
        elif (known := self._state.uses.get(name, ANY)) != EXACT:
            lower, upper = interval(index, comparison, value)
            if lower > known[0] or upper < known[1]:
                self._use(name, (max(known[0], lower), min(known[1], upper)))
        return _COMPARE[comparison](index, value)

    # what comes of it

    def marks(self, most: int) -> tuple[Mark, ...]:
        """Where another rendering may go on that has the first `most` messages in common."""
        mark, messages = self._mark, self.messages
        if mark is not None:
            base, offset = extended(mark, messages, self._opening), mark.length
        elif self._opening is None or not self._bounds:
            return ()
        else:
            made = Made(
                self._owner,
                self._view,
                self._opening,
                self._text,
                frozenset(self._steady),
                self._needed,
                self._developer,
            )
            base, offset = base_of(made, messages), 0
        lengths = list(accumulate(map(len, self.pieces[self.opened :]), initial=offset))
        return marks_of(self._bounds, lengths, base, messages, mark=mark, most=most)

    def _walked(self, iterable: Any) -> tuple[Messages, int]:
        """The messages that the loop goes through, and where they begin."""
        self.began = True
        if iterable is None:
            return self.messages, self._view
        if type(iterable) is View:
            if self._mark is not None and iterable._start != self._view:  # noqa: SLF001
                raise NeedWhole
            self._view = iterable._start  # noqa: SLF001
            return self.messages, self._view
        if self._mark is not None:
            raise NeedWhole
        self._opening = None
        return Messages(list(self.budget.counted(iterable))), 0

    def _bound(self, index: int) -> None:
        needed = self.messages.needed
        if needed < FOREVER and (not self._spaces or self._save()):
            self._bounds.append((index, needed, len(self.pieces) - self.opened, self._state))

    def _save(self) -> bool:
        """Note what is in the namespaces, where that has changed. False if it cannot be kept."""
        assert self._plan is not None
        saved = self._state.spaces
        for name, space in self._spaces.items():
            inside = contents(space)
            if self._rerun:
                inside = {key: inside[key] for key in _changed(self._plan, name) if key in inside}
            known = saved.get(name)
            if known is not None and len(known) == len(inside) and _unchanged(inside, known):
                continue
            copy = kept_all(inside)
            if copy is None:
                self.messages.needed = FOREVER
                return False
            saved = {**saved, name: copy}
        if saved is not self._state.spaces:
            self._state = State(saved, self._state.uses, self._state.dates)
        return True

    def _use(self, name: str, use: tuple[int, int]) -> None:
        state = self._state
        self._state = State(state.spaces, {**state.uses, name: use}, state.dates)

    def _written(self) -> str:
        """What the opening wrote, but for its steady statements."""
        text: list[str] = []
        at = 0
        for start, end in self._steady.values():
            text += self.pieces[at:start]
            at = end
        return "".join([*text, *self.pieces[at:]])


def count(run: Run, value: Any, comparison: str, bound: int) -> Any:
    """`value | length <comparison> bound`."""
    if type(value) is View:
        outcome = stands(value._messages, comparison, value._start, bound)  # noqa: SLF001
        if outcome is not None:
            return outcome
    return _COMPARE[comparison](len(value), bound)


def _unchanged(inside: dict[str, Any], known: dict[str, Any]) -> bool:
    return all(map(operator.is_, inside.values(), known.values()))


def _changed(plan: Plan, name: str) -> list[str]:
    return [attribute for space, attribute in plan.changed or () if space == name]


HOOKS: dict[str, Callable[..., Any]] = {
    "#begin": Run.begin,
    "#count": count,
    "#settle": Run.settle,
    "#than": Run.than,
    "#use": Run.use,
    "#value": Run.value,
    "#walk": Run.walk,
    "#walk with loop": Run.walk_with_loop,
    "#write": Run.write,
}
