"""Who holds the beginning of a prompt: the index of one pool (pure)."""

from collections.abc import Sequence
from math import inf
from operator import attrgetter
from typing import cast

from msgspec import Struct

from forebay.router.prefix.blocks import Change, Cleared, Event, Tier
from forebay.router.prefix.claims import Claims, Table
from forebay.router.prefix.holdings import Holding
from forebay.router.prefix.keys import GRID, Keys, Weights
from forebay.router.prefix.records import KEYED, SUM
from forebay.router.prefix.runs import bits, runs
from forebay.router.prefix.sizes import Counts, Sizes
from forebay.router.prefix.speculation import Expected
from forebay.router.prefix.sums import Sums

_SWEEP = 1024  # blocks of holders that were cleared, taken back with each batch
_ENDED = 4096  # marks of what is expected that are ended at once, and the rest of one prompt's: some 2 ms
_UNSWEPT = 4  # times that one holder may be cleared before its earlier blocks are taken back
_CLEARLY = 256  # tokens that an engine may report less: it computes a prompt's last block again, however large


class Match(Struct, frozen=True, gc=False):
    """Tokens from a prompt's beginning that a holder has without a gap: in any tier, or in its fastest alone. What is
    expected counts as in the fastest."""

    tokens: int
    fast: int


class Holder(Struct, frozen=True):
    name: str
    holding: Holding
    expected: Expected

    @property
    def bit(self) -> int:
        return self.holding.held.claims.bit

    @property
    def empty(self) -> bool:
        return not (self.holding.held.blocks or self.holding.parking or self.expected)


