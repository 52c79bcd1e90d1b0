"""Other routers' ways to choose, written from their published descriptions (facts, not code), to compare with.

Each is given what it asks for at its best: what every cache holds at this very moment and will hold of prompts that
wait there (llm-d's speculative indexing), and every request in flight, without delay. llm-d's constants are calibrated
to the simulated engines, as its guides say to do.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import Protocol

from forebay.router.simulation.blocks import Cache, Change, common
from forebay.router.simulation.engine import Engine, Request

STICKY_MATCH, STICKY_PENALTY_S = 0.80, 18.0  # llm-d's prefix-cache-affinity-filter, its defaults
CALIBRATED_AT = 8_192  # tokens of a prompt: llm-d's guides take the peak rate to be B / median TTFT of prompts of B
TREE_MATCH, TREE_ABSOLUTE, TREE_RELATIVE = 0.3, 64, 1.5  # sglang-router's cache_aware, its defaults
TREE_TOKENS = 1 << 24  # its tree of 67,108,864 characters, at four a token


class Send(Protocol):
    """What a policy can do with a request: send it to an engine, turn it away (to be asked again after so many seconds,
    if it wants), or have its engine stop it. What is left of one that was stopped is a request that is yet to be
    sent; None, where it had ended."""

    def __call__(self, request: Request, engine: int, now: float) -> None: ...
    def refuse(self, request: Request, retry_s: float, now: float) -> None: ...
    def stop(self, request: Request, now: float) -> Request | None: ...


class Policy(Protocol):
    """`asked` must lead to one call of `send`, then or later, or to a refusal. `wake_at` is when `wake` wants to be
    called."""

    wake_at: float

    def asked(self, request: Request, now: float) -> None: ...
    def begun(self, request: Request, now: float) -> None: ...
    def ended(self, request: Request, now: float) -> None: ...
    def news(self, engine: int, changes: Sequence[Change], now: float) -> None: ...
    def wake(self, now: float) -> None: ...


class Immediate:
    """A policy that sends each request at once, to the engine that `choose` names."""

    wake_at = float("inf")

    def __init__(self, engines: Sequence[Engine], send: Send, seed: int) -> None:
        self.engines = engines
        self.random = random.Random(seed)  # noqa: S311 - repeatable
        self.in_flight = [0] * len(engines)
        self.waiting = [0] * len(engines)  # uncached tokens of prompts that have not begun
        self._send = send
        self._uncached: dict[int, int] = {}

    def choose(self, request: Request) -> int:
        raise NotImplementedError

    def asked(self, request: Request, now: float) -> None:
        engine = self.choose(request)
        uncached = request.turn.tokens - self.cached(engine, request)
        self.in_flight[engine] += 1
        self.waiting[engine] += uncached
        self._uncached[request.number] = uncached
        self._send(request, engine, now)

    def begun(self, request: Request, now: float) -> None:
        self.waiting[request.engine] -= self._uncached.pop(request.number)

    def ended(self, request: Request, now: float) -> None:
        self.in_flight[request.engine] -= 1

    def news(self, engine: int, changes: Sequence[Change], now: float) -> None:
        pass

    def wake(self, now: float) -> None:
        pass

    def cached(self, engine: int, request: Request) -> int:
        """Tokens of the prompt that the engine has, or will have of prompts that wait there."""
        found, blocks = self.engines[engine], request.turn.blocks
        most = max([found.cache.match(blocks), *(common(one.turn.blocks, blocks) for one in found.waiting)])
        return min(most * found.spec.block, request.turn.tokens - 1)

    def least(self, values: Sequence[float], among: Sequence[int] | None = None) -> int:
        """The index of the least value, of equals one at random."""
        among = range(len(values)) if among is None else among
        low = min(values[at] for at in among)
        return self.random.choice([at for at in among if values[at] == low])


class RoundRobin(Immediate):
    def choose(self, request: Request) -> int:
        return request.number % len(self.engines)


class LeastRequests(Immediate):
    def choose(self, request: Request) -> int:
        return self.least(self.in_flight)


class SessionHash(Immediate):
    def choose(self, request: Request) -> int:
        digest = hashlib.blake2b(request.conversation.partition("/")[0].encode(), digest_size=8).digest()
        return int.from_bytes(digest) % len(self.engines)


class StickyUntilSaturated(Immediate):
    """llm-d's default stack: those with at least 80 % of the prompt, unless the least predicted wait among them is 18 s
    above the least elsewhere; of those left, the least tokens in flight with this prompt's own."""

    def __init__(self, engines: Sequence[Engine], send: Send, seed: int) -> None:
        super().__init__(engines, send, seed)
        self._peak = CALIBRATED_AT / engines[0].spec.prefill_s(CALIBRATED_AT, 0)

    def choose(self, request: Request) -> int:
        everyone = range(len(self.engines))
        cached = [self.cached(engine, request) for engine in everyone]
        sticky = [engine for engine in everyone if cached[engine] >= STICKY_MATCH * request.turn.tokens]
        others = [engine for engine in everyone if engine not in sticky]
        if sticky and others:
            penalty = (min(self.waiting[at] for at in sticky) - min(self.waiting[at] for at in others)) / self._peak
            if penalty > STICKY_PENALTY_S:
                sticky = []
        load = [self.waiting[engine] + request.turn.tokens - cached[engine] for engine in everyone]
        return self.least(load, sticky or everyone)


