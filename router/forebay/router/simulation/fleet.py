"""A fleet of engines, a policy before them, and the workload that comes (pure, on virtual time)."""

import heapq
import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from msgspec import Struct

from forebay.router.simulation.blocks import Change
from forebay.router.simulation.engine import Engine, EngineSpec, Request
from forebay.router.simulation.policies import Policy, Send
from forebay.router.simulation.workload import Conversation, Turn, Workload

EVENT_DELAY_S = 0.02  # from a change in a cache until the policy hears of it
NOMINAL_TOKEN_S = 0.03  # of an answer, to say where conversations stand when the simulation begins
NOMINAL_FIRST_S = 1.0
Make = Callable[[Sequence[Engine], Send, int], Policy]


class Arrival(Struct):
    """A conversation that begins (or is first seen, at its turn `first`) at `at` seconds."""

    at: float
    conversation: Conversation
    first: int = 0


class Run(Struct):
    """What became of the requests that were asked in the measured part. `waiting`: (time, requests not begun)."""

    requests: list[Request]
    waiting: list[tuple[float, int]]
    busy_s: float  # of engines with prefill, over all of the run
    ended_at: float


def arrivals(workload: Workload, *, live: float, until: float, seed: int) -> list[Arrival]:
    """For a workload that did not record them: conversations drawn evenly, begun at random times at such a rate that
    `live` of them are under way on average; those that begin before 0 are met in their middle."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    durations = [nominal_s(one) for one in workload.conversations]
    rate = live / (sum(durations) / len(durations))
    at, found = -max(durations), []
    while (at := at + rng.expovariate(rate)) < until:
        number = rng.randrange(len(durations))
        if at + durations[number] <= 0:
            continue
        arrival = _met(at, workload.conversations[number])
        if arrival is not None:
            found.append(arrival)
    return found


def nominal_s(conversation: Conversation) -> float:
    return sum(_nominal(turn) for turn in conversation.turns)


def live_tokens(workload: Workload) -> float:
    """Tokens of the context of a conversation that is under way, on average over time."""
    weighted = sum(turn.tokens * _nominal(turn) for one in workload.conversations for turn in one.turns)
    return weighted / sum(nominal_s(one) for one in workload.conversations)


def _nominal(turn: Turn) -> float:
    return turn.pause_s + NOMINAL_FIRST_S + turn.output * NOMINAL_TOKEN_S


def _met(at: float, conversation: Conversation) -> Arrival | None:
    first = 0
    for first, turn in enumerate(conversation.turns):
        begins = at + turn.pause_s
        if begins >= 0:
            return Arrival(begins, conversation, first)
        at += _nominal(turn)
    return None


class Fleet:
    """Runs one policy over one sequence of arrivals."""

    def __init__(
        self, specs: Sequence[EngineSpec], make: Make, *, seed: int, event_delay_s: float = EVENT_DELAY_S
    ) -> None:
        self.engines = [Engine(spec) for spec in specs]
        self.policy = make(self.engines, self._send, seed)
        self.now = 0.0
        self.unbegun = 0
        self.numbers = count()
        self._delay = event_delay_s
        self._order = count()
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._after: dict[int, tuple[Conversation, int]] = {}
        self._done: list[Request] = []
        self._waking = float("inf")

    def run(self, arriving: Sequence[Arrival], *, measure_from: float, until: float) -> Run:
        """Ends at `until`, or when all is done; what was asked from `measure_from` on is told of."""
        waiting: list[tuple[float, int]] = []
        for arrival in arriving:
            self._plan(arrival.at, self._ask, arrival.conversation, arrival.first)
        sample_at, step = measure_from, max(1e-9, (until - measure_from) / 240)
        while self._agenda and self._agenda[0][0] <= until:
            self.now, _, act, arguments = heapq.heappop(self._agenda)
            while sample_at <= self.now:
                waiting.append((sample_at, self.unbegun))
                sample_at += step
            act(*arguments)
            if self.policy.wake_at < self._waking:
                self._waking = self.policy.wake_at
                self._plan(max(self.now, self._waking), self._wake, self._waking)
        busy = sum(engine.busy_s for engine in self.engines)
        measured = [one for one in self._done if one.asked_at >= measure_from]
        return Run(measured, waiting, busy, self.now)

    def _plan(self, at: float, act: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._agenda, (at, next(self._order), act, arguments))

    def _ask(self, conversation: Conversation, number: int) -> None:
        request = Request(next(self.numbers), conversation.name, conversation.turns[number], self.now)
        self._after[request.number] = (conversation, number + 1)
        self.unbegun += 1
        self.policy.asked(request, self.now)

    def _send(self, request: Request, engine: int, now: float) -> None:
        request.engine = engine
        self._moved(engine)
        self.engines[engine].submit(request, now)
        self._schedule(engine)

    def _moved(self, number: int) -> None:
        engine = self.engines[number]
        began, ended = engine.advance(self.now)
        if engine.cache.changes and (began or ended):
            changes, engine.cache.changes = engine.cache.changes, []
            self._plan(self.now + self._delay, self._news, number, changes)
        for request in began:
            self.unbegun -= 1
            self._plan(self.now, self._begun, request)
        for request in ended:
            self._plan(self.now, self._ended, request)

    def _schedule(self, number: int) -> None:
        engine = self.engines[number]
        at = engine.next_at()
        if at < float("inf"):
            self._plan(at, self._turn, number, engine.version)

    def _turn(self, number: int, version: int) -> None:
        if self.engines[number].version == version:
            self._moved(number)
            self._schedule(number)

    def _begun(self, request: Request) -> None:
        self.policy.begun(request, self.now)

    def _ended(self, request: Request) -> None:
        self.policy.ended(request, self.now)
        self._done.append(request)
        conversation, following = self._after.pop(request.number)
        if following < len(conversation.turns):
            self._plan(self.now + conversation.turns[following].pause_s, self._ask, conversation, following)

    def _news(self, engine: int, changes: list[Change]) -> None:
        self.policy.news(engine, changes, self.now)

    def _wake(self, at: float) -> None:
        if at == self._waking:
            self._waking = float("inf")
            self.policy.wake(self.now)
