"""Conversations as an engine's cache sees them (pure): where each one's context last was, how long it has been idle,
and how likely it is that it comes back.

A context is known by its prompts alone: a turn's keys begin with those of the turn before. A session that a client
names stands in for prompts without keys. Nothing here holds anybody anywhere: it prices what a placement would push
out of a cache.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping

from msgspec import Struct

from forebay.router.prefix.keys import GRID, Keys

MOST = 100_000  # contexts remembered in one pool
GONE_S = 1_800.0  # idle for longer, a context is taken to be over
_FEW = 64
_BACK = 512  # keys of a prompt looked through for the end of an earlier turn: 16 Ki tokens
_PRICED_S = 0.25  # a price is worked out anew after this
_LOOKED = 32  # contexts looked at for what a placement pushes out
_BUCKETS = 24  # of idle times, two to an octave: from a second to over an hour
_PRIOR = 10.0  # observations' worth of belief that contexts return
_ENOUGH = 4_096.0  # observations after which older ones count half
_LEFT = 0.1  # of its chance to be wanted that a context keeps where it was before it went elsewhere
HALF_UNKNOWN = 0.5  # chance that a context returns about which nothing is known


class Context(Struct, eq=False):
    """`tokens`: of its last prompt and answer. `idle_at`: when its last request ended; 0 while `running` some."""

    number: int
    tokens: int = 0
    endpoint: str = ""
    idle_at: float = 0.0
    running: int = 0
    returns: bool | None = None  # its last answer was a tool call
    first: int = 0  # key of its last prompt
    end: int = 0  # the last one
    session: str = ""


class Odds:
    """Whether contexts that have been idle for so long come back. Learnt from those that did, and those that did not
    within `GONE_S`."""

    def __init__(self) -> None:
        self._returned = [0.0] * _BUCKETS
        self._gone = 0.0
        self._seen = 0.0

    def returned(self, idle_s: float) -> None:
        self._returned[_bucket(idle_s)] += 1
        self._fade()

    def gone(self) -> None:
        self._gone += 1
        self._fade()

    def _fade(self) -> None:
        self._seen += 1
        if self._seen > _ENOUGH:
            self._returned = [count / 2 for count in self._returned]
            self._gone /= 2
            self._seen /= 2

    def chance(self, idle_s: float) -> float:
        """That one idle for `idle_s` seconds will return."""
        at = _bucket(idle_s)
        later = sum(self._returned[at:]) + _PRIOR * (1 - at / _BUCKETS)
        return later / (later + self._gone + _PRIOR * 0.1)


_Price = tuple[float, float, float]  # tokens; those of them that will be wanted; these times the context they lie in


class Resident:
    """The contexts that an endpoint has had, the least recently used first."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.tokens = 0
        self.by_number: OrderedDict[int, tuple[Context, int]] = OrderedDict()
        self._priced_at = float("-inf")
        self._prices: list[_Price] = []

    def prices(self, odds: Mapping[bool, "Odds"], now: float) -> "list[_Price]":
        """What giving up the least recently used costs, summed up from the first on; as of a moment ago."""
        if abs(now - self._priced_at) > _PRICED_S:
            self._priced_at = now
            self._prices = []
            tokens = wanted = behind = 0.0
            for context, held in self.by_number.values():
                if not context.running:
                    share = held * odds[context.returns is True].chance(now - context.idle_at)
                    share *= 1.0 if context.endpoint == self.endpoint else _LEFT
                    tokens, wanted, behind = tokens + held, wanted + share, behind + share * held
                    self._prices.append((tokens, wanted, behind))
                    if len(self._prices) >= _LOOKED:
                        break
        return self._prices

    def use(self, context: Context, tokens: int) -> None:
        self.drop(context.number)
        self.by_number[context.number] = context, tokens
        self.tokens += tokens

    def drop(self, number: int) -> None:
        known = self.by_number.pop(number, None)
        if known is not None:
            self.tokens -= known[1]

    def trim(self, capacity: float) -> None:
        """Forget what cannot be there any more: the least recently used, down to `capacity` tokens."""
        while self.tokens > capacity and len(self.by_number) > 1:
            number, (context, tokens) = next(iter(self.by_number.items()))
            excess = math.ceil(self.tokens - capacity)
            if excess >= tokens:
                self.drop(number)
            else:
                self.by_number[number] = context, tokens - excess
                self.tokens -= excess


