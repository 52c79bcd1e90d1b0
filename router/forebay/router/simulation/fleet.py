"""A fleet of engines, a policy before them, and the workload that comes (pure, on virtual time)."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from msgspec import Struct

from forebay.router.simulation.arriving import Arrival, arrivals, live_tokens, recorded
from forebay.router.simulation.blocks import Change
from forebay.router.simulation.engine import Engine, EngineSpec, Request
from forebay.router.simulation.policies import Policy, Send
from forebay.router.simulation.workload import Instance, Turn

__all__ = ["GRACE_S", "Arrival", "EngineSpec", "Fleet", "Run", "arrivals", "live_tokens", "recorded"]

EVENT_DELAY_S = 0.02  # from a change in a cache until the policy hears of it
GRACE_S = 600.0  # after the measured part, for what was asked in it and waits still
SAMPLES = 240  # of the requests that wait, over the measured part
Make = Callable[[Sequence[Engine], Send, int], Policy]


class Run(Struct):
    """What became of what was asked. `requests`: those of the measured part that began, without those that went on
    where another was stopped. `unbegun_s`: what the others of that part had waited when it ended. `served`: all that
    began, in that order. `waiting`: (time, requests not begun) over the measured part."""

    requests: list[Request]
    unbegun_s: list[float]
    served: list[Request]
    waiting: list[tuple[float, int]]
    busy_s: float  # of engines with prefill, over all of the run
    ended_at: float
    refused: list[Request] = []  # for good, over all of the run
    unbegun: list[Request] = []  # those without a first token when it ended

    def first_token_s(self) -> list[float]:
        """Seconds to the first token; of requests that had not begun, what they had waited."""
        return [one.began_at - one.asked_at for one in self.requests] + self.unbegun_s


class Hand:
    """See `policies.Send`."""

    def __init__(
        self,
        send: Callable[[Request, int], None],
        refuse: Callable[[Request, float], None],
        stop: Callable[[Request], Request | None],
    ) -> None:
        self._send, self._refuse, self._stop = send, refuse, stop

    def __call__(self, request: Request, engine: int, now: float) -> None:
        self._send(request, engine)

    def refuse(self, request: Request, retry_s: float, now: float) -> None:
        self._refuse(request, retry_s)

    def stop(self, request: Request, now: float) -> Request | None:
        return self._stop(request)


class Fleet:
    """Runs one policy over one sequence of arrivals, once. Who is refused comes again when told to, at most `retries`
    times, and then goes away."""

    def __init__(
        self, specs: Sequence[EngineSpec], make: Make, *, seed: int, event_delay_s: float = EVENT_DELAY_S,
        retries: int = 0,
    ) -> None:  # fmt: skip
        self.engines = [Engine(spec) for spec in specs]
        self._send = Hand(self._dispatch, self._refuse, self._stop)
        self.policy = make(self.engines, self._send, seed)
        self._retries = retries
        self.now = 0.0
        self._unbegun: dict[int, Request] = {}
        self._coming = 0  # requests that will be asked, as far as is known
        self._owed = 0  # of those, from the measured part
        self._measured = (0.0, 0.0)
        self._delay = event_delay_s
        self._numbers = count()
        self._order = count()
        self._agenda: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._turns: dict[int, tuple[Instance, int, Callable[[], None]]] = {}  # and what is to happen at the very end
        self._served: list[Request] = []
        self._refused: list[Request] = []
        self._waking = float("inf")

    @property
    def unbegun(self) -> int:
        """Requests that wait for their first token."""
        return len(self._unbegun)

    def run(
        self, arriving: Sequence[Arrival], *, measure_from: float, until: float,
        told: Callable[[float], None] = lambda at: None, grace_s: float = GRACE_S,
    ) -> Run:  # fmt: skip
        """What was asked from `measure_from` to `until` is told of; it ends when all of that has begun, or `grace_s`
        later in any case. `told` is called with the time now and then."""
        waiting: list[tuple[float, int]] = []
        self._measured = (measure_from, until)
        for arrival in arriving:
            self._come(arrival.at, arrival.instance, arrival.first, _nothing)
        step = max(1e-9, (until - measure_from) / SAMPLES)
        sample_at = told_at = min(measure_from, until)
        while (self._coming or self._turns) and self._agenda[0][0] <= (until + grace_s if self._owed else until):
            self.now, _, act, arguments = heapq.heappop(self._agenda)
            while sample_at <= min(self.now, until):
                waiting.append((sample_at, self.unbegun))
                sample_at += step
            if self.now >= told_at:
                told(self.now)
                told_at = self.now + step
            act(*arguments)
            if self.policy.wake_at < self._waking:
                self._waking = self.policy.wake_at
                self._plan(max(self.now, self._waking), self._wake, self._waking)
        return self._told(waiting)

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Have something happen then; `now` says that it is so late."""
        self._plan(when, act)

    def lose(self, requests: Iterable[Request], again_s: float) -> list[Request]:
        """Whoever passed these on is gone: engines stop them, and their clients ask again, so much later. One that had
        no first token has waited since it was first asked. What is asked again."""
        again = []
        for lost in requests:
            if lost.engine >= 0:
                self._moved(lost.engine)
                self.engines[lost.engine].stop(lost, self.now)
                self._schedule(lost.engine)
            unbegun = self._unbegun.pop(lost.number, None) is not None
            asked_at = lost.asked_at if unbegun else self.now + again_s
            request = Request(next(self._numbers), lost.conversation, lost.turn, asked_at, offset=lost.offset)
            self._turns[request.number] = self._turns.pop(lost.number)
            self._unbegun[request.number] = request
            self._owed += self._counts(request) - (unbegun and self._counts(lost))
            self._plan(self.now + again_s, self._ask_policy, request)
            again.append(request)
        return again

    def crash(self, number: int) -> list[tuple[Request, Request]]:
        """An engine dies, and is there again at once with nothing. The requests that it had, and what is left of each,
        for the policy to send elsewhere."""
        self._moved(number)
        engine = self.engines[number]
        lost = [(request, engine.got(request)) for request in engine.requests]
        engine.die(self.now)
        return [(request, self._rest(request, got)) for request, got in lost]

    def leave(self, request: Request) -> None:
        """Its client is gone. The policy is not told."""
        self._stop_at_engine(request)
        self._turns.pop(request.number, None)
        if self._unbegun.pop(request.number, None) is not None:
            self._owed -= self._counts(request)

    def _ask_policy(self, request: Request) -> None:
        self.policy.asked(request, self.now)

    def _told(self, waiting: list[tuple[float, int]]) -> Run:
        return Run(
            [one for one in self._served if self._counts(one) and one.first_at == one.began_at],
            [self.now - one.asked_at for one in self._unbegun.values() if self._counts(one) and not one.first_at],
            self._served,
            waiting,
            sum(engine.busy_s for engine in self.engines),
            self.now,
            self._refused,
            list(self._unbegun.values()),
        )

    def _counts(self, request: Request) -> bool:
        return self._measured[0] <= request.asked_at <= self._measured[1]

    def _plan(self, at: float, act: Callable[..., object], *arguments: Any) -> None:
        heapq.heappush(self._agenda, (at, next(self._order), act, arguments))

    # -- a request

    def _come(self, at: float, instance: Instance, number: int, over: Callable[[], None]) -> None:
        self._coming += 1
        self._plan(at, self._ask, instance, number, over)

    def _ask(self, instance: Instance, number: int, over: Callable[[], None]) -> None:
        self._coming -= 1
        request = Request(
            next(self._numbers), instance.name, instance.turn(number), self.now, offset=instance.offset,
            tier=instance.conversation.tier, tenant=instance.conversation.tenant, tried_at=self.now,
        )  # fmt: skip
        self._turns[request.number] = (instance, number, over)
        self._unbegun[request.number] = request
        self._owed += self._counts(request)
        self._ask_policy(request)

    def _begun(self, request: Request) -> None:
        if request.stopped:
            return
        del self._unbegun[request.number]
        self._owed -= self._counts(request)
        self._served.append(request)
        self.policy.begun(request, self.now)

    def _ended(self, request: Request) -> None:
        if request.stopped:
            return
        self.policy.ended(request, self.now)
        instance, number, over = self._turns.pop(request.number)
        if not request.given:
            request.turn = instance.conversation.turns[number]  # without the arrays of this instance
        pending = 1 + len(request.turn.calls)

        def done() -> None:
            nonlocal pending
            pending -= 1
            if pending:
                return
            if number + 1 < len(instance.conversation.turns):
                pause_s = instance.conversation.turns[number + 1].pause_s
                self._come(self.now + pause_s, instance, number + 1, over)
            else:
                over()

        for call in request.turn.calls:
            begins = self.now + call.after_s + call.conversation.turns[0].pause_s
            self._come(begins, instance.called(call), 0, done)
        done()

    def _refuse(self, request: Request, retry_s: float) -> None:
        request.refused_at, request.retry_s = self.now, retry_s
        if request.tries <= self._retries:
            again = Request(
                next(self._numbers), request.conversation, request.turn, request.asked_at, offset=request.offset,
                tier=request.tier, tenant=request.tenant, tries=request.tries + 1, tried_at=self.now + retry_s,
                first_at=request.first_at, given=request.given, stops=request.stops,
            )  # fmt: skip
            self._replace(request, again)
            self._plan(self.now + retry_s, self._ask_policy, again)
            return
        self._refused.append(request)
        if self._unbegun.pop(request.number, None) is not None:
            self._owed -= self._counts(request)
        _, _, over = self._turns.pop(request.number)
        over()

    def _stop(self, request: Request) -> Request | None:
        if request.stopped or request.ended_at:
            return None
        got = self._stop_at_engine(request)
        return self._rest(request, got)

    def _stop_at_engine(self, request: Request) -> int:
        if request.engine < 0 or request.ended_at:
            return 0
        self._moved(request.engine)
        engine = self.engines[request.engine]
        got = engine.got(request)
        engine.stop(request, self.now)
        self._schedule(request.engine)
        return got

    def _rest(self, request: Request, got: int) -> Request:
        """What is left of one that was stopped: its answer so far is a part of the prompt."""
        turn = request.turn
        left = Turn(turn.blocks, turn.tokens + got, max(1, turn.output - got), turn.pause_s, turn.kept, turn.returns,
                    turn.calls)  # fmt: skip
        rest = Request(
            next(self._numbers), request.conversation, left, request.asked_at, offset=request.offset,
            tier=request.tier, tenant=request.tenant, tries=request.tries, tried_at=request.tried_at,
            first_at=request.first_at, given=request.given + got, stops=request.stops + 1,
        )  # fmt: skip
        self._replace(request, rest)
        return rest

    def _replace(self, request: Request, by: Request) -> None:
        if self._unbegun.pop(request.number, None) is None:
            self._owed += self._counts(by)
        self._turns[by.number] = self._turns.pop(request.number)
        self._unbegun[by.number] = by

    # -- engines

    def _dispatch(self, request: Request, engine: int) -> None:
        request.engine = engine
        self._moved(engine)
        self.engines[engine].submit(request, self.now)
        self._schedule(engine)

    def _moved(self, number: int) -> None:
        began, ended = self.engines[number].advance(self.now)
        for request in began:
            self._plan(self.now, self._begun, request)
        for request in ended:
            self._plan(self.now, self._ended, request)

    def _schedule(self, number: int) -> None:
        engine = self.engines[number]
        if engine.news:
            news, engine.news = engine.news, []
            self._plan(self.now + self._delay, self._news, number, news)
        at = engine.next_at()
        if at < float("inf"):
            self._plan(at, self._turn, number, engine.version)

    def _turn(self, number: int, version: int) -> None:
        if self.engines[number].version == version:
            self._moved(number)
            self._schedule(number)

    # -- the policy

    def _news(self, engine: int, changes: list[Change]) -> None:
        self.policy.news(engine, changes, self.now)

    def _wake(self, at: float) -> None:
        if at == self._waking:
            self._waking = float("inf")
            self.policy.wake(self.now)


def _nothing() -> None:
    pass