class Index:
    """`blocks_per_holder` and `expected_per_holder` (keys) bound what one holder can cost. Changes end at once for
    `match`; what a holder had is taken back little by little, with later batches and by `sweep`."""

    def __init__(
        self, weights: Weights, *, blocks_per_holder: int = 1 << 20, expected_per_holder: int = 1 << 16
    ) -> None:
        self.weights = weights
        self.counts = Counts()
        self.blocks_per_holder = blocks_per_holder
        self._expected_per_holder = expected_per_holder
        self._sums = Sums(weights)
        self._root = lambda lora, salt: weights.seed(lora=lora, salt=salt) << SUM | KEYED
        self._tables: tuple[Table, ...] = tuple({} for _ in Tier)
        self._expected: Table = {}
        self._holders: dict[str, Holder] = {}
        self._names: dict[int, str] = {}  # of attached holders, by bit
        self._attached = 0  # their bits
        self._now = -inf  # up to which what was expected has ended, or ends now
        self._unswept: list[Holder] = []
        self._free: list[int] = []  # bits
        self._bits = 0  # ever used

    def __repr__(self) -> str:
        sizes = self.sizes()
        return (
            f"<Index: {len(sizes.blocks)} holders, {sum(sizes.blocks.values())} blocks, {sizes.keys} keys, "
            f"{sizes.expected} expected, {sizes.parked} parked, {sizes.unswept} unswept>"
        )

    def attach(self, name: str) -> None:
        """From now on `name` holds something: nothing yet, whatever one of that name had."""
        self.detach(name)
        self.commit(self.begin(name))

    def detach(self, name: str) -> None:
        if (holder := self._holders.pop(name, None)) is not None:
            self._attached ^= holder.bit
            del self._names[holder.bit]
            self.discard(holder)

    def clear(self, name: str) -> None:
        """The holder has nothing any more."""
        holder = self._holders.get(name)
        if holder is not None and not holder.empty:
            self.attach(name)

    def begin(self, name: str) -> Holder:
        """A holder that nobody sees before `commit`, and that `discard` takes back."""
        bit = min(self._free, default=1 << self._bits)
        if self._free:
            self._free.remove(bit)
        else:
            self._bits += 1
        return Holder(
            name,
            Holding(Claims(self._tables, bit), self.counts, self._sums, self._root, self.blocks_per_holder),
            Expected(Claims((self._expected,), bit), self.counts, self._expected_per_holder),
        )

    def commit(self, holder: Holder) -> None:
        self.detach(holder.name)
        self._holders[holder.name] = holder
        self._names[holder.bit] = holder.name
        self._attached |= holder.bit

    def discard(self, holder: Holder) -> None:
        self._unswept.append(holder)
        same = [each for each in self._unswept if each.name == holder.name]
        if len(same) > _UNSWEPT:
            while not self._sweep(same[0], _SWEEP):
                pass
        self.sweep(_SWEEP)

    def holder(self, name: str) -> Holder:
        return self._holders[name]

    def apply(self, name: str, events: Sequence[Event]) -> None:
        """A batch of a holder's events, in order. Raises `KeyError` for one that is not attached."""
        start = 0
        for number in [number for number, event in enumerate(events) if type(event) is Cleared]:
            self._holders[name].holding.apply(cast("Sequence[Change]", events[start:number]))
            self.clear(name)
            start = number + 1
        self._holders[name].holding.apply(cast("Sequence[Change]", events[start:] if start else events))
        if self._unswept:
            self.sweep(_SWEEP)

    def match(self, keys: Keys) -> dict[str, Match]:
        """For each holder that has any: how much it has of the beginning of a prompt with these keys."""
        return self._match(keys, self._attached)

    def held(self, name: str, keys: Keys) -> Match:
        holder = self._holders.get(name)
        return self._match(keys, holder.bit if holder else 0).get(name, Match(0, 0))

    def expect(self, name: str, keys: Keys, start: int, until: float) -> None:
        """Take the holder to have `keys`, from number `start` on, until then: a request with them was sent to it."""
        if (holder := self._holders.get(name)) is not None and start < len(keys):
            holder.expected.add(keys, start, until)
            holder.expected.expire(self._now, _ENDED // 4)

    def observe(self, name: str, keys: Keys, *, claimed: int, cached: int, until: float) -> None:
        """The engine found `cached` tokens of a prompt where `claimed` had been said. What it has beyond what is known
        is expected until then; what was only expected, and is not there, ends."""
        holder = self._holders.get(name)
        if holder is None:
            return
        known = self.held(name, keys).tokens
        if (more := cached // GRID - known // GRID) > 0:
            self.counts.healed += more
            holder.expected.add(keys[: cached // GRID], known // GRID, until)
        if claimed - cached > _CLEARLY:
            self.counts.mismatches += 1
            holder.expected.drop(keys[-(-cached // GRID) : claimed // GRID])

    def expire(self, now: float) -> None:
        """End what was expected until now, the longest due first, and at most so much that nobody waits for it. To be
        called often: what ended still counts for `match` until then. What is left is ended beside what is expected
        next, so that it cannot become more and more."""
        self._now = now
        due = [holder.expected for holder in self._holders.values() if holder.expected.due <= now]
        most = _ENDED
        for expected in sorted(due, key=attrgetter("due")):
            most -= expected.expire(now, most)
            if most <= 0:
                break

    def sweep(self, most: int) -> bool:
        """Take back at most `most` blocks or keys of holders that were cleared or detached (1 µs each). Returns
        whether there may be more."""
        if self._unswept:
            self._sweep(self._unswept[0], most)
        return bool(self._unswept)

    def sizes(self) -> Sizes:
        holders = self._holders.values()
        return Sizes(
            blocks={holder.name: len(holder.holding.held.blocks) for holder in holders},
            keys=sum(map(len, self._tables)),
            parked=sum(len(holder.holding.parking) for holder in holders),
            expected=sum(len(holder.expected) for holder in holders),
            unswept=sum(len(holder.holding.held.blocks) for holder in self._unswept),
            counts=self.counts,
        )

    def _match(self, keys: Keys, holders: int) -> dict[str, Match]:
        gpu, *slower = self._tables
        whole, quick = runs(keys, holders, gpu, self._expected, slower)
        names = self._names
        if quick is whole:
            matches = [(Match(count * GRID, count * GRID), group) for count, group in whole.ended]
            return {names[bit]: match for match, group in matches for bit in bits(group)}
        fast = {bit: count * GRID for count, group in quick.ended for bit in bits(group)}
        return {
            names[bit]: Match(count * GRID, fast.get(bit, 0)) for count, group in whole.ended for bit in bits(group)
        }

    def _sweep(self, holder: Holder, most: int) -> bool:
        """Whether nothing of it is left."""
        if holder.expected.sweep(most) or holder.holding.held.sweep(most):
            return False
        self._unswept.remove(holder)
        self._free.append(holder.bit)
        return True
