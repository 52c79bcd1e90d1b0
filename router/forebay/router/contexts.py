"""Conversations of a pool (pure): where each one's context last was, how long it has been idle, and what it costs them
to store more in an endpoint's cache.

A context is known by its prompts alone: a turn's keys begin with those of the turn before. A session that a client
names stands in for prompts without keys. Nothing here holds anybody anywhere: it prices what a placement would push
out of a cache.
"""

import math
from collections import OrderedDict, deque

from msgspec import Struct

from forebay.router.odds import Odds
from forebay.router.prefix.keys import GRID, Keys
from forebay.router.residents import HALF_UNKNOWN, Context, Resident

MOST = 100_000  # contexts remembered in one pool
GONE_S = 1_800.0  # idle for longer, a context is taken to be over
_MOST_TOKENS = 1 << 32
_TAIL = 3  # keys at a prompt's end that clients write anew with the next turn: a reminder, an open block
_BACK = 512  # keys of a prompt looked through for the end of an earlier turn: 16 Ki tokens
INFLOW_S = 400.0  # over which what is stored is averaged
MOST_STEPS = 256  # that wait to be told to other front doors: to hear of them takes some milliseconds


class Step(Struct, frozen=True, array_like=True):
    """A request of a context was placed, or is `over`: what other front doors cannot know. `was`: the last key of its
    prompt before, 0 for a new one; `first`, `before`, `end`: as in `Context`, of the prompt."""

    endpoint: str
    was: int
    first: int
    before: int
    end: int
    tokens: int
    stored: int = 0
    over: bool = False
    returns: bool | None = None
    session: str = ""