class Contexts:
    """Of one pool. Times are of one monotonic clock."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: OrderedDict[int, Context] = OrderedDict()  # the least recently used first
        self._ends: dict[int, Context] = {}  # by the last key of the last prompt
        self._sessions: dict[str, Context] = {}
        self._residents: dict[str, Resident] = {}
        self._odds = {False: Odds(), True: Odds()}  # by whether the last answer was a tool call
        self._next = 0

    def __len__(self) -> int:
        return len(self._known)

    def find(self, keys: Keys, session: str = "", *, cached: int = 0) -> Context | None:
        """The context that a prompt goes on with. That of its session stands in for a prompt without keys, and for a
        history that was rewritten behind the same beginning: sub-agents carry their root's session, and begin
        otherwise. `cached`: tokens of it that some endpoint has."""
        known = next(filter(None, map(self._ends.get, _likely(keys, cached))), None) if self._ends else None
        if known is not None or not session:
            return known
        named = self.named(session)
        return named if named is not None and (not len(keys) or named.first == int(keys[0])) else None

    def named(self, session: str) -> Context | None:
        """The context that last went by that name."""
        return self._sessions.get(session) if session else None

    def placed(
        self, endpoint: str, tokens: int, keys: Keys, now: float, *, session: str = "", cached: int = 0
    ) -> Context:
        """A request with such a prompt was sent to `endpoint`: of a context that is known, or of a new one."""
        context = self.find(keys, session, cached=cached)
        if context is None:
            self._next += 1
            context = self._known[self._next] = Context(self._next)
            self._bound()
        elif not context.running:
            self._odds[context.returns is True].returned(now - context.idle_at)
        self._known.move_to_end(context.number)
        if context.end:
            self._ends.pop(context.end, None)
        if session:
            self._rename(context, session)
        context.first, context.end = (int(keys[0]), int(keys[-1])) if len(keys) else (0, 0)
        if context.end:
            self._ends[context.end] = context
        context.endpoint, context.tokens, context.running = endpoint, tokens, context.running + 1
        self._residents.setdefault(endpoint, Resident(endpoint)).use(context, tokens)
        return context

    def ended(self, number: int, endpoint: str, tokens: int, returns: bool | None, now: float) -> None:
        """A request of it is over, having left `tokens` in the endpoint's cache."""
        context = self._known.get(number)
        if context is None:
            return
        context.running = max(0, context.running - 1)
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
        """Tokens of contexts that storing so many more in a full cache pushes out, each weighed by its chance to be
        wanted again; and the context that the last of them lies behind, on average."""
        resident = self._residents.get(endpoint)
        if resident is None:
            return HALF_UNKNOWN * tokens, 0.0
        before = (0.0, 0.0, 0.0)
        for price in resident.prices(self._odds, now):
            if price[0] >= tokens:
                part = (tokens - before[0]) / (price[0] - before[0])
                wanted, behind = (one + part * (two - one) for one, two in zip(before[1:], price[1:], strict=True))
                break
            before = price
        else:
            many = len(resident.prices(self._odds, now)) >= _LOOKED  # those behind are taken to be alike
            rest = tokens - before[0]
            wanted = before[1] + rest * (before[1] / before[0] if many else HALF_UNKNOWN)
            behind = before[2] * (1 + rest / before[0]) if many else before[2]
        return wanted, behind / wanted if wanted else 0.0

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

    def _forget(self, context: Context) -> None:
        del self._known[context.number]
        if self._ends.get(context.end) is context:
            del self._ends[context.end]
        if self._sessions.get(context.session) is context:
            del self._sessions[context.session]
        for resident in self._residents.values():
            resident.drop(context.number)


def _likely(keys: Keys, cached: int) -> Iterator[int]:
    """Those with which an earlier turn may have ended: the last ones, since a turn is mostly short, and those where
    what is cached ends, an answer's length before."""
    yield from keys[: -_FEW - 1 : -1].tolist()
    end = cached // GRID if cached else len(keys)
    yield from keys[max(0, end - _BACK) : end + 1][::-1].tolist()


def _bucket(idle_s: float) -> int:
    return min(_BUCKETS - 1, int(2 * math.log2(1 + max(0.0, idle_s))))