class CacheAwareTree(Immediate):
    """The Rust routers' `cache_aware`: the owner of the longest match of what was sent so far, unless loads differ by
    more than 64 and 1.5 times; the least requests where less than 30 % match."""

    def __init__(self, engines: Sequence[Engine], send: Send, seed: int) -> None:
        super().__init__(engines, send, seed)
        # It learns nothing of what engines give up; that its bound is by engine is to its advantage.
        self._sent = [Cache(TREE_TOKENS // engines[0].spec.block) for _ in engines]

    def choose(self, request: Request) -> int:
        blocks = request.turn.blocks
        low, high = min(self.in_flight), max(self.in_flight)
        matched = [tree.match(blocks) for tree in self._sent]
        best = max(range(len(matched)), key=matched.__getitem__)
        if high - low > TREE_ABSOLUTE and high > TREE_RELATIVE * low:
            engine = self.least(self.in_flight)
        elif matched[best] * self.engines[0].spec.block / request.turn.tokens > TREE_MATCH:
            engine = best
        else:
            engine = self.least(self.in_flight)
        tree = self._sent[engine]
        tree.release(tree.pin(blocks, request.asked_at), request.asked_at)
        tree.changes.clear()
        return engine


class DynamoCost(Immediate):
    """Dynamo's KV router: blocks of prefill waiting there with this prompt's uncached ones, plus blocks that running
    answers hold with this request's own; the lowest wins."""

    def __init__(self, engines: Sequence[Engine], send: Send, seed: int) -> None:
        super().__init__(engines, send, seed)
        self._held = [0] * len(engines)

    def choose(self, request: Request) -> int:
        everyone = range(len(self.engines))
        uncached = [request.turn.tokens - self.cached(engine, request) for engine in everyone]
        costs = [self.waiting[at] + uncached[at] + self._held[at] + request.turn.tokens for at in everyone]
        engine = self.least(costs)
        self._held[engine] += request.turn.tokens
        return engine

    def ended(self, request: Request, now: float) -> None:
        super().ended(request, now)
        self._held[request.engine] -= request.turn.tokens


OTHERS: dict[str, type[Immediate]] = {
    "round-robin": RoundRobin,
    "least-requests": LeastRequests,
    "session-hash": SessionHash,
    "llm-d": StickyUntilSaturated,
    "cache-aware-tree": CacheAwareTree,
    "dynamo": DynamoCost,
}
