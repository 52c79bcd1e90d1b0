"""The blocks that one holder has, by the engine's hashes, and the keys they claim (pure).

A block claims the keys at the positions it covers. What follows one that ends between two keys rests on it, and is
forgotten with it: behind each claim lie all tokens from the key before it.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from forebay.router.prefix.blocks import Hash, Stored, Tier
from forebay.router.prefix.claims import Claims
from forebay.router.prefix.records import KEYED, SUM, TIERS
from forebay.router.prefix.sizes import Counts
from forebay.router.prefix.sums import Run

_IN_GPU = 1 << Tier.GPU
_HOLDS = KEYED | TIERS
_ROUNDS = 8  # of looking for blocks in slower tiers before others are dropped

After = Hash | set[Hash]


class Held:
    """`blocks`: hash → record. `again`: for each tier, announcements of a block there beyond the first. `follows`: what
    follows a block that ends between two keys. `inner`: keys at positions inside of a block."""

    __slots__ = ("_counts", "again", "blocks", "claims", "follows", "inner")

    def __init__(self, claims: Claims, counts: Counts) -> None:
        self.claims = claims
        self.blocks: dict[Hash, int] = {}
        self.again: list[dict[Hash, int]] = [{} for _ in Tier]
        self.follows: dict[Hash, After] = {}
        self.inner: dict[Hash, list[int]] = {}
        self._counts = counts

    def hold(self, hash_: Hash, record: int, tier: Tier) -> None:
        """A block that is known with this record is announced in `tier`, there for the first time or again."""
        in_tier = 1 << tier
        if record & in_tier:
            self._counts.duplicates += 1
            self.again[tier][hash_] = self.again[tier].get(hash_, 0) + 1
        else:
            self.blocks[hash_] = record | in_tier
            self.claims.claim(self._keys(hash_, record), tier)

    def hold_inner(self, event: Stored, run: Run) -> None:
        """Blocks of the run were stored; claim the keys inside of those that are new."""
        for number, keys in run.inner.items():
            hash_ = event.hashes[number]
            if hash_ not in self.inner and self.blocks[hash_] >> SUM == run.ends[number]:
                self.inner[hash_] = keys
                self.claims.claim(keys, event.tier)

    def rest(self, hash_: Hash, loose: Hash) -> None:
        """`hash_` follows `loose`, which ends between two keys."""
        after = self.follows.setdefault(loose, hash_)
        if isinstance(after, set):
            after.add(hash_)
            if not len(after) & len(after) - 1:  # now and then: those that are gone
                after.intersection_update(self.blocks)
        elif after != hash_:
            self.follows[loose] = {after, hash_}

    def remove(self, hashes: list[Hash], tier: Tier) -> list[Hash]:
        """Take blocks out of a tier, once each. Returns those that are not there."""
        blocks, follows, again, claims = self.blocks, self.follows, self.again[tier], self.claims
        table, bit, in_tier = claims.tables[tier], claims.bit, 1 << tier
        usual, plain = in_tier | KEYED, not (self.inner or claims.rivals[tier])
        before, after = bit, 0  # as in `Claims.claim`
        broken: list[After] = []
        absent: list[Hash] = []
        for hash_ in hashes:
            if again and hash_ in again:
                self._once_less(hash_, again)
                continue
            record = blocks.pop(hash_, 0)
            holds = record & _HOLDS
            if holds == usual and plain:
                key = record >> SUM
                holders = table[key]
                if holders is not before:
                    before, after = holders, holders ^ bit
                if after:
                    table[key] = after
                else:
                    del table[key]
            elif holds == in_tier and plain:
                rest = follows.pop(hash_, None)
                if rest is not None and (isinstance(rest, set) or rest in blocks):
                    broken.append(rest)
            elif record & in_tier:
                self._lose(hash_, record, tier, broken)
            else:
                absent.append(hash_)
                if record:
                    blocks[hash_] = record
        if broken:
            self._forget_after(broken)
        return absent

    def _once_less(self, hash_: Hash, again: dict[Hash, int]) -> None:
        if again[hash_] > 1:
            again[hash_] -= 1
        else:
            del again[hash_]

    def _lose(self, hash_: Hash, record: int, tier: Tier, broken: list[After]) -> None:
        """What is left to do for a block of `tier` that was taken out of `blocks`. What may be of no use without it is
        added to `broken`, for `_forget_after`."""
        self.claims.release(self._keys(hash_, record), tier)
        if record & TIERS != 1 << tier:
            self.blocks[hash_] = record ^ 1 << tier
            return
        self.inner.pop(hash_, None)
        if (rest := self.follows.pop(hash_, None)) is not None:
            broken.append(rest)

    def _forget_after(self, broken: list[After]) -> None:
        """Forget what rested on blocks that are gone, up to the next key each."""
        while broken:
            after = broken.pop()
            for hash_ in after if isinstance(after, set) else (after,):
                if record := self.blocks.get(hash_):
                    self._forget(hash_, record, broken)

    def shed(self, most: int) -> None:
        """Drop blocks until there are less than `most`, the oldest first. Of the oldest, those that are in the fastest
        tier are spared as long as there are others: some caches announce what they store, and never that it is gone."""
        before, target = len(self.blocks), most - most // 64
        for rounds in range(_ROUNDS, 0, -1):
            oldest = list(islice(self.blocks.items(), max(0, len(self.blocks) - target)))
            spare = rounds > 1 and any(not record & _IN_GPU for _, record in oldest)
            broken: list[After] = []
            for hash_, record in oldest:
                if spare and record & _IN_GPU:
                    self.blocks[hash_] = self.blocks.pop(hash_)  # as if it were new
                else:
                    self._forget(hash_, record, broken)
            self._forget_after(broken)
        self._counts.dropped += before - len(self.blocks)

    def restore(self, hashes: list[Hash], records: list[int]) -> None:
        """Take blocks as another has them, `inner` before. Raises `ValueError` if one is there already."""
        before = len(self.blocks)
        self.blocks.update(zip(hashes, records, strict=True))
        if len(self.blocks) != before + len(hashes):
            raise ValueError("a block is there twice")
        for tier, keys in self._claimed(hashes, records):
            self.claims.claim(keys, tier)

    def sweep(self, most: int) -> int:
        """Of blocks that were given up whole: take back the claims of at most `most`. Returns how many there were; 0
        when nothing is left."""
        swept = min(most, len(self.blocks))
        some = [self.blocks.popitem() for _ in range(swept)]
        for tier, keys in self._claimed([hash_ for hash_, _ in some], [record for _, record in some]):
            self.claims.end(keys, tier)
        tables: list[dict[Any, Any]] = [self.follows, self.inner, *self.again, *self.claims.rivals]
        for table in tables:
            while table and swept < most:
                table.popitem()
                swept += 1
        return swept

    def _claimed(self, hashes: Sequence[Hash], records: list[int]) -> Iterator[tuple[Tier, list[int]]]:
        """The keys that blocks claim in each tier."""
        for tier in Tier:
            usual = 1 << tier | KEYED
            keys = [record >> SUM for record in records if record & usual == usual]
            if self.inner:
                for hash_, record in zip(hashes, records, strict=True):
                    if record >> tier & 1:
                        keys += self.inner.get(hash_, ())
            yield tier, keys

    def _forget(self, hash_: Hash, record: int, broken: list[After]) -> None:
        """Take a block out of all tiers, however often it was announced."""
        keys = self._keys(hash_, record)
        for tier in Tier:
            if record >> tier & 1:
                self.claims.release(keys, tier)
                self.again[tier].pop(hash_, None)
        del self.blocks[hash_]
        self.inner.pop(hash_, None)
        if (after := self.follows.pop(hash_, None)) is not None:
            broken.append(after)

    def _keys(self, hash_: Hash, record: int) -> list[int]:
        keys = [record >> SUM] if record & KEYED else []
        return keys + self.inner[hash_] if hash_ in self.inner else keys
