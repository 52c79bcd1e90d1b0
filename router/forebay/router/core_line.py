"""Which of the requests that wait in a pool go to an engine now (pure)."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from forebay.router.admission import Gate
from forebay.router.blame import Blame
from forebay.router.ceilings import Ceilings
from forebay.router.core_pool import CorePool
from forebay.router.eviction import may_miss, misses
from forebay.router.fairness import Counters, Shares, cost
from forebay.router.line import Line
from forebay.router.loads import Booking
from forebay.router.member import Member
from forebay.router.placement import Option, choose
from forebay.router.routing import Ask, Candidate, Explanation, Outcome, Refused
from forebay.router.service import Service
from forebay.router.tiers import Shed, Tier, Tiers
from forebay.router.waiting import START_S, Waiting, keys_of

MATCHED_S = 1.0  # what is cached of a request that waits is looked up anew after this
WEIGHED_S = 0.25  # one that would go where there is no room, or that nobody asked, is weighed anew after this
AGAIN_S = 0.05  # between two times that some are weighed of so many that not all can be at once
_MOST_TOKENS = 1 << 24  # of one request: an engine that says more is not believed
LOOKED = 16  # of those weighed anew at a time: the first ones, and as many of those that were not for longest
MOVED = 64  # of those whose endpoint has gone, or is taken by those before them, that are weighed anew at a time

MOSTLY = 0.5  # of a conversation, that is still cached
SPARE = 2.0  # times its least share, that a tier is left with where others are late


class CoreLine:
    """The line before one pool."""

    def __init__(self, pool: CorePool, tiers: Tiers | None = None) -> None:
        self.pool = pool
        self.tiers = tiers or Tiers()
        self.counters = Counters()
        self.shares = Shares(self.tiers)
        self.service = Service(self.shares)
        self.gate = Gate(self.tiers, lambda: pool.rates)
        self.ceilings = Ceilings(self.tiers)
        self.blame = Blame(self.tiers)
        self.line = Line(tiers=self.tiers, counters=self.counters, shares=self.shares)
        self._unwanted: set[tuple[str, str]] = set()  # tiers and endpoints with room for them that nobody would go to
        self._able: list[str] = []  # endpoints that were asked last
        self._weigh_at = 0.0  # when that may have changed

    def __repr__(self) -> str:
        return f"<CoreLine {self.pool.name} {self.line}>"

    def options(self, waiting: Waiting, now: float, ahead: Mapping[str, float] | None = None) -> list[Option]:
        """Where it could go, as things are, with so many seconds of others before it."""
        if not 0 <= now - waiting.held_at <= MATCHED_S:
            waiting.held, waiting.held_at = self.pool.held(waiting.keys), now
        return self.pool.options(waiting.ask, waiting.held, now, ahead=ahead)

    def _weighed(self, waiting: Waiting, now: float, ahead: Mapping[str, float]) -> list[Option]:
        waiting.weighed_at = now
        options = self.options(waiting, now, ahead)
        if options:
            waiting.cold_until = math.inf
            best = choose(options)
            self.line.weighed(waiting, best.name, best.prefill_s, _cost(waiting, best))
        return options

    def opens(self, name: str, now: float, tier: Tier | None = None) -> bool:
        """Whether the endpoint would start more work of a tier soon."""
        member, tier = self.pool.members[name], tier or next(iter(self.tiers))
        short = self.shares.short(tier.name)
        return self.ceilings.opens(tier, _ahead_s(member, now), member.load.in_flight, short=short)

    def admit(self, waiting: Waiting, best: Option, now: float) -> Refused | None:
        """Why a newcomer is not let in; else it is in the tier that it will be served in."""
        if self.line and (refused := self._refused(waiting, best, now)) is not None:
            return refused
        if not waiting.promised:
            waiting.came_s, waiting.came_at = best.prefill_s, now
            self.gate.came(waiting.tier, best.prefill_s, now)
        if waiting.tier.shed is Shed.SHED and waiting.tier.ttft_s is not None and not waiting.promised:
            waiting.until = min(waiting.until, now + max(waiting.tier.ttft_s, best.prefill_s))
        return None

    def _refused(self, waiting: Waiting, best: Option | Candidate, now: float) -> Refused | None:
        """As predicted; else its tier is the one that lets it in."""
        if waiting.promised or not self.gate.predicts:
            return None
        refused, tier, until = None, waiting.tier, waiting.until
        asked: Tier | None = tier
        while asked is not None:
            waiting.tier = asked
            if asked is not tier:  # it may wait as those do that ask for this one
                waiting.until = max(until, now + min(asked.queue_s - waiting.ask.waited_s, waiting.ask.left_s))
            self.line.weighed(waiting, "", best.prefill_s, _cost(waiting, best))
            ahead, able = self.line.ahead(waiting, now), self._takers()
            found = self.gate.refusal(waiting, best, ahead, able, now, new=True)
            if found is not None and self._goes_on(waiting, best):
                found = self.gate.refusal(waiting, best, ahead, able, now)
            if found is None:
                return None
            refused = refused or found
            asked = self.tiers.below(asked) if tier.shed is Shed.DOWNGRADE else None
        waiting.tier, waiting.until = tier, until
        return refused

    def _goes_on(self, waiting: Waiting, best: Option | Candidate) -> bool:
        """Whether an earlier turn of its conversation waits as well, or was here and has left most of it in a cache."""
        if self.line.continues(waiting.keys):
            return True
        context = self.pool.contexts.find(waiting.keys, waiting.ask.session, cached=best.cached)
        return context is not None and best.cached >= MOSTLY * context.tokens

    def _takers(self) -> int:
        """Endpoints at which what waits is worked off."""
        return sum(map(self.pool.takes, self.pool.members.values()))

    def explain(self, ask: Ask, candidates: list[Candidate], chosen: Candidate, now: float) -> Explanation:
        """What would become of a request; changes nothing."""
        waiting = Waiting(0, 0, ask, now, now + ask.patience_s, keys_of(ask), tier=self.tiers[ask.tier])
        refused = self._refused(waiting, chosen, now)
        self.line.weighed(waiting, "", chosen.prefill_s, _cost(waiting, chosen))
        ahead, able = self.line.ahead(waiting, now), self._takers()
        wait_s = self.gate.wait_s(waiting.tier, ahead, able, now)
        before, predicted_s = self.gate.number(ahead, wait_s, able), wait_s + chosen.predicted_s
        return Explanation(candidates, before, waiting.tier.name, ask.weight, predicted_s, refused)

    def needy(self, running: Iterable[Booking], now: float) -> dict[str, int]:
        """The rank of the highest tier of which somebody would miss its first token's objective, by where it waits for
        it: at an endpoint, or in the line before it. An endpoint that is late is taken to be as late again."""
        found: dict[str, int] = {}
        unbegun = [one for one in running if one.waiting and one.tells]
        late_s = dict.fromkeys(self.pool.members, 0.0)
        for booking in unbegun:
            late_s[booking.endpoint] = max(late_s[booking.endpoint], now - booking.placed_at - booking.predicted_s)

        def needs(endpoint: str, tier: Tier, since: float, due_at: float) -> None:
            if misses(tier, since, max(due_at, now) + late_s.get(endpoint, 0.0)):
                found[endpoint] = min(tier.rank, found.get(endpoint, tier.rank))

        for booking in unbegun:
            tier = self.tiers[booking.tier]
            if may_miss(tier, booking.since, booking.prefill_s, now):
                needs(booking.endpoint, tier, booking.since, booking.placed_at + booking.predicted_s)
        if any(may_miss(one.tier, one.since, one.prefill_s, now) for one in self.line):
            for waiting, wait_s in self._waits(now):
                if may_miss(waiting.tier, waiting.since, waiting.prefill_s, now):
                    needs(waiting.home, waiting.tier, waiting.since, now + wait_s + waiting.prefill_s)
        return found

    def _waits(self, now: float) -> Iterator[tuple[Waiting, float]]:
        """Who waits, and for how long still: for what is before it in the line, and at the endpoint where it would
        go."""
        before, able = dict.fromkeys((tier.rank for tier in self.tiers), 0.0), self._takers()
        rates = {tier.name: self.gate.rate(tier, able, now) for tier in self.tiers}
        queued_s = {name: _ahead_s(member, now) for name, member in self.pool.members.items()}
        for one in self.line.ordered(now):
            rank = one.tier.rank
            ahead_s = sum(seconds for other, seconds in before.items() if other <= rank)
            yield one, max(ahead_s / rates[one.tier.name], queued_s.get(one.home, 0.0))
            before[rank] += one.prefill_s

    def spares(self, tier: str) -> bool:
        """Whether a tier has so much more than its least share that it keeps that if some of it is stopped."""
        return self.shares.part(tier) > SPARE * self.tiers[tier].share

    def cold(self, waiting: Waiting, now: float) -> bool:
        """Whether it waits for an endpoint to come: none may be asked, and its tier says that it may wait so long."""
        if waiting.tier.cold_s <= 0 or any(map(self.pool.takes, self.pool.members.values())):
            return False
        return self._puts_off(waiting, now)

    def _puts_off(self, waiting: Waiting, now: float) -> bool:
        """Put off the deadline of one that waits for an endpoint, as far as its tier says."""
        if waiting.tier.cold_s <= 0:
            return False
        waiting.cold_until = min(waiting.cold_until, now + waiting.tier.cold_s)
        until = min(waiting.cold_until, waiting.latest)
        waiting.until = max(waiting.until, until)
        return now < until

    def wait_s(self) -> float:
        """Seconds until what waits now will have begun, about."""
        able = sum(map(self.pool.opened, self.pool.members.values()))
        return sum(self.line.seconds.values()) / max(1, able)

    def add(self, waiting: Waiting, home: Option) -> bool:
        """False: there is no room."""
        self.line.weighed(waiting, home.name, home.prefill_s, _cost(waiting, home))
        self._unwanted.discard((waiting.tier.name, home.name))
        return self.line.add(waiting)

    def add_cold(self, waiting: Waiting) -> bool:
        """As `add`, of one that nothing can be weighed for: with nothing of it cached it has its turn, and is seen to
        stand before others, as soon as an endpoint comes."""
        rates, ask = self.pool.rates, waiting.ask
        prefill_s = rates.fixed_s + rates.effective(ask.tokens, 0) * rates.prefill_s
        self.line.weighed(waiting, "", prefill_s, cost(ask.tokens, ask.output))
        return self.line.add(waiting)

    def gone(self, waiting: Waiting, now: float) -> None:
        """It was let in, and nothing is to be done for it."""
        self.gate.uncame(waiting.tier, waiting.came_s, waiting.came_at, now)

    def booked(self, waiting: Waiting, booking: Booking, option: Option, now: float) -> None:
        """Charge its tenant, its session and its tier for what is expected of it."""
        ask = waiting.ask
        booking.tier, booking.tenant, booking.session = waiting.tier.name, ask.tenant, ask.session
        booking.charged = _cost(waiting, option)
        booking.weight, booking.stoppable = ask.weight, self.tiers[ask.asked or ask.tier].shed is Shed.SHED
        self.counters.placed(waiting.tier.rank, booking.tenant, booking.session, booking.charged / booking.weight)
        self.service.placed(booking, ask.tokens - option.cached, now)
        self.gate.pace.worked += option.prefill_s
        self.blame.placed(booking, self.pool.members[booking.endpoint], now)

    def begun(self, booking: Booking, now: float) -> None:
        if booking.waiting and booking.tells:
            lower_s = self.blame.begun(booking, self.pool.members[booking.endpoint], now)
            self.ceilings.first(self.tiers[booking.tier], now - booking.since, lower_s)
            self.service.begun(booking, now)

    def tick(self, now: float) -> None:
        self.gate.pace.passed(now, waits=bool(self.line))
        self.service.passed(now)
        self.ceilings.breathe(member.load.in_flight for member in self.pool.members.values())

    def ended(self, booking: Booking, outcome: Outcome, now: float) -> None:
        """Set right what was charged, by what was used."""
        actual, token_s, member = booking.charged, None, self.pool.members[booking.endpoint]
        if outcome.decode_s is not None and (tokens := min(outcome.output or 0, _MOST_TOKENS) - 1) > 0:
            token_s = outcome.decode_s / tokens
            lower_s = self.blame.answered(booking, member, tokens, outcome.decode_s, now)
            self.ceilings.token(self.tiers[booking.tier], token_s, lower_s / tokens)
        if outcome.output is not None:
            prompt = booking.tokens if outcome.prompt_tokens is None else outcome.prompt_tokens
            cached = booking.cached if outcome.cached is None else outcome.cached
            actual = cost(min(max(0, prompt - cached), _MOST_TOKENS), min(outcome.output, _MOST_TOKENS))
        elif booking.waiting:  # no token of it was seen: as much of its prefill as there was time for
            part = max(0.0, now - booking.placed_at) / max(booking.predicted_s, 1e-3)
            actual = booking.charged * min(1.0, part)
        self._settle(booking, actual)
        self.blame.ended(booking, member, now)
        self.service.ended(booking, actual, now, token_s)

    def lost(self, booking: Booking) -> None:
        """Its endpoint is gone, and with it what could be known of its use."""
        self._settle(booking, booking.charged)
        self.service.lost(booking)

    def _settle(self, booking: Booking, actual: float) -> None:
        rank, more = self.tiers[booking.tier].rank, (actual - booking.charged) / booking.weight
        self.counters.ended(rank, booking.tenant, booking.session, more)

    def ready(self, now: float) -> Iterator[tuple[Waiting, list[Option]]]:
        """Requests to be sent now, in order, with what to choose from: nothing, where no endpoint is left to ask. Each
        is to be booked before the next is asked for."""
        pool = self.pool
        able = [name for name, member in pool.members.items() if pool.takes(member)]
        changed, self._able = able != self._able, able
        if not able:  # nobody can go anywhere: those whose tier does not wait for that are told
            if changed or not now < self._weigh_at <= now + WEIGHED_S:
                self._weigh_at = now + WEIGHED_S
                yield from ((waiting, []) for waiting in tuple(self.line) if not self._puts_off(waiting, now))
            return
        opened = self._opened(able, now)
        pairs = {(tier, name) for tier, names in opened.items() for name in names}
        if not changed and not pairs - self._unwanted and now < self._weigh_at <= now + WEIGHED_S:
            return
        self._unwanted = set()
        ahead = dict.fromkeys(able, 0.0)  # seconds of what waits before, by where it would go
        ordered = self.line.ordered(now)
        looked = self._looked(ordered, now, all_stale=changed)
        looked.update(islice((one.number for one in ordered if one.home not in ahead), MOVED))
        vain = 0  # that were weighed since one was sent
        for waiting in ordered:
            home, mine = waiting.home, opened[waiting.tier.name]
            stays = home not in mine or (vain >= MOVED and ahead[home] > START_S)
            if stays and waiting.number not in looked:
                if home in ahead:
                    ahead[home] += waiting.prefill_s
                continue
            options = self._weighed(waiting, now, ahead)
            if not options:
                yield waiting, options
                continue
            best = choose(options)
            if waiting.held_at < now and best.name in mine and ahead[best.name] <= START_S:
                waiting.held_at = -math.inf  # what it is sent there for must be there now
                options = self._weighed(waiting, now, ahead)
                best = choose(options)
            if best.name not in mine or ahead[best.name] > START_S:
                ahead[best.name] += best.prefill_s
                vain += 1
                continue
            yield waiting, options
            vain = 0
            self._shut(opened, best.name, now)
            if not any(opened.values()):
                return
        self._unwanted = {(tier, name) for tier, names in opened.items() for name in names}

    def _opened(self, able: Iterable[str], now: float) -> dict[str, set[str]]:
        """By tier that waits, the endpoints that would start more work of it soon."""
        members, opened = self.pool.members, dict[str, set[str]]()
        there = [(name, _ahead_s(members[name], now), members[name].load.in_flight) for name in able]
        for tier in map(self.tiers.__getitem__, self.line.tiers):
            short, opens = self.shares.short(tier.name), self.ceilings.opens
            opened[tier.name] = {name for name, ahead_s, flying in there if opens(tier, ahead_s, flying, short=short)}
        return opened

    def _looked(self, ordered: list[Waiting], now: float, *, all_stale: bool) -> set[int]:
        """Who is weighed anew, and when that is to be asked again."""
        stale = (one.number for one in ordered if all_stale or not 0 <= now - one.weighed_at < WEIGHED_S)
        looked = set(islice(stale, LOOKED))
        longest = (one for one in self.line if one.number not in looked)
        looked.update(
            one.number
            for one in islice(longest, LOOKED)
            if all_stale or not 0 <= now - one.weighed_at < WEIGHED_S
        )
        oldest = next((one.weighed_at for one in self.line if one.number not in looked), now)
        self._weigh_at = min(max(oldest + WEIGHED_S, now + AGAIN_S), now + WEIGHED_S)
        return looked

    def _shut(self, opened: dict[str, set[str]], name: str, now: float) -> None:
        """It was given something: for whom does it have room still?"""
        taken = not self.pool.takes(self.pool.members[name])
        for tier, names in opened.items():
            if taken or not self.opens(name, now, self.tiers[tier]):
                names.discard(name)


def _cost(waiting: Waiting, option: Option | Candidate) -> float:
    return cost(waiting.ask.tokens - option.cached, waiting.ask.output)


def _ahead_s(member: Member, now: float) -> float:
    """Seconds of prefill at an endpoint, that will say when it begins."""
    return member.load.ahead(now, member.rates.prefill_s) * member.rates.prefill_s
