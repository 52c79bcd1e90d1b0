"""One pool as the core sees it (pure): its endpoints, what each holds, and what its requests showed."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import structs

from forebay.router.contexts import Contexts, Step
from forebay.router.guesses import Guesses
from forebay.router.health import OUT, RETURNING, WHOLE, Card, Misfit, Well
from forebay.router.loads import Booking, Share
from forebay.router.member import Counts, Member
from forebay.router.placement import SLOW_SHARE, Option, Others, add_others, weigh
from forebay.router.prefix.blocks import Event, Removed, Stored, Tier
from forebay.router.prefix.index import Index, Match
from forebay.router.prefix.keys import GRID, Keys, Weights
from forebay.router.prefix.sums import LARGEST
from forebay.router.rates import Learnt, Rates, alike, begin_like, blended, learnt, remembered
from forebay.router.routing import Ask, EndpointState, Following, Group, Outcome, Reading, reading

_NOTHING = Match(0, 0)
CONTEXT_SMOOTHING = 0.02
LIKELY_SHARE = 0.5  # chance that a session's context is where it was last although nothing says so
MOVING_SHARE = 0.5  # of its prefill that a conversation pays when it goes elsewhere


class CorePool:
    def __init__(self, name: str, endpoints: Iterable[str], weights: Weights, *, blocks_per_holder: int) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.index = Index(weights, blocks_per_holder=blocks_per_holder)
        self.guesses = Guesses(self.index)
        self.contexts = Contexts()
        self._context = 0.0  # tokens of a prompt, on average
        self.rates = Rates()
        self._told = Rates()  # those that the endpoints know of
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

    def options(
        self,
        ask: Ask,
        held: Mapping[str, Match],
        now: float,
        *,
        ahead: Mapping[str, float] | None = None,
        everyone: bool = False,
    ) -> list[Option]:
        """`ahead`: seconds of others that wait for each endpoint before this one."""
        options = [
            weigh(ask, member.load, member.rates, held.get(name, _NOTHING), now)
            for name, member in self.members.items()
            if everyone or (self.takes(member) and name not in ask.exclude)
        ]
        if ahead:
            for option in options:
                option.queued_s += ahead[option.name]
                option.seconds += ahead[option.name]
        add_others(options, ask, lambda name: self._others(self.members[name], now))
        if ask.session and not held:
            self._advise(ask, options)
        return options

    def _advise(self, ask: Ask, options: Iterable[Option]) -> None:
        """Nothing is known to be cached of a prompt whose session has been here: where it was last, more may be than is
        known (keys that are guessed, events that were lost). That much is worth a part of the prefill, and no wait."""
        context = self.contexts.named(ask.session)
        for option in options:
            if context is not None and option.name == context.endpoint:
                share = min(1.0, context.tokens / max(1, ask.tokens))
                option.seconds = max(0.0, option.seconds - LIKELY_SHARE * share * option.prefill_s)

    def _others(self, member: Member, now: float) -> Others:
        rates = member.rates
        moving_s = MOVING_SHARE * self._context * (1 + self._context / 2 * rates.context) * rates.prefill_s
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
            return wanted * (1 + behind * member.rates.context) * member.rates.prefill_s

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
        most = max(one.cached for one in options)
        self.counts.placed(option, most)
        self.guesses.placed(booking, now, option.predicted_s, followed=member.followed and booking.exact)
        context = self.contexts.placed(
            member.name, booking.tokens, booking.keys, now, session=session, cached=most,
            stored=booking.tokens - booking.cached + booking.output,
        )  # fmt: skip
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
        member.full = member.full or any(type(event) is Removed and event.tier is Tier.GPU for event in events)

    # -- what becomes of it

    def begun(self, booking: Booking, now: float) -> None:
        member = self.members[booking.endpoint]
        if not booking.waiting:
            return
        member.load.begin(booking, now)
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
        if alike(self.rates, self._told):
            member.rates = blended(member.own, self.rates)
        else:
            self.blend()

    def blend(self) -> None:
        """Let all endpoints know what was learnt at any."""
        self._told = structs.replace(self.rates, fit=None)
        for member in self.members.values():
            member.rates = blended(member.own, self.rates)

    def learnt(self) -> list[Learnt]:
        known = [learnt(self.name, member.name, member.own) for member in self.members.values() if member.own.prefills]
        return [learnt(self.name, "", self.rates), *known] if self.rates.prefills else known

    def relearn(self, known: Learnt) -> None:
        """Go on from what was learnt before this process began; nothing that was observed since is lost."""
        rates, member = remembered(known), self.members.get(known.endpoint)
        if rates is None:
            return
        if not known.endpoint and not self.rates.prefills:
            self.rates = rates
        elif member is not None and not member.own.prefills:
            member.own = rates
        self.blend()

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
        takes the endpoint's turn, what was there alone is so no more, and more like it will come."""
        if after.booked > before.booked:
            self._turns += 1
            member.load.turn = self._turns
        member.came(now, after.since(before))
        member.load.hear(before, after, now, member.rates.prefill_s)

    def stepped(self, steps: Iterable[Step], now: float) -> None:
        """What requests of a peer made of contexts."""
        for step in steps:
            if (member := self.members.get(step.endpoint)) is not None:
                self.contexts.hear(step, now)
                if member.full:
                    self.contexts.trim(member.name, member.blocks * member.block)

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

    def reading(self) -> Reading:
        return reading([member.condition for member in self.members.values()])

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
