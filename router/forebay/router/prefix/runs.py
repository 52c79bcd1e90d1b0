"""How far holders have a prompt's keys without a gap (pure).

A conversation asks for the same keys again with each turn, and little of who holds them has changed. Where a step of
keys was looked up one by one, the table says the same afterwards by values that know of each other: a look at the last
one tells what was found in all, until any of them is replaced.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from itertools import repeat
from operator import and_, or_

from msgspec import Struct

from forebay.router.prefix import marks
from forebay.router.prefix.claims import Table
from forebay.router.prefix.keys import Keys

STEP = 256  # keys looked up at a time: most prompts are not held anywhere, and end at once; whole groups of marks
FEW = 16  # keys of a prompt that are looked up by themselves: for less than what it takes to remember them
_MOST = 32  # sets of holders in a step that is kept

Changes = dict[int, int]  # the sets of holders in a step of keys, and where each is met first, in that order


class _Seen(Struct, gc=False):
    """What was found in a step whose last key is `last`. It `holds` until a value of the step is replaced."""

    last: int
    changes: Changes
    holds: bool = True


class _Kept(int):
    """Holders, as the value of keys in a step that was seen. Whoever replaces it makes another of it by `|` or `^`."""

    seen: _Seen

    def __or__(self, more: int) -> int:
        self.seen.holds = False
        return int(self) | more

    def __xor__(self, other: int) -> int:
        self.seen.holds = False
        return int(self) ^ other


def runs(keys: Keys, holders: int, fast: Table, expected: Table, slow: Iterable[Table]) -> tuple["Runs", "Runs"]:
    """How far each of `holders` has the keys from the first one on without a gap: in any of the tables, and in `fast`
    or `expected` alone. Of what is expected the table has marks."""
    slow = [table for table in slow if table]
    if len(keys) <= min(FEW, marks.NEAR):
        quick = _one_by_one(keys, holders, (fast, expected))
        return (_one_by_one(keys, holders, (fast, expected, *slow)) if slow else quick), quick
    quick = Runs(holders, fast, expected)
    whole = Runs(holders, fast, expected, slow) if slow else quick
    for start in range(0, len(keys), STEP):
        if not whole.left:
            break
        step = keys[start : start + STEP]
        changes = _changes(fast, step) if fast else {0: 0}
        quick.go_on(start, step, changes)
        if whole is not quick:
            whole.go_on(start, step, changes)
    quick.end(len(keys))
    whole.end(len(keys))
    return whole, quick


def _one_by_one(keys: Keys, holders: int, tables: Sequence[Table]) -> "Runs":
    found = Runs(holders, {}, {})
    for number, key in enumerate(keys.tolist()):
        having = 0
        for table in tables:
            having |= table.get(key, 0)
        found.keep(number, having)
        if not found.left:
            break
    found.end(len(keys))
    return found


def _changes(table: Table, step: Keys) -> Changes:
    return _seen(table, step) or _look(table, step.tolist(), whole=len(step) == STEP)


def _marked(table: Table, step: Keys, start: int) -> Changes:
    """The same of a table of marks, the last of which is a whole step's last key."""
    if (seen := _seen(table, step)) is not None:
        return seen
    near, ends = marks.marks(step, start)
    return _look(table, near + ends, whole=len(step) == STEP)


def _seen(table: Table, step: Keys) -> Changes | None:
    last = int(step[-1])
    value = table.get(last, 0)
    if type(value) is _Kept and value.seen.holds and value.seen.last == last:  # and so do all keys before agree
        return value.seen.changes
    return None


def _look(table: Table, keys: list[int], *, whole: bool) -> Changes:
    found = list(map(table.get, keys, repeat(0)))
    changes = _firsts(found)
    if whole and 0 not in changes and len(changes) <= _MOST:
        for before in {id(one): one for one in found if type(one) is _Kept}.values():
            before.seen.holds = False  # of a prompt that parts from this one within the step: its values are replaced
        seen = _Seen(keys[-1], changes)
        kept = {holders: _Kept(holders) for holders in changes}
        for each in kept.values():
            each.seen = seen
        table.update(zip(keys, map(kept.__getitem__, found), strict=True))
    return changes


def _firsts(found: Sequence[int]) -> Changes:
    return {int(holders): found.index(holders) for holders in dict.fromkeys(found)}


class Runs:
    """`ended`: (number of keys, the holders that have just so many), ascending, without holders of none. `left`: those
    that have all keys so far."""

    def __init__(self, holders: int, fast: Table, expected: Table, slow: Sequence[Table] = ()) -> None:
        self._fast = fast
        self._expected = expected
        self._slow = slow
        self.left = holders
        self.ended: list[tuple[int, int]] = []

    def go_on(self, start: int, step: Keys, changes: Changes) -> None:
        """`changes` are those of the fast table in a `step` of keys, which begins with number `start`."""
        for holders, at in changes.items():  # only where a set is new can somebody be lost
            left = self.left & holders
            if left != self.left:
                lost = self.left ^ left
                more = marks.having(self._expected, step, start, at, lost) if self._expected else 0
                for table in self._slow:
                    more |= lost & table.get(int(step[at]), 0)
                self._end(start + at, left | more)
                if more:
                    self._go_on_with(start, step, changes)
                    return

    def _go_on_with(self, start: int, step: Keys, changes: Changes) -> None:
        """Somebody has in another table what it lacks in the fast one."""
        lacking = self.left & ~reduce(and_, changes)
        if self._expected and not lacking & ~reduce(and_, _marked(self._expected, step, start)):
            return  # it is expected of all of them
        keys, mine = step.tolist(), repeat(self.left)
        found = marks.having_each(self._expected, step, start, self.left)
        for table in (self._fast, *self._slow):
            found = list(map(or_, found, map(and_, map(table.get, keys, repeat(0)), mine)))
        for holders, at in _firsts(found).items():
            self._end(start + at, self.left & holders)

    def keep(self, count: int, having: int) -> None:
        """Who is not among `having` has `count` keys and no more."""
        self._end(count, self.left & having)

    def end(self, count: int) -> None:
        """There are no more than `count` keys."""
        self._end(count, 0)

    def _end(self, count: int, left: int) -> None:
        if count and left != self.left:
            self.ended.append((count, self.left ^ left))
        self.left = left


def bits(group: int) -> Iterator[int]:
    """Each holder of a group by itself."""
    while group:
        bit = group & -group
        yield bit
        group ^= bit
