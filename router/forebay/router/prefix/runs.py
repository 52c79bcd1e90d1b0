"""How far holders have a prompt's keys without a gap (pure).

A conversation asks for the same keys again with each turn, and little of who holds them has changed. Where a step of
keys was looked up one by one, the table says the same afterwards by values that know of each other: a look at the last
one tells what was found in all, until any of them is replaced.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import and_, or_

from msgspec import Struct

from forebay.router.prefix.claims import Table
from forebay.router.prefix.keys import Keys

STEP = 256  # keys looked up at a time: most prompts are not held anywhere, and end at once
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


def runs(keys: Keys, holders: int, fast: Sequence[Table], slow: Sequence[Table]) -> tuple["Runs", "Runs"]:
    """How far each of `holders` has the keys from the first one on without a gap: in any of the tables, and in one of
    `fast` alone."""
    slow = [table for table in slow if table]
    first, *others = [table for table in fast if table] or fast
    quick = Runs(holders)
    whole = Runs(holders) if slow else quick
    for start in range(0, len(keys), STEP):
        if not whole.left:
            break
        step = keys[start : start + STEP]
        changes = _changes(first, step)
        quick.go_on(start, step, changes, first, others)
        if whole is not quick:
            whole.go_on(start, step, changes, first, [*others, *slow])
    quick.end(len(keys))
    whole.end(len(keys))
    return whole, quick


def _changes(table: Table, step: Keys) -> Changes:
    last = int(step[-1])
    value = table.get(last, 0)
    if type(value) is _Kept and value.seen.holds and value.seen.last == last:  # and so do all keys before agree
        return value.seen.changes
    keys = step.tolist()
    found = list(map(table.get, keys, repeat(0)))
    changes = _firsts(found)
    if len(keys) == STEP and 0 not in changes and len(changes) <= _MOST:
        for before in {id(one): one for one in found if type(one) is _Kept}.values():
            before.seen.holds = False  # of a prompt that parts from this one within the step: its values are replaced
        seen = _Seen(last, changes)
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

    def __init__(self, holders: int) -> None:
        self.left = holders
        self.ended: list[tuple[int, int]] = []

    def go_on(self, start: int, step: Keys, changes: Changes, first: Table, others: Iterable[Table]) -> None:
        """`changes` are those of `first` in a `step` of keys, which begins with number `start`."""
        for holders, at in changes.items():  # only where a set is new can somebody be lost
            left = self.left & holders
            if left != self.left:
                key, lost = int(step[at]), self.left ^ left
                for table in others:
                    if table.get(key, 0) & lost:
                        self._go_on_with(start, step, (first, *others))
                        return
                self._end(start + at, left)

    def _go_on_with(self, start: int, step: Keys, tables: Iterable[Table]) -> None:
        """Somebody has in one table what it lacks in another."""
        keys, mine = step.tolist(), repeat(self.left)
        found = [0] * len(keys)
        for table in tables:
            found = list(map(or_, found, map(and_, map(table.get, keys, repeat(0)), mine)))
        for holders, at in _firsts(found).items():
            self._end(start + at, self.left & holders)

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
