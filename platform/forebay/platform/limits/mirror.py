"""What this process alone has counted and holds (pure): what it can go by while Valkey is away, and what makes Valkey
whole again afterwards.

A process tells Valkey with each reservation what it has spent of the window so far; Valkey remembers it for each
process, and adds what it missed. So what passed while it was away is counted once when it returns, and so is all of a
window when it returns empty.
"""

from msgspec import Struct

from forebay.platform.limits.rules import Check
from forebay.platform.limits.window import WINDOW_MS, window

MOST_DOUBTS = 10_000
SLOTS_KNOWN_MS = 12_000  # they are held and given back all the time


class Spent(Struct):
    """Of one limit, in one window. While Valkey answers, it never has less of this process."""

    phase: int
    window: int
    count: int


class Heard(Struct, frozen=True):
    """What Valkey said of a limit: `total` of all processes, `mine` of this one at that moment."""

    window: int
    at_ms: int
    total: int
    mine: int


class Mirror:
    def __init__(self) -> None:
        self.spent: dict[bytes, Spent] = {}
        self.slots: dict[bytes, set[bytes]] = {}
        self._heard: dict[bytes, Heard] = {}
        self._doubtful: list[tuple[bytes, bytes]] = []

    @property
    def leases(self) -> int:
        return sum(map(len, self.slots.values()))

    def of(self, key: bytes, number: int) -> int:
        """Spent in that window."""
        spent = self.spent.get(key)
        return spent.count if spent is not None and spent.window == number else 0

    def spend(self, key: bytes, phase: int, number: int, count: int) -> None:
        """`count` may be negative. What concerns a window that is over changes nothing."""
        spent = self.spent.get(key)
        if spent is None or spent.window < number:
            self.spent[key] = Spent(phase, number, max(0, count))
        elif spent.window == number:
            spent.count = max(0, spent.count + count)

    def take(self, key: bytes, request: bytes) -> None:
        self.slots.setdefault(key, set()).add(request)

    def give(self, key: bytes, request: bytes) -> None:
        held = self.slots.get(key)
        if held is not None:
            held.discard(request)
            if not held:
                del self.slots[key]

    def hear(self, check: Check, total: int, number: int, now_ms: int) -> None:
        self._heard[check.key] = Heard(number, now_ms, total, self.used(check, number))

    def doubt(self, key: bytes, request: bytes) -> None:
        """Whether Valkey holds the slot is not known: what it was told went unanswered. Leases end by themselves, so
        some may be left out."""
        if len(self._doubtful) < MOST_DOUBTS:
            self._doubtful.append((key, request))

    def doubts(self) -> list[tuple[bytes, bytes]]:
        """Slots that nobody has any more, which Valkey may not know; once."""
        doubtful, self._doubtful = self._doubtful, []
        return [(key, request) for key, request in doubtful if request not in self.slots.get(key, ())]

    def used(self, check: Check, number: int) -> int:
        return len(self.slots.get(check.key, ())) if check.kind.held else self.of(check.key, number)

    def total(self, check: Check, number: int) -> int:
        """Of all processes in that window, as far as this one has heard."""
        mine, heard = self.used(check, number), self._heard.get(check.key)
        return mine if heard is None or heard.window != number else max(mine, heard.total + mine - heard.mine)

    def allowed(self, check: Check, number: int, now_ms: int, processes: int) -> int:
        """How much of a limit this process may use: its share of the whole; and if Valkey has spoken of this window, or
        of these slots not long ago, beside what it had then no more than its share of what was left. Of a window that
        nothing was heard or used of, a whole prompt: a share may be less than any."""
        mine = share(check.limit, processes)
        heard = self._heard.get(check.key)
        if heard is not None and (now_ms - heard.at_ms < SLOTS_KNOWN_MS if check.kind.held else heard.window == number):
            return min(max(heard.mine, mine), heard.mine + max(0, check.limit - heard.total) // max(1, processes))
        if self.used(check, number) == 0 and not check.never:
            return max(check.cost, mine)
        return mine

    def forget(self, now_ms: int) -> None:
        """Windows that are over."""
        for key in [key for key, heard in self._heard.items() if now_ms - heard.at_ms > WINDOW_MS]:
            del self._heard[key]
        for key in [key for key, one in self.spent.items() if one.window < window(now_ms, one.phase).number]:
            del self.spent[key]


def share(limit: int, processes: int) -> int:
    """Of a limit, for one of so many processes."""
    return max(1, limit // max(1, processes)) if limit else 0
