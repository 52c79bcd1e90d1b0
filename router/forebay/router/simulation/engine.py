"""One simulated engine (pure): prefill in chunks that running answers share each step with, and a bounded KV cache.

Between two events everything moves at constant rates, so an engine costs a few operations a request, however many steps
the real one would take. While a prompt is computed, each step takes a chunk of it and one token of every answer:

    step = chunk / prefill rate + answers · seconds an answer adds          (a prompt is being computed)
    step = step_s + answers · seconds an answer adds                        (none is)

A token at position p takes (1 + p / attention) times the time of the first. Prompts are computed one after the other,
in the order in which they came; one begins when the cache has room for it and its answer.
"""

import heapq
import math
from collections import deque
from itertools import count

from msgspec import Struct

from forebay.router.simulation.blocks import Blocks, Cache, Change, Pin
from forebay.router.simulation.workload import Turn
from forebay.router.tiers import DEFAULT

_NEVER = float("inf")
_SOON_S = 1e-6  # what is due within this is due: sums of floats are not exact


class EngineSpec(Struct, frozen=True):
    """`prefill`: tokens a second. `capacity`: tokens of KV cache. `attention`: tokens of context at which computing one
    more takes twice the time."""

    prefill: float
    capacity: int
    block: int
    chunk: int = 2048
    step_s: float = 0.02
    answer_s: float = 0.0002
    fixed_s: float = 0.02
    attention: float = 200_000.0

    def prefill_s(self, tokens: int, cached: int) -> float:
        """Seconds to compute `tokens` behind `cached` ones, on an engine that does nothing else."""
        return self.fixed_s + tokens / self.prefill * (1 + (cached + tokens / 2) / self.attention)


class Request(Struct, eq=False):
    """One turn on its way. Times are of the simulation, in seconds. `offset`: see `workload.Instance`. `served_as`: the
    tier that it is served or refused in. `refused_at`: when it was told that it will not be served, and to come again
    after `retry_s`; `tries`: how often it was asked, last at `tried_at`. Of one that goes on where another was stopped:
    `given` are the tokens of its answer that came before, `first_at` is when the first of them did."""

    number: int
    conversation: str
    turn: Turn
    asked_at: float
    sent_at: float = 0.0
    began_at: float = 0.0
    ended_at: float = 0.0
    engine: int = -1
    cached: int = 0  # tokens
    left_s: float = 0.0  # of prefill
    pin: Pin | None = None
    offset: int = 0
    stopped: bool = False
    tier: str = DEFAULT
    tenant: str = ""
    served_as: str = ""
    refused_at: float | None = None
    retry_s: float = 0.0
    tried_at: float = 0.0
    tries: int = 1
    first_at: float = 0.0
    given: int = 0
    stops: int = 0


