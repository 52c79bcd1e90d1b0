"""Open-loop demand of several tiers and tenants (pure): requests that come whether or not earlier ones are answered."""

import random
from collections.abc import Sequence
from itertools import count

import numpy as np
from msgspec import Struct

from forebay.router.simulation.arriving import Arrival
from forebay.router.simulation.workload import Conversation, Instance, Turn

BLOCK = 64
PAUSE_S = 4.0  # between an answer and the next turn of a conversation, on average


class Source(Struct, frozen=True):
    """One tenant's. `share`: of all requests. Lengths are lognormal: their medians in tokens, by how much they spread,
    and the most that is asked for. A request goes on in a session with probability `sessions`, that is its prompt
    begins with an earlier one; else it begins with the tenant's system prompt only."""

    tier: str
    tenant: str
    share: float
    prompt: float = 900.0
    prompt_spread: float = 0.8
    most: int = 6_000
    output: float = 150.0
    output_spread: float = 0.7
    longest: int = 800
    system: int = 512
    sessions: float = 0.4


def demand(sources: Sequence[Source], *, rate: float, until: float, seed: int) -> list[Arrival]:
    """So many requests a second of all sources together, as a Poisson process."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    names, found = count(1), list[Arrival]()
    tenants = [_Tenant(source, rng, names) for source in sources]
    shares = [source.share for source in sources]
    at = 0.0
    while (at := at + rng.expovariate(rate)) < until:
        tenant = rng.choices(tenants, shares)[0]
        turn = tenant.turn()
        name = f"{tenant.source.tenant}#{len(found)}"
        conversation = Conversation(name, [turn], tier=tenant.source.tier, tenant=tenant.source.tenant)
        found.append(Arrival(at, Instance(name, conversation)))
    return found


def conversations(sources: Sequence[Source], *, rate: float, until: float, seed: int) -> list[Arrival]:
    """As many requests, if all are answered, as conversations: a turn comes some seconds after the answer to the one
    before. Who is refused says no more."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    names, found = count(1), list[Arrival]()
    tenants = [_Tenant(source, rng, names) for source in sources]
    shares = [source.share for source in sources]
    turns_each = sum(one.share / (1 - one.sessions) for one in sources) / sum(shares)
    at = 0.0
    while (at := at + rng.expovariate(rate / turns_each)) < until:
        tenant = rng.choices(tenants, shares)[0]
        turns = tenant.conversation()
        name = f"{tenant.source.tenant}#{len(found)}"
        conversation = Conversation(name, turns, tier=tenant.source.tier, tenant=tenant.source.tenant)
        found.append(Arrival(at, Instance(name, conversation)))
    return found


def mean_tokens(arriving: Sequence[Arrival]) -> float:
    """Of a request's prompt and answer."""
    turns = [one.instance.conversation.turns[0] for one in arriving]
    return sum(turn.tokens + turn.output for turn in turns) / len(turns)


class _Tenant:
    MOST_SESSIONS = 20

    def __init__(self, source: Source, rng: random.Random, names: "count[int]") -> None:
        self.source = source
        self._rng = rng
        self._names = names
        self._system = self._fresh(source.system)
        self._sessions: list[list[int]] = []

    def _lengths(self) -> tuple[int, int]:
        source, rng = self.source, self._rng
        tokens = min(source.most, max(16, round(rng.lognormvariate(np.log(source.prompt), source.prompt_spread))))
        output = min(source.longest, max(1, round(rng.lognormvariate(np.log(source.output), source.output_spread))))
        return tokens, output

    def conversation(self) -> list[Turn]:
        source, rng = self.source, self._rng
        before, turns = self._system, list[Turn]()
        while not turns or rng.random() < source.sessions:
            tokens, output = self._lengths()
            if turns and len(before) * BLOCK + tokens > source.most + source.system:
                break
            blocks = before + self._fresh(tokens)
            pause_s = rng.expovariate(1 / PAUSE_S) if turns else 0.0
            turns.append(Turn(np.array(blocks, np.int64), len(before) * BLOCK + tokens, output, pause_s))
            before = blocks
        return turns

    def turn(self) -> Turn:
        source, rng = self.source, self._rng
        tokens, output = self._lengths()
        before = self._system
        if self._sessions and rng.random() < source.sessions:
            before = self._sessions.pop(rng.randrange(len(self._sessions)))
        if len(before) * BLOCK + tokens > source.most + source.system:
            before = self._system  # the session was too long to go on
        blocks = before + self._fresh(tokens)
        self._sessions.append(blocks)
        if len(self._sessions) > self.MOST_SESSIONS:
            self._sessions.pop(0)
        return Turn(np.array(blocks, np.int64), len(before) * BLOCK + tokens, output)

    def _fresh(self, tokens: int) -> list[int]:
        return [next(self._names) for _ in range(tokens // BLOCK)]
