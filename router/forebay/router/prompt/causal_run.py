"""One rendering that is watched, or goes on from a mark: what the hooks of the rewritten templates do.

A text up to some message may be relied on for every conversation that begins the same when nothing that led to it was
asked of later messages (causal.py). Before the main loop a template may have looked at all of them, for the last
question, say. What it found is then compared where a rendering goes on: the text it wrote must be the same, and so must
those of its variables that had been used by then; one that was only compared with the loop's index may have any value
for which these comparisons come out the same.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from jinja2.runtime import Undefined
from jinja2.utils import Namespace
from msgspec import structs

from forebay.router.prompt.causal import FOREVER, Message, Messages, NeedWhole, View, skeleton, stands
from forebay.router.prompt.causal_loop import Loop
from forebay.router.prompt.causal_marks import (
    EXACT,
    LARGE,
    OPAQUE,
    UNSET,
    Base,
    From,
    Given,
    Mark,
    State,
    kept,
    kept_all,
    same,
    size_of,
)
from forebay.router.prompt.causal_plan import Plan
from forebay.router.prompt.template_limits import Budget, contents

_PATTERN = 256  # characters of a date's format
_HEAD = 2  # messages kept whole where the opening runs again
_SKELETON = 600  # bytes of a message without its long texts, about
ANY = (-FOREVER, FOREVER)  # a variable of which nothing was asked
NO_STATE = State({}, {}, ())
_COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
}
Bound = tuple[int, int, int, State]  # message, messages needed, pieces of text before it, state
Entry = tuple[dict[str, Any], dict[str, dict[str, Any]], bool, str | None]  # values, spaces, rerun, opening


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
        self._rerun = mark is not None and mark.base.rerun
        self._bounds: list[Bound] = []
        self._entry: Entry | None = None
        self._spaces: dict[str, Namespace] = {}
        self._state = NO_STATE
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

    def begin(self, values: dict[str, Any]) -> None:
        """The opening is over, with these variables."""
        assert self._plan is not None
        if self._mark is None:
            self._entry = self._entered(values, self._plan)
            self._rerun = self._entry is not None and self._entry[2]
            if self.messages.needed >= FOREVER:
                self.messages.needed = 0
            self._state = State({}, {}, self._state.dates)
        else:
            self.opened = len(self.pieces)
            self._check(values, self._mark, self._plan)
            self.messages.needed = self._mark.messages
            self._state = self._mark.state
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
            lower, upper = _interval(index, comparison, value)
            if lower > known[0] or upper < known[1]:
                self._use(name, (max(known[0], lower), min(known[1], upper)))
        return _COMPARE[comparison](index, value)

    # what comes of it

    @property
    def dates(self) -> tuple[tuple[str, str], ...]:
        return self._state.dates

    def marks(self, most: int) -> tuple[Mark, ...]:
        """Where another rendering may go on that has the first `most` messages in common."""
        base = self._based()
        if base is None:
            return ()
        back, began = self.messages.back, 0 if self._mark is None else self._mark.start
        skipped, offset = (0, 0) if self._mark is None else (self.opened, self._mark.length)
        lengths = list(accumulate(map(len, self.pieces[skipped:]), initial=offset))
        users = self._users() if base.rerun else ()
        marks = []
        near: dict[int, Message] = {}
        for index, needed, pieces, state in self._bounds:
            count = max(index, needed)
            if not 1 <= count <= most or index <= began:
                continue
            if back or users:
                near = self._near(index, back, users)
            marks.append(Mark(count, index, lengths[pieces - skipped], base, state, near, back))
        return tuple(marks)

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
        self._entry = None
        return Messages(list(self.budget.counted(iterable))), 0

    def _bound(self, index: int) -> None:
        needed = self.messages.needed
        if needed < FOREVER and (not self._spaces or self._save()):
            self._bounds.append((index, needed, len(self.pieces), self._state))

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

    def _entered(self, values: dict[str, Any], plan: Plan) -> Entry | None:
        """What is to be known of the opening. None if nobody can go on from here."""
        closed = self.messages.needed >= FOREVER
        parts = {name: self._kept(value) for name, value in values.items() if type(value) is not Namespace}
        spaces = {}
        for name, value in values.items():
            if type(value) is Namespace:
                spaces[name] = {key: kept(part) for key, part in contents(value).items()}
        named = {f"{name}.{key}": part for name, inside in spaces.items() for key, part in inside.items()} | parts
        if any(part is OPAQUE for part in named.values()):
            return None
        large = {name for name, part in named.items() if part is LARGE}
        distinct = len({id(value) for value in values.values() if type(value) is Namespace})
        rerun = closed or bool(large)
        if distinct < len(spaces) or (rerun and plan.changed is None) or (closed and not large <= plan.watched):
            return None
        return parts, spaces, rerun, "".join(self.pieces) if closed else None

    def _kept(self, value: Any) -> Any:
        if isinstance(value, list | dict):
            for name, given in self._given.items():
                if given is value:
                    return Given(name)
        return kept(value)

    def _check(self, values: dict[str, Any], mark: Mark, plan: Plan) -> None:
        """Raises `NeedWhole` unless all that the text up to the mark depends on is the same as it was. Then puts back
        what the loop had assigned by then."""
        base = mark.base
        if base.opening is not None:
            if "".join(self.pieces) != base.opening:
                raise NeedWhole
            for name, old in base.values.items():
                self._compare(name, old, self._kept(values[name]), mark, plan)
            for name, olds in base.spaces.items():
                inside = contents(values[name]) if type(values[name]) is Namespace else {}
                if inside.keys() != olds.keys():
                    raise NeedWhole
                for key, old in olds.items():
                    self._compare(f"{name}.{key}", old, kept(inside[key]), mark, plan)
        for name, saved in mark.state.spaces.items():
            for key, part in saved.items():
                values[name][key] = Undefined(name=key) if part is UNSET else part

    def _compare(self, name: str, old: Any, new: Any, mark: Mark, plan: Plan) -> None:
        if name in plan.watched:
            use = mark.state.uses.get(name, ANY)
            if use == ANY or (use != EXACT and type(new) is int and use[0] <= new <= use[1]):
                return
        if old is LARGE or not same(old, new):
            raise NeedWhole

    def _based(self) -> Base | None:
        messages = self.messages
        if self._mark is not None:
            base = self._mark.base
            if not base.rerun:
                return base
            history = base.history[: self._mark.start] + list(map(skeleton, self._sure()))
            return structs.replace(base, history=history, size=base.size + _SKELETON * len(messages.given))
        if self._entry is None or not self._bounds:
            return None
        values, spaces, rerun, opening = self._entry
        sure = self._sure()
        head = dict(enumerate(sure[:_HEAD] if rerun else map(skeleton, sure[: messages.head])))
        history = list(map(skeleton, sure)) if rerun else []
        size = size_of(values) + size_of(spaces) + size_of(head) + size_of(opening) + _SKELETON * len(history)
        return Base(self._owner, self._view, values, spaces, rerun, opening, head, history, self._developer, size)

    def _sure(self) -> Sequence[Message]:
        """The messages given of which it is known what engines make of them."""
        messages = self.messages
        return messages.given[: max(0, messages.halt - messages.first)]

    def _users(self) -> list[tuple[int, Message]]:
        """The users' messages that are known whole. An opening that looks for the last question ends at one."""
        near = {} if self._mark is None else self._mark.near
        users = [(index, message) for index, message in near.items() if message.get("role") == "user"][-1:]
        for index, message in enumerate(self._sure(), self.messages.first):
            if message.get("role") == "user":
                users.append((index, message))
        return users

    def _near(self, index: int, back: int, users: Sequence[tuple[int, Message]]) -> dict[int, Message]:
        messages = self.messages
        near: dict[int, Message] = {}
        for place in range(max(0, index - back), index):
            here = place - messages.first
            message = messages.given[here] if here >= 0 else (messages.earlier or {}).get(place)
            if message is not None:
                near[place] = skeleton(message)
        for place, message in reversed(users):
            if place < index:
                near[place] = message
                break
        return near


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


def _interval(index: int, comparison: str, value: int) -> tuple[int, int]:
    """The least and the greatest value with which a comparison with `index` comes out as it does with `value`."""
    if comparison in ("eq", "ne") and value == index:
        return index, index
    cut = index if comparison in ("gt", "lteq") or value < index else index + 1
    if comparison in ("gteq", "lt"):
        cut = index + 1
    return (cut, FOREVER) if value >= cut else (-FOREVER, cut - 1)


HOOKS: dict[str, Callable[..., Any]] = {
    "#begin": Run.begin,
    "#count": count,
    "#than": Run.than,
    "#use": Run.use,
    "#value": Run.value,
    "#walk": Run.walk,
    "#walk with loop": Run.walk_with_loop,
}
