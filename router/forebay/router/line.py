"""Those who wait in one pool (pure): how many may, whose turn it is, and who is before whom."""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

from msgspec import Struct

from forebay.router.backlog import Backlog
from forebay.router.fairness import Counters, Shares
from forebay.router.prefix.keys import Keys
from forebay.router.tiers import Tiers
from forebay.router.waiting import Order, Waiting, shortest_first

MOST = 4_096  # requests that wait in one pool; each tier has its part of them
MOST_BYTES = 128 << 20  # of their keys
_BACK = 512  # keys of a prompt looked through for the end of an earlier turn: 16 Ki tokens
OF_FREE = 8  # times what is left of a tier's part, that one tenant may hold of it: alone it gets eight ninths


class Short(Struct, frozen=True):
    """A tier that goes first for as long as it is served less than its share. `lacking_s`: seconds of all the pool's
    work that this is; `seconds`: of prefill that it has waiting, and of how many requests."""

    share: float
    lacking_s: float
    seconds: float
    number: int


class Ahead(Struct, frozen=True):
    """What stands before a newcomer: how many requests, seconds of prefill of tiers before its own and of its own and
    the peers of that; and lower tiers, or peers, that go first for their share. `lacking_s`: what its own tier is
    short of, as in `Short`."""

    number: int = 0
    higher_s: float = 0.0
    own_s: float = 0.0
    shorts: tuple[Short, ...] = ()
    lacking_s: float = 0.0


class _Held(Struct):
    """How many wait, and bytes of their keys."""

    number: int = 0
    size: int = 0


class _Session(Struct):
    """Of one with requests in the line: how many came, and how many of those have left it."""

    came: int = 0
    left: int = 0


