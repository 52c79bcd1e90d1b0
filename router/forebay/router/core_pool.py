"""One pool as the core sees it (pure): its endpoints, what each holds, and what its requests showed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from forebay.router.contexts import Contexts
from forebay.router.guesses import BLOCK, Guesses
from forebay.router.health import OUT, RETURNING, WHOLE, Card, Condition, Misfit, Well
from forebay.router.loads import Booking, Load, Share
from forebay.router.placement import SLOW_SHARE, Option, Others, choose, weigh
from forebay.router.prefix.blocks import Event, Removed, Stored
from forebay.router.prefix.index import Index, Match
from forebay.router.prefix.keys import GRID, Keys, Weights
from forebay.router.prefix.sums import LARGEST
from forebay.router.rates import Rates, begin_like, blended
from forebay.router.routing import Ask, EndpointState, Following, Group, Outcome, Role
from forebay.router.waiting import START_S, Line, Waiting

_NOTHING = Match(0, 0)
COMING_S = 60.0  # over which arrivals are averaged
CONTEXT_SMOOTHING = 0.02
MOVING_SHARE = 0.5  # of its prefill that a conversation pays when it goes elsewhere
FRESH_S = 0.25  # what is known to be cached of a request that waits is looked up anew after this
LOOKED = 16  # requests that wait which are weighed at a time, beside those that would go where there is room


class Counts(Struct):
    """What predictions were worth, since the start. Tokens are of requests whose engine said how many were cached."""

    prompt_tokens: int = 0
    predicted: int = 0
    observed: int = 0
    more: int = 0  # requests that found a block more than predicted
    less: int = 0
    placements: dict[str, int] = field(default_factory=dict)  # by reason

    def placed(self, option: Option, most: int) -> None:
        """`most`: tokens that the endpoint which holds most of this prompt holds."""
        reason = "cold" if not most else "cached" if option.cached == most else "moved"
        self.placements[reason] = self.placements.get(reason, 0) + 1

    def compare(self, prompt_tokens: int, predicted: int, observed: int) -> None:
        self.prompt_tokens += prompt_tokens
        self.predicted += predicted
        self.observed += observed
        self.more += observed > predicted + BLOCK
        self.less += observed < predicted - BLOCK


class Member:
    """One endpoint."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.condition = Condition(name)
        self.following = Following.NONE
        self.load = Load(name)
        self.own = Rates()
        self.rates = Rates()  # what to reckon with
        self.gone = False  # its process has ended, and what it held with it
        self.block = GRID  # tokens of a block of its cache
        self.blocks = 0  # that it held at most
        self._coming = 0.0
        self._came_at = 0.0
        self.full = False  # it has given up blocks for others: it holds no more than it did
        self.draining = ""  # why it is sent nothing new
        self.group = Group()
        self.standing = WHOLE  # as in its condition; out while it is shut

    def __repr__(self) -> str:
        return f"<Member {self.name} {self.condition.health} [{self.load.in_flight} in flight, {self.following}]>"

    def coming(self, now: float) -> float:
        """Requests a second that were sent there lately."""
        return self._coming * math.exp((self._came_at - now) / COMING_S)

    def came(self, now: float) -> None:
        self._coming = self.coming(now) + 1 / COMING_S
        self._came_at = now

    @property
    def shut(self) -> bool:
        """Sent nothing new, however well it is."""
        return bool(self.draining) or self.group.role is not Role.UNIFIED

    @property
    def followed(self) -> bool:
        """Whether events will tell what it holds."""
        return self.following is Following.FOLLOWING