class Contexts:
    """Of one pool. Times are of one monotonic clock."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[int, Context] = OrderedDict()  # the least recently used first
        self._ends: dict[int, Context] = {}  # by the last key of the last prompt, and by one a little before
        self._sessions: dict[str, Context] = {}
        self._residents: dict[str, Resident] = {}
        self._odds = {False: Odds(), True: Odds()}  # by whether the last answer was a tool call
        self.steps: deque[Step] = deque(maxlen=MOST_STEPS)  # since they were last told of
        self._next = 0
        self._stored = 0.0  # tokens, the older the less
        self._stored_at = 0.0
        self._since: float | None = None

    def __len__(self) -> int:
        return len(self._known)

    def find(self, keys: Keys, session: str = "", *, cached: int = 0) -> Context | None:
        """The context that a prompt goes on with. That of its session stands in for a prompt without keys, and for a
        history that was rewritten behind the same beginning: sub-agents carry their root's session, and begin
        otherwise. `cached`: tokens of it that some endpoint has."""
        size = len(keys) * GRID
        ends = self._ends
        among = filter(ends.__contains__, _likely(keys, cached)) if ends else ()
        known = next((ends[key] for key in among if ends[key].end == key or _goes_on(ends[key], size)), None)
        if known is not None or not session:
            return known
        named = self.named(session)
        return named if named is not None and (not len(keys) or named.first == int(keys[0])) else None

    def named(self, session: str) -> Context | None:
        """The context that last went by that name."""
        return self._sessions.get(session) if session else None

    def placed(
        self, endpoint: str, tokens: int, keys: Keys, now: float, *, session: str = "", cached: int = 0,
        stored: int | None = None,
    ) -> Context:  # fmt: skip
        """A request with such a prompt was sent to `endpoint`: of a context that is known, or of a new one. `stored`:
        tokens that the endpoint has not had yet, the answer's among them."""
        stored = tokens if stored is None else stored
        context = self.find(keys, session, cached=cached)
        was = context.end if context is not None else 0
        first, end = (int(keys[0]), int(keys[-1])) if len(keys) else (0, 0)
        before = int(keys[-1 - _TAIL]) if len(keys) > _TAIL else 0
        step = Step(endpoint, was, first, before, end, tokens, stored, session=session)
        context = self._take(context, step, now)
        context.running += 1
        self.steps.append(step)
        return context

    def hear(self, step: Step, now: float) -> None:
        """Another front door placed or ended it. It counts as idle meanwhile: whoever runs it may never say that it is
        over. Numbers that cannot be are nobody's."""
        if not (0 <= step.tokens <= _MOST_TOKENS and 0 <= step.stored <= _MOST_TOKENS):
            return
        context = self._ends.get(step.was) or self._ends.get(step.end)
        if context is None and not step.end:
            context = self.named(step.session)
        if step.over:
            if context is not None and context.endpoint == step.endpoint:
                self._left(context, step.endpoint, step.tokens, step.returns, now)
        else:
            self._take(context, step, now).idle_at = now

    def _take(self, context: Context | None, step: Step, now: float) -> Context:
        """A request of it, or of a new one, was sent where `step` says."""
        self._stores(step.stored, now)
        if context is None:
            self._next += 1
            context = self._known[self._next] = Context(self._next)
            self._bound()
        elif not context.running:
            self._odds[context.returns is True].returned(now - context.idle_at)
        self._known.move_to_end(context.number)
        self._unname(context)
        if step.session:
            self._rename(context, step.session)
        context.first, context.before, context.end = step.first, step.before, step.end
        for key in filter(None, (context.before, context.end)):
            self._ends[key] = context
        context.endpoint, context.tokens = step.endpoint, step.tokens
        if (resident := self._residents.get(step.endpoint)) is None:
            resident = self._residents[step.endpoint] = Resident(step.endpoint)
        resident.use(context, step.tokens)
        return context

    def ended(self, number: int, endpoint: str, tokens: int, returns: bool | None, now: float) -> None:
        """A request of it is over, having left `tokens` in the endpoint's cache."""
        context = self._known.get(number)
        if context is None:
            return
        context.running = max(0, context.running - 1)
        self._left(context, endpoint, tokens, returns, now)
        self.steps.append(
            Step(
                endpoint, context.end, context.first, context.before, context.end, tokens, 0, True, returns,
                context.session,
            )
        )  # fmt: skip

    def _left(self, context: Context, endpoint: str, tokens: int, returns: bool | None, now: float) -> None:
        context.tokens, context.idle_at, context.returns = tokens, now, returns
        if endpoint in self._residents:
            self._residents[endpoint].use(context, tokens)

    def abandoned(self, number: int) -> None:
        """A request of it is over, and what it left behind is gone."""
        context = self._known.get(number)
        if context is not None and context.running > 1:
            context.running -= 1
        elif context is not None:
            self._forget(context)

    def displaced(self, endpoint: str, tokens: float, now: float) -> tuple[float, float]:
        """Tokens that conversations will want again and not find there, if so many more are stored in a full cache; and
        how many tokens stand before one of them, on average."""
        resident = self._residents.get(endpoint)
        if resident is None:
            return HALF_UNKNOWN * tokens, 0.0
        return resident.displaced(tokens, self._odds, self.inflow(now), now)

    def inflow(self, now: float) -> float:
        """Tokens that an endpoint stores in a second, on average."""
        if self._since is None:
            return 1.0
        over = INFLOW_S * -math.expm1(-max(1.0, now - self._since) / INFLOW_S)
        faded = self._stored * math.exp(min(0.0, self._stored_at - now) / INFLOW_S)
        return max(1.0, faded / over / max(1, len(self._residents)))

    def _stores(self, tokens: int, now: float) -> None:
        if self._since is None:
            self._since = self._stored_at = now
        self._stored *= math.exp(min(0.0, self._stored_at - now) / INFLOW_S)
        self._stored += tokens
        self._stored_at = now

    def cleared(self, endpoint: str) -> None:
        """It has nothing any more."""
        self._residents.pop(endpoint, None)

    def trim(self, endpoint: str, capacity: float) -> None:
        if (resident := self._residents.get(endpoint)) is not None:
            resident.trim(capacity)

    def expire(self, now: float, most: int = 256) -> None:
        """Let go of contexts that are over, at most so many at once."""
        for _ in range(most):
            context = next(iter(self._known.values()), None)
            if context is None:
                return
            if context.running:  # it is in use: as if it had just been used
                self._known.move_to_end(context.number)
            elif now - context.idle_at < GONE_S:
                return
            else:
                self._odds[context.returns is True].gone()
                for resident in self._residents.values():
                    resident.finish(context.number)
                self._forget(context)

    def _bound(self) -> None:
        if len(self._known) > self._most:
            context = next(iter(self._known.values()))
            if not context.running:
                self._odds[context.returns is True].gone()
            self._forget(context)

    def _rename(self, context: Context, session: str) -> None:
        if context.session != session and self._sessions.get(context.session) is context:
            del self._sessions[context.session]
        context.session = session
        self._sessions[session] = context

    def _unname(self, context: Context) -> None:
        for key in (context.before, context.end):
            if self._ends.get(key) is context:
                del self._ends[key]

    def _forget(self, context: Context) -> None:
        del self._known[context.number]
        self._unname(context)
        if self._sessions.get(context.session) is context:
            del self._sessions[context.session]
        for resident in self._residents.values():
            resident.drop(context.number)


def _goes_on(context: Context, size: int) -> bool:
    """Whether a prompt of `size` tokens, which begins as the context's last one but for its tail, is its next turn: it
    holds the answer too. Prompts of one beginning that ask for different things are mostly no longer."""
    return not context.running and size + GRID > context.tokens


def _likely(keys: Keys, cached: int) -> list[int]:
    """Those with which an earlier turn may have ended, the last first: an answer's length before what is cached ends,
    or anywhere behind it, of a conversation that no cache remembers."""
    end = cached // GRID if cached else 0
    found: list[int] = keys[max(0, end - _BACK) :][::-1].tolist()
    return found
