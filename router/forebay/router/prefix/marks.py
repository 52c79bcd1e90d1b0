"""Which of the keys that a holder is expected to have are kept, and what these say of the others (pure).

A key stands for all tokens before it, so that one says the same of keys before it. The first `NEAR` keys are kept each;
beyond them they are told in groups of `EACH`, where a key speaks for those before it in its group: the last of each
group is kept, and the last of all. Of two prompts that part beyond the first 4,096 tokens up to 224 may be the same and
are not found; to keep every key took seven times as long.
"""

from itertools import accumulate, repeat
from operator import and_, or_

from forebay.router.prefix.claims import Table
from forebay.router.prefix.keys import Keys

NEAR = 128  # keys; a multiple of EACH
EACH = 8  # keys, a power of two: 256 tokens, by which engines' counts of cached tokens differ anyway


def marks(keys: Keys, first: int) -> tuple[list[int], list[int]]:
    """What is kept of `keys`, which are a prompt's from number `first` on: near ones, and ends of groups. They speak
    for what is before `keys` in their group as well."""
    if first + len(keys) <= NEAR:
        return keys.tolist(), []
    begin = max(NEAR, first)
    ends = keys[begin - first + EACH - 1 - begin % EACH :: EACH].tolist()
    if (first + len(keys)) % EACH:
        ends.append(int(keys[-1]))
    return keys[: begin - first].tolist(), ends


def group(first: int, number: int) -> tuple[int, int]:
    """From where to where the keys go that are told by end number so-and-so of `marks`."""
    start = (max(NEAR, first) // EACH + number) * EACH
    return start, start + EACH


def having(table: Table, step: Keys, start: int, at: int, who: int) -> int:
    """Those of `who` that have the key at `at` of a step of keys, which begins with number `start`, as a group does."""
    end = at + 1 if start + at < NEAR else (at | EACH - 1) + 1
    keys, found = step[at:end].tolist(), 0
    if any(map(table.get, keys)):  # rarely: a prompt ends at one place for many holders
        for key in keys:
            found |= who & table.get(key, 0)
    return found


def having_each(table: Table, step: Keys, start: int, who: int) -> list[int]:
    """Those of `who` that have each key of the step."""
    found = list(map(and_, map(table.get, step.tolist(), repeat(0)), repeat(who)))
    for at in range(max(0, NEAR - start), len(found), EACH):
        some = found[at : at + EACH]
        if any(some):
            found[at : at + EACH] = reversed(list(accumulate(reversed(some), or_)))
    return found