class CorePool:
    def __init__(self, name: str, endpoints: Iterable[str], weights: Weights, *, blocks_per_holder: int) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.index = Index(weights, blocks_per_holder=blocks_per_holder)
        self.guesses = Guesses(self.index)
        self.contexts = Contexts()
        self.line = Line()
        self._context = 0.0  # tokens of a prompt, on average
        self.unwanted: set[str] = set()  # endpoints with room that nobody who waits would go to
        self._weigh_at = 0.0  # when that may have changed
        self.rates = Rates()
        self.counts = Counts()
        self._turns = 0
        self._best = OUT  # the best standing there is
        for endpoint in endpoints:
            self.add(endpoint)

    def __repr__(self) -> str:
        return f"<CorePool {self.name} {list(self.members.values())}>"

    # -- its endpoints

    def add(self, endpoint: str) -> None:
        """One that is not there. Of an earlier one of its name nothing is remembered."""
        member = self.members[endpoint] = Member(endpoint)
        member.rates = blended(member.own, self.rates)
        self.index.attach(endpoint)
        self._best = WHOLE

    def remove(self, endpoint: str) -> None:
        if self.members.pop(endpoint, None) is not None:
            self.index.detach(endpoint)
            self.guesses.forget(endpoint)
            self.contexts.cleared(endpoint)
            self._ranked()

    def shut(self, endpoint: str, *, draining: str | None = None, group: Group | None = None) -> None:
        """Set one of what may keep requests from it."""
        member = self.members.get(endpoint)
        if member is not None:
            member.draining = member.draining if draining is None else draining
            member.group = member.group if group is None else group
            self._heard(member)

    def opened(self, member: Member) -> bool:
        """Whether it may be sent something new, if it is not busy with what a returning one is given."""
        return member.standing > OUT and member.standing in (self._best, RETURNING)

    def takes(self, member: Member) -> bool:
        """Whether it may be sent something new: the best there are, and beside them one that returns, unless a request
        waits for its first token there."""
        standing = member.standing
        if standing == self._best:
            return standing > OUT
        return standing == RETURNING and not member.load.waiting

    def _heard(self, member: Member) -> None:
        """Something of what its standing depends on may have changed."""
        standing = OUT if member.shut else member.condition.standing
        if standing != member.standing:
            member.standing = standing
            self._ranked()

    def _ranked(self) -> None:
        self._best = max((member.standing for member in self.members.values()), default=OUT)

    def _spare(self, member: Member) -> bool:
        """Whether the others are enough without it."""
        placed = sum(not one.shut for one in self.members.values())
        others = sum(one.standing == WHOLE for one in self.members.values() if one is not member)
        return others > 0 and 2 * others >= placed

    # -- a placement

    def weigh(self, ask: Ask, keys: Keys, now: float, *, everyone: bool = False) -> list[Option]:
        """Every endpoint that may be asked; with `everyone`, those that may not as well."""
        return self.options(ask, self.held(keys), now, everyone=everyone)

    def held(self, keys: Keys) -> dict[str, Match]:
        return self.index.match(keys) if len(keys) else {}

    def options(self, ask: Ask, held: Mapping[str, Match], now: float, *, everyone: bool = False) -> list[Option]:
        return [
            weigh(ask, member.load, member.rates, held.get(name, _NOTHING), now, self._others(member, now))
            for name, member in self.members.items()
            if everyone or (self.takes(member) and name not in ask.exclude)
        ]

    # -- what waits

    def consider(self, waiting: Waiting, now: float) -> list[Option]:
        if now - waiting.held_at > FRESH_S:
            waiting.held, waiting.held_at = self.held(waiting.keys), now
        return self.options(waiting.ask, waiting.held, now)

    def opens(self, name: str, now: float) -> bool:
        """Whether the endpoint would start more work soon."""
        member = self.members[name]
        return member.load.ahead(now, member.rates.prefill_s) * member.rates.prefill_s <= START_S

    def wait_s(self, now: float) -> float:
        """Seconds until what waits now will have begun, about."""
        able = sum(map(self.opened, self.members.values()))
        return sum(waiting.prefill_s for waiting in self.line) / max(1, able)

    def ready(self, now: float) -> Iterator[tuple[Waiting, list[Option]]]:
        """Requests to be sent now, in order, with what to choose from: nothing, where no endpoint is left to ask. Each
        is to be booked before the next is asked for."""
        able = [name for name, member in self.members.items() if self.takes(member)]
        opened = {name for name in able if self.opens(name, now)}
        if able and not opened - self.unwanted and now < self._weigh_at:
            return
        self._weigh_at = now + FRESH_S
        self.unwanted = set()
        ahead = dict.fromkeys(able, 0.0)  # seconds of what waits before, by where it would go
        looked = 0
        for waiting in self.line.ordered(now):
            if looked >= LOOKED and waiting.home not in opened:
                ahead[waiting.home] = ahead.get(waiting.home, 0.0) + waiting.prefill_s
                continue
            looked += 1
            options = self.consider(waiting, now)
            for option in options:
                option.queued_s += ahead[option.name]
                option.seconds += ahead[option.name]
            if not options:
                yield waiting, options
                continue
            best = choose(options)
            waiting.home, waiting.prefill_s = best.name, best.prefill_s
            if best.name in opened and ahead[best.name] <= START_S:
                yield waiting, options
                if not self.opens(best.name, now):
                    opened.discard(best.name)
                if not opened:
                    return
            else:
                ahead[best.name] += best.prefill_s
        self.unwanted = opened

    def _others(self, member: Member, now: float) -> Others:
        moving_s = MOVING_SHARE * member.rates.effective(self._context, 0) * member.rates.prefill_s
        return Others(self._displacer(member, now), member.coming(now), moving_s)

    def _displacer(self, member: Member, now: float) -> Callable[[int], float] | None:
        """None while there is room in its cache, as far as is known."""
        if not member.full:
            return None
        room = max(0, (member.blocks - self._blocks(member)) * member.block - member.load.prefill)

        def displace(tokens: int) -> float:
            if tokens <= room:
                return 0.0
            wanted, behind = self.contexts.displaced(member.name, tokens - room, now)
            return member.rates.effective(wanted, behind) * member.rates.prefill_s

        return displace

    def _blocks(self, member: Member) -> int:
        return len(self.index.holder(member.name).holding.held.blocks)

    def book(
        self, booking: Booking, options: Sequence[Option], option: Option, now: float, session: str = ""
    ) -> None:
        """Take what `option`, one of `options`, was chosen for."""
        member = self.members[option.name]
        self._turns += 1
        booking.turn = member.load.turn = self._turns
        booking.alone = not member.load.in_flight
        booking.first = not member.load.prefill
        member.came(now)
        self._context += (booking.tokens - self._context) * CONTEXT_SMOOTHING
        member.load.book(booking, now, member.rates.prefill_s)
        self.counts.placed(option, max(one.cached for one in options))
        self.guesses.placed(booking, now, option.predicted_s, followed=member.followed and booking.exact)
        self._remember(booking, member, session, now)

    def _remember(self, booking: Booking, member: Member, session: str, now: float) -> None:
        context = self.contexts.placed(member.name, booking.tokens, booking.keys, now, session=session)
        booking.context = context.number
        if member.full:
            self.contexts.trim(member.name, member.blocks * member.block)

    def apply(self, endpoint: str, events: Sequence[Event]) -> None:
        """KV events, in the order in which the endpoint sent them. Late ones of one that has gone are nobody's."""
        if endpoint not in self.members:
            return
        self.index.apply(endpoint, events)
        stored = next((event for event in events if type(event) is Stored), None)
        member = self.members[endpoint]
        if stored is not None and 0 < stored.block_size <= LARGEST:
            member.block = stored.block_size
            member.load.block = max(GRID, stored.block_size)
        member.blocks = max(member.blocks, self._blocks(member))
        member.full = member.full or any(type(event) is Removed for event in events)

    # -- what becomes of it

    def begun(self, booking: Booking, now: float) -> None:
        member = self.members[booking.endpoint]
        if not booking.waiting:
            return
        member.load.begin(booking)
        self.answered(member, now)
        booking.undisturbed = booking.first and booking.turn == member.load.turn
        self.guesses.begun(booking, now, followed=member.followed and booking.exact)

    def ended(self, booking: Booking, outcome: Outcome, now: float) -> None:
        member = self.members[booking.endpoint]
        began = not booking.waiting
        member.load.end(booking)
        left = (outcome.prompt_tokens or booking.tokens) + (outcome.output or 0)
        self.contexts.ended(booking.context, booking.endpoint, left, outcome.returns, now)
        if not began:
            self.guesses.failed(booking)
            return
        self._learn(member, booking, outcome)
        prompt = booking.tokens if outcome.prompt_tokens is None else outcome.prompt_tokens
        if outcome.cached is not None and 0 <= outcome.cached < prompt:
            self._compare(member, booking, prompt, outcome.cached, now)

    def _learn(self, member: Member, booking: Booking, outcome: Outcome) -> None:
        prefill = booking.undisturbed and outcome.first_token_s is not None
        decode = booking.alone and booking.turn == member.load.turn and outcome.decode_s is not None
        if not prefill and not decode:
            return
        begin_like(member.own, self.rates)
        for rates in (member.own, self.rates):
            if prefill:
                assert outcome.first_token_s is not None
                tokens, cached = self._computed(booking, outcome)
                rates.learn_prefill(tokens, outcome.first_token_s, cached)
            if decode:
                assert outcome.decode_s is not None
                rates.learn_decode((outcome.output or 0) - 1, outcome.decode_s)
        for other in self.members.values():
            other.rates = blended(other.own, self.rates)

    def _computed(self, booking: Booking, outcome: Outcome) -> tuple[float, int]:
        """Tokens of prefill as it was in the end, those loaded from slower tiers by their share; and tokens before
        them: what was booked, set right by what the engine says it had."""
        tokens, cached = booking.tokens, booking.cached
        if outcome.prompt_tokens is not None and outcome.cached is not None:
            tokens, cached = outcome.prompt_tokens, outcome.cached
        return max(1, tokens - cached) + booking.slow * SLOW_SHARE, cached

    def _compare(self, member: Member, booking: Booking, tokens: int, observed: int, now: float) -> None:
        """What the engine says was cached, of a prompt of `tokens` by its count, against what was taken to be. Where
        tokens were guessed from bytes, ours are of another size than the engine's."""
        ours = booking.tokens / tokens
        self.counts.compare(tokens, round(booking.cached / ours), observed)
        self.guesses.observed(booking, round(observed * ours), now, followed=member.followed and booking.exact)

    # -- what is heard of endpoints

    def heard(self, member: Member, before: Share, after: Share, now: float) -> None:
        """A peer's part of an endpoint's load was `before` and is `after`. A request of a peer is as one of ours: it
        takes the endpoint's turn, and what was there alone is so no more."""
        if after.booked > before.booked:
            self._turns += 1
            member.load.turn = self._turns
        member.load.hear(before, after, now, member.rates.prefill_s)

    def answered(self, member: Member, now: float) -> None:
        member.condition.answered(now)
        self._heard(member)

    def failed(self, endpoint: str, reason: str, now: float, *, at_once: bool, probe: bool = False) -> None:
        """A process that refuses connections is gone, and its cache with it. One that is silent may still have both, as
        does one whose events go on: something before it refused."""
        member = self.members.get(endpoint)
        if member is None:
            return
        spare = probe or at_once or self._spare(member)
        member.condition.failed(reason, now, at_once=at_once, probe=probe, spare=spare)
        self._heard(member)
        if at_once and not member.gone:
            member.gone = True
            if not member.followed:
                self.index.clear(endpoint)

    def probed(self, endpoint: str, finding: Well | Card | Misfit, now: float) -> None:
        if (member := self.members.get(endpoint)) is not None:
            member.condition.probed(finding, now)
            self._heard(member)
            member.gone = member.gone and isinstance(finding, Misfit)

    def follows(self, endpoint: str, following: Following) -> None:
        member = self.members.get(endpoint)
        if member is None:
            return
        member.following = following
        if member.gone and following is Following.AWAY:
            self.index.clear(endpoint)

    def clear(self, endpoint: str) -> None:
        """One whose events cannot be read is as one without: each such event says so again, and the guesses stay."""
        member = self.members.get(endpoint)
        if member is not None and member.following is not Following.UNDECODABLE:
            self.index.clear(endpoint)

    def states(self) -> dict[str, EndpointState]:
        return {
            member.name: EndpointState(
                pool=self.name,
                name=member.name,
                health=member.condition.health,
                reason=member.condition.reason,
                max_model_len=member.condition.max_model_len,
                lora=member.condition.lora,
                events=member.following,
                in_flight=member.load.own.in_flight,
                draining=member.draining,
                group=member.group,
                open=self.opened(member),
                back_at=member.condition.back_at,
            )
            for member in self.members.values()
        }
