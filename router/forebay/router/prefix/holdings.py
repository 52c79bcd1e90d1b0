"""What one holder has cached, as its KV events tell it (pure).

Blocks are counted: vLLM announces a block again when it has computed the same content twice, and removes it as often
(v1/core/block_pool.py; only a request with `kv_cache_report_mode: full` repeats what is not removed again, which no
tenant can ask for). A block that is known is what it was announced as first: other tiers say less of it.
"""

from collections.abc import Callable, Sequence

from forebay.router.prefix.blocks import Change, Hash, Stored, Tier
from forebay.router.prefix.claims import Claims
from forebay.router.prefix.hashes import numbered
from forebay.router.prefix.held import Held
from forebay.router.prefix.keys import GRID
from forebay.router.prefix.parking import Parking
from forebay.router.prefix.records import AT, KEYED, MASK, PLACE, SUM, TIERS
from forebay.router.prefix.sizes import Counts
from forebay.router.prefix.sums import Plan, Sums, well_formed

_OFF_GRID = GRID - 1 << AT

Root = Callable[[str | None, str | None], int]  # LoRA and salt → the record of what precedes a prompt


class Holding:
    """One holder under one bit of the claims. It is given up whole when the holder is cleared; its bit may be another's
    when `held.sweep` has taken back every claim."""

    __slots__ = ("_counts", "_most", "_root", "_sums", "held", "parking")

    def __init__(self, claims: Claims, counts: Counts, sums: Sums, root: Root, most: int) -> None:
        self.held = Held(claims, counts)
        self.parking = Parking(counts)
        self._counts = counts
        self._sums = sums
        self._root = root
        self._most = most

    def __repr__(self) -> str:
        return f"<Holding: {len(self.held.blocks)} blocks, {len(self.parking)} events parked>"

    def apply(self, events: Sequence[Change]) -> None:
        """Stores and removals, in order: what is known afterwards is the same as if they came one by one."""
        events = numbered(events)
        self._apply(events, self._sums.plan(events, self.held.blocks))
        if len(self.held.blocks) > self._most:
            self.held.shed(self._most)

    def _apply(self, events: Sequence[Change], plan: Plan) -> None:  # noqa: C901, PLR0912
        # With all that is usual in it: most events tell of one block, and a call costs as much as that.
        held, root = self.held, self._root
        waiting = self.parking.waiting if plan.only is None else {}  # who plans one alone heals
        blocks, follows, bit, cells, at = held.blocks, held.follows, held.claims.bit, plan.cells, 0
        before, after = 0, bit  # as in `Claims.claim`
        for event, start in zip(events, plan.starts, strict=True):
            if type(event) is not Stored:
                if absent := held.remove(event.hashes, event.tier):
                    self._owe(absent, event.tier)
                continue
            parent, tier = event.parent, event.tier
            record = root(event.lora, event.salt) if parent is None else blocks.get(parent, 0)
            if start is None or record & PLACE != start:  # not planned, or the parent was removed meanwhile
                self._store_alone(event)
                at += 0 if start is None else len(event.tokens) // plan.cell
            else:
                run = None
                if event.block_size == plan.cell and len(event.hashes) == 1:
                    ends: Sequence[int] = ((record >> SUM) + cells[at] & MASK,)
                    at += 1
                else:
                    run = plan.run(event, at, record >> SUM)
                    ends = run.ends
                    at += len(event.tokens) // plan.cell
                table = held.claims.tables[tier]
                loose = None if record & KEYED else parent  # the block before, if it ends between two keys
                mark, step, number = start | 1 << tier, event.block_size << AT, 0
                for hash_ in event.hashes:
                    end = ends[number]
                    number += 1  # noqa: SIM113 - for one block, `enumerate` costs more than the rest of the loop
                    mark += step
                    record = end << SUM | mark if mark & _OFF_GRID else end << SUM | mark | KEYED
                    known = blocks.setdefault(hash_, record)
                    if known is not record:
                        held.hold(hash_, known, tier)
                    elif record & KEYED:
                        holders = table.get(end, 0)
                        if holders is before:
                            table[end] = after
                        elif holders & bit:
                            held.claims.rival(end, tier)
                        else:
                            before, after = holders, holders | bit
                            table[end] = after
                    if loose is not None and follows.setdefault(loose, hash_) is not hash_:
                        held.rest(hash_, loose)
                    loose = None if known & KEYED else hash_
                if run is not None:
                    held.hold_inner(event, run)
            if waiting:
                self._heal(event.hashes)

    def _owe(self, absent: list[Hash], tier: Tier) -> None:
        """Blocks were removed that are not there: they may be parked."""
        for hash_ in absent:
            if not self.parking.owe(hash_, tier):
                self._counts.unknown += 1

    def _store_alone(self, event: Stored) -> None:
        """Store what was not planned: orphans, other tiers, other sizes, media, lies."""
        hashes, tier, blocks = event.hashes, event.tier, self.held.blocks
        if not well_formed(event):
            self._counts.malformed += 1
            return
        if not event.tokens:
            self._store_by_hash(hashes, tier)
            return
        exact = len(hashes) if event.inexact is None else max(0, event.inexact)
        parent = self._root(event.lora, event.salt) if event.parent is None else blocks.get(event.parent)
        if not exact or (parent is not None and parent <= TIERS):
            self._store_opaque(hashes, tier)
        elif parent is not None:
            part = _part(event, 0, exact)
            plan = self._sums.alone(part, parent & PLACE, parent >> SUM)
            if plan is None:
                self._counts.malformed += 1
            else:
                self._apply([part], plan)
                self._store_opaque(hashes[exact:], tier)
        elif (record := blocks.get(hashes[0])) is not None:  # tells as much as the parent would
            self.held.hold(hashes[0], record, tier)
            if len(hashes) > 1:
                self._store_alone(_part(event, 1, len(hashes)))
        else:
            assert event.parent is not None
            self.parking.park(event, event.parent)

    def _store_by_hash(self, hashes: list[Hash], tier: Tier) -> None:
        for hash_ in hashes:
            if (record := self.held.blocks.get(hash_)) is not None:
                self.held.hold(hash_, record, tier)
            else:
                self.parking.park(Stored([hash_], None, [], 0, tier=tier), hash_)

    def _store_opaque(self, hashes: list[Hash], tier: Tier) -> None:
        for hash_ in hashes:
            if (record := self.held.blocks.get(hash_)) is not None:
                self.held.hold(hash_, record, tier)
            else:
                self.held.blocks[hash_] = 1 << tier

    def _heal(self, hashes: list[Hash]) -> None:
        """Store what waited for one of `hashes`, and what waited for that."""
        came = list(hashes)
        while came:
            hash_ = came.pop()
            if hash_ in self.parking and hash_ in self.held.blocks:
                for event, removed in self.parking.take(hash_):
                    self._store_alone(event)
                    self._owe(self.held.remove(removed, event.tier), event.tier)
                    came += event.hashes


def _part(event: Stored, start: int, end: int) -> Stored:
    """Blocks `start` to `end` of the run, exclusive."""
    size = event.block_size
    return Stored(
        event.hashes[start:end],
        event.hashes[start - 1] if start else event.parent,
        event.tokens[start * size : end * size],
        size,
        event.lora,
        event.salt,
        event.tier,
        None if event.inexact is None or event.inexact >= end else event.inexact - start,
    )