class Engine:
    """`submit` and `advance` move it to a time; `next_at` says when something happens if nothing else does. `news`
    collects what its cache gave up, at once, and what it stored, once it is computed."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.cache = Cache(max(1, spec.capacity // spec.block))
        self.waiting: deque[Request] = deque()
        self.computing: Request | None = None
        self.news: list[Change] = []
        self.version = 0  # changes with everything that moves `next_at`
        self.computed = 0  # tokens of prefill, so far
        self.busy_s = 0.0  # with prefill, so far
        self._answers: list[tuple[float, int, Request]] = []  # by the count of steps at which they end
        self._steps = 0.0  # tokens that each running answer has got so far
        self._now = 0.0
        self._order = count()
        self._stored: list[Change] = []  # for the prompt that is being computed

    @property
    def in_flight(self) -> int:
        return len(self.waiting) + len(self._answers) + (self.computing is not None)

    @property
    def requests(self) -> list[Request]:
        computing = [] if self.computing is None or self.computing.stopped else [self.computing]
        return [*self.waiting, *computing, *(one for _, _, one in self._answers)]

    def submit(self, request: Request, now: float) -> None:
        """To be called with the engine at `now` (see `advance`)."""
        request.sent_at = now
        self.waiting.append(request)
        self._start(now)
        self.version += 1

    def stop(self, request: Request, now: float) -> None:
        """Nobody wants its answer any more. To be called with the engine at `now`; a prompt that is being computed is
        computed to its end."""
        request.stopped = True
        if request in self.waiting:
            self.waiting.remove(request)
        elif request is not self.computing and request.pin is not None:
            self._answers = [one for one in self._answers if one[2] is not request]
            heapq.heapify(self._answers)
            self._release(request, now)
        self._start(now)
        self.version += 1

    def got(self, request: Request) -> int:
        """Tokens of an answer that is being generated that have come."""
        left = next((at for at, _, one in self._answers if one is request), None)
        return 0 if left is None else max(1, request.turn.output - math.ceil(left - self._steps))

    def die(self, now: float) -> list[Request]:
        """Everything that was there, its cache included, is gone. To be called with the engine at `now`. The requests
        that it had."""
        lost = self.requests
        for request in lost:
            request.stopped, request.pin = True, None
        self.cache = Cache(self.cache.capacity)
        self.waiting.clear()
        self._answers.clear()
        self.computing = None
        self.news, self._stored = [], []
        self.version += 1
        return lost

    def advance(self, now: float) -> tuple[list[Request], list[Request]]:
        """What began and what ended until `now`, which must not be after `next_at`."""
        began: list[Request] = []
        ended: list[Request] = []
        prefill, step_s = self._rates()
        passed = now - self._now
        self._now = now
        if self.computing is not None:
            self.computing.left_s -= passed * prefill
            self.busy_s += passed
        if self._answers:
            self._steps += passed / step_s
        while self._answers and (self._answers[0][0] - self._steps) * step_s <= _SOON_S:
            request = heapq.heappop(self._answers)[2]
            self._end(request, now)
            ended.append(request)
        if self.computing is not None and self.computing.left_s <= _SOON_S * prefill:
            request = self._begin(self.computing, now)
            if not request.stopped:
                began.append(request)
            self._start(now)
        elif ended:
            self._start(now)
        self.version += 1
        return began, ended

    def next_at(self) -> float:
        prefill, step_s = self._rates()
        compute = self.computing.left_s / prefill if self.computing is not None else _NEVER
        answer = max(0.0, self._answers[0][0] - self._steps) * step_s if self._answers else _NEVER
        return self._now + max(0.0, min(compute, answer))

    def _rates(self) -> tuple[float, float]:
        """The share of its full rate at which prefill goes on, and seconds a step."""
        spec, answers = self.spec, len(self._answers) * self.spec.answer_s
        if self.computing is None:
            return 0.0, spec.step_s + answers
        chunk = spec.chunk / spec.prefill
        return chunk / (chunk + answers), chunk + answers

    def _start(self, now: float) -> None:
        if self.computing is not None or not self.waiting:
            return
        request = self.waiting[0]
        turn, answer = request.turn, self._answer(request)
        if self._answers and not self.cache.room(turn.blocks, answer):
            return  # with nothing running it begins even where it has no room: a prompt larger than the cache
        self.waiting.popleft()
        request.cached = min(self.cache.match(turn.blocks) * self.spec.block, turn.tokens - 1)
        request.pin = self.cache.pin(turn.blocks, now)
        self.cache.reserve(answer)
        for change in self._changes():
            (self._stored if change[2] else self.news).append(change)
        request.left_s = self.spec.prefill_s(turn.tokens - request.cached, request.cached)
        self.computed += turn.tokens - request.cached
        self.computing = request

    def _begin(self, request: Request, now: float) -> Request:
        """Its first token."""
        self.computing = None
        request.began_at = now
        request.first_at = request.first_at or now
        self.news += self._stored
        self._stored = []
        if request.stopped:
            self._release(request, now)
            return request
        heapq.heappush(self._answers, (self._steps + request.turn.output - 1, next(self._order), request))
        return request

    def _end(self, request: Request, now: float) -> None:
        request.ended_at = now
        self._release(request, now, request.turn.kept)

    def _release(self, request: Request, now: float, kept: Blocks | None = None) -> None:
        """It uses its blocks no more; `kept` are those that it leaves behind, if there is room for them."""
        assert request.pin is not None
        self.cache.reserve(-self._answer(request))
        if kept is not None and self.cache.room(kept, 0):
            more = self.cache.pin(kept, now)
            self.cache.release(request.pin, now)
            request.pin = more
        self.cache.release(request.pin, now)
        request.pin = None
        self.news += self._changes()

    def _answer(self, request: Request) -> int:
        return -(-request.turn.output // self.spec.block)

    def _changes(self) -> list[Change]:
        changes, self.cache.changes = self.cache.changes, []
        return changes
