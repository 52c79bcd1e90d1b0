"""Events about blocks whose parent was never announced: kept until it is, or until others need the room (pure)."""

from collections import OrderedDict

from forebay.router.prefix.blocks import Hash, Stored, Tier
from forebay.router.prefix.sizes import Counts

EVENTS = 1024
TOKENS = 1 << 18  # one long prompt; all of it is summed at once when the parent comes

Healed = tuple[Stored, list[Hash]]  # what was told, and the hashes in it that were removed meanwhile


class Parking:
    """One holder's orphans. Removals of blocks that are parked are owed until the event is healed, so that nothing is
    taken to be held that was announced, parked and removed."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._events = 0
        self._tokens = 0
        self.waiting: OrderedDict[Hash, list[Stored]] = OrderedDict()
        self._copies: dict[tuple[Hash, Tier], list[int]] = {}  # [times parked, of those removed]

    def __len__(self) -> int:
        return self._events

    def __contains__(self, parent: Hash) -> bool:
        return parent in self.waiting

    def park(self, event: Stored, parent: Hash) -> None:
        """Keep `event` until `parent` is known. The oldest are dropped for it if there is no room."""
        self.waiting.setdefault(parent, []).append(event)
        self._events += 1
        self._tokens += len(event.tokens)
        for hash_ in event.hashes:
            self._copies.setdefault((hash_, event.tier), [0, 0])[0] += 1
        while self._events > EVENTS or self._tokens > TOKENS:
            self._drop_oldest()

    def owe(self, hash_: Hash, tier: Tier) -> bool:
        """A removal of a block that is not known: whether it is parked."""
        copies = self._copies.get((hash_, tier))
        if copies is None or copies[1] >= copies[0]:
            return False
        copies[1] += 1
        return True

    def take(self, parent: Hash) -> list[Healed]:
        """The events that waited for `parent`."""
        healed = []
        for event in self.waiting.pop(parent):
            healed.append((event, [hash_ for hash_ in event.hashes if self._unpark(hash_, event.tier)]))
            self._left(event)
        return healed

    def _unpark(self, hash_: Hash, tier: Tier) -> bool:
        """Whether a removal of it was owed, which is paid with this."""
        copies = self._copies[hash_, tier]
        copies[0] -= 1
        if not copies[0]:
            del self._copies[hash_, tier]
        if not copies[1]:
            return False
        copies[1] -= 1
        return True

    def _drop_oldest(self) -> None:
        parent, events = next(iter(self.waiting.items()))
        event = events.pop(0)
        if not events:
            del self.waiting[parent]
        for hash_ in event.hashes:
            self._unpark(hash_, event.tier)
        self._left(event)
        self._counts.orphans += 1

    def _left(self, event: Stored) -> None:
        self._events -= 1
        self._tokens -= len(event.tokens)