class Line:
    """Of one pool, bounded, each tier for itself. `seconds`: of prefill that waits, by tier."""

    def __init__(
        self,
        order: Order = shortest_first,
        *,
        most: int = MOST,
        most_bytes: int = MOST_BYTES,
        tiers: Tiers | None = None,
        counters: Counters | None = None,
        shares: Shares | None = None,
    ) -> None:
        tiers = tiers or Tiers()
        self.counters = Counters() if counters is None else counters
        self.shares = Shares(tiers) if shares is None else shares
        self.seconds: dict[str, float] = {}
        self._order = order
        self._most = max(1, most // len(tiers))
        self._most_bytes = max(1, most_bytes // len(tiers))
        # By tier, and of those by tenant: newcomers, and those that were admitted once.
        self._held: dict[tuple[str, bool] | tuple[str, bool, str], _Held] = {}
        self._by_number: dict[int, Waiting] = {}
        self._by_tier: dict[str, dict[int, Waiting]] = {}
        self._backlogs: dict[str, dict[str, Backlog]] = {}  # by tier and tenant
        self._sessions: dict[str, _Session] = {}
        self._ends: Counter[int] = Counter()  # last keys of prompts

    def __repr__(self) -> str:
        return f"<Line of {len(self._by_number)}>"

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Waiting]:
        """First those that were not weighed for longest."""
        return iter(self._by_number.values())

    @property
    def tiers(self) -> dict[str, int]:
        """Requests that wait, by tier."""
        return {name: len(there) for name, there in self._by_tier.items()}

    def add(self, waiting: Waiting) -> bool:
        """False: there is no room for it."""
        if not self._fits(waiting):
            return False
        name, ask = waiting.tier.name, waiting.ask
        self._stand(waiting)
        if ask.session:
            self._sessions.setdefault(ask.session, _Session()).came += 1
        self._by_number[waiting.number] = self._by_tier.setdefault(name, {})[waiting.number] = waiting
        for part in self._parts(waiting):
            held = self._held.setdefault(part, _Held())
            held.number, held.size = held.number + 1, held.size + len(ask.keys)
        self.seconds[name] = self.seconds.get(name, 0.0) + waiting.prefill_s
        self._backlogs.setdefault(name, {}).setdefault(ask.tenant, Backlog()).add(waiting)
        self.counters.joined(waiting.tier.rank, ask.tenant)
        if len(waiting.keys):
            self._ends[int(waiting.keys[-1])] += 1
        return True

    def _parts(self, waiting: Waiting) -> tuple[tuple[str, bool], tuple[str, bool, str]]:
        name, promised = waiting.tier.name, waiting.promised
        return (name, promised), (name, promised, waiting.ask.tenant)

    def _fits(self, waiting: Waiting) -> bool:
        """Those that were admitted once find as much room again, and take none of newcomers'. One tenant's flood leaves
        some to the others."""
        everyone, mine = (self._held.get(part) or _Held() for part in self._parts(waiting))
        places = self._most - everyone.number - 1
        room = self._most_bytes - everyone.size - len(waiting.ask.keys)
        return min(places, room) >= 0 and mine.number <= OF_FREE * places and mine.size <= OF_FREE * room

    def remove(self, number: int) -> Waiting | None:
        waiting = self._by_number.pop(number, None)
        if waiting is not None:
            name, ask = waiting.tier.name, waiting.ask
            there, mine = self._by_tier[name], self._backlogs[name][ask.tenant]
            del there[number]
            mine.remove(waiting)
            if not mine:
                del self._backlogs[name][ask.tenant]
            for part in self._parts(waiting):
                held = self._held[part]
                held.number, held.size = held.number - 1, held.size - len(ask.keys)
                if not held.number:
                    del self._held[part]
            self.seconds[name] -= waiting.prefill_s
            self.counters.left(waiting.tier.rank, ask.tenant)
            if ask.session:
                session = self._sessions[ask.session]
                session.left += 1
                if session.left == session.came:
                    del self._sessions[ask.session]
            if len(waiting.keys):
                end = int(waiting.keys[-1])
                self._ends[end] -= 1
                if not self._ends[end]:
                    del self._ends[end]
            if not there:
                del self._by_tier[name], self.seconds[name], self._backlogs[name]
        return waiting

    def continues(self, keys: Keys) -> bool:
        """Whether a prompt begins with one that waits, or is the same."""
        return bool(self._ends) and not self._ends.keys().isdisjoint(keys[-_BACK:].tolist())

    def weighed(self, waiting: Waiting, home: str, prefill_s: float, cost: float) -> None:
        """Where it would go now, and what it would take there."""
        mine: Backlog | None = None
        if self._by_number.pop(waiting.number, None) is not None:
            self._by_number[waiting.number] = waiting
            self.seconds[waiting.tier.name] += prefill_s - waiting.prefill_s
            mine = self._backlogs[waiting.tier.name][waiting.ask.tenant]
            mine.remove(waiting)
        waiting.home, waiting.prefill_s, waiting.cost = home, prefill_s, cost
        self._stand(waiting)
        if mine is not None:
            mine.add(waiting)

    def _stand(self, waiting: Waiting) -> None:
        """A request that names no session is nobody's sub-agent: it stands for itself."""
        if name := waiting.ask.session:
            session = self._sessions.get(name) or _Session()
            if waiting.number not in self._by_number:
                waiting.turn = session.came
            waiting.behind = self.counters.under_way(name) + max(0, waiting.turn - session.left)
        waiting.due = self._order(waiting)

    def _bands(self, now: float, also: str = "") -> list[list[str]]:
        """The tiers that wait, and `also`, as their turn is."""
        first = {name: next(iter(there.values())).since for name, there in self._by_tier.items()}
        if also:
            first.setdefault(also, now)
        return [list(first)] if len(first) <= 1 else self.shares.bands(first, now)

    def ordered(self, now: float) -> list[Waiting]:
        order: list[Waiting] = []
        for band in self._bands(now):
            flows = list(self._flows(band))
            if flows:
                self.counters.lift(flows[0][0], min(served for _, served, _ in flows))
            if len(flows) == 1:
                order += flows[0][2].ones
                continue
            tagged = [
                (tag, one.due, one.number, one)
                for _, served, backlog in flows
                for tag, one in zip(accumulate(backlog.tokens, initial=served), backlog.ones, strict=False)
            ]
            tagged.sort()
            order += [one for _, _, _, one in tagged]
        return order

    def _flows(self, band: list[str]) -> Iterator[tuple[int, float, Backlog]]:
        """Who competes there: the rank, what its tenant was served in it, and what it has waiting in one tier."""
        for name in band:
            for tenant, backlog in self._backlogs.get(name, {}).items():
                rank = backlog.ones[0].tier.rank
                yield rank, self.counters.served(rank, tenant), backlog

    def ahead(self, waiting: Waiting, now: float) -> Ahead:
        """Before whom a newcomer would not go."""
        self._stand(waiting)
        name, number, higher_s, shorts = waiting.tier.name, 0, 0.0, list[Short]()
        band: list[str] = []
        for band in self._bands(now, name):
            if name in band:
                break
            for other in band:
                there, seconds = self._by_tier[other], self.seconds[other]
                tier = next(iter(there.values())).tier
                if tier.rank < waiting.tier.rank:
                    number += len(there)
                    higher_s += seconds
                else:
                    shorts.append(Short(tier.share, self.shares.lacking_s(other), seconds, len(there)))
        mine = self._backlogs.get(name, {}).get(waiting.ask.tenant)
        before, own_s, tokens = mine.before(waiting.due) if mine is not None else (0, 0.0, 0.0)
        tag = self.counters.served(waiting.tier.rank, waiting.ask.tenant) + tokens
        for _, served, backlog in self._flows(band):
            if backlog is not mine and served <= tag:
                others, seconds = backlog.within(tag - served, waiting.due)
                before, own_s = before + others, own_s + seconds
        return Ahead(number + before, higher_s, own_s, tuple(shorts), self.shares.lacking_s(name))

    def overdue(self, now: float) -> list[Waiting]:
        return [one for one in self._by_number.values() if one.until <= now]
