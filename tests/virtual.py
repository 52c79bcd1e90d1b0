"""A router's core on virtual time, with prompts made of named pieces of text."""

import hashlib
import heapq
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

import msgspec
import numpy as np

from forebay.router.core import Core, Settled
from forebay.router.prefix.blocks import Stored
from forebay.router.prefix.keys import Ids, Weights
from forebay.router.rates import COLD_FIXED_S, COLD_PREFILL_S
from forebay.router.routing import Ask, Candidate, Following, Outcome, Placed, Result

WEIGHTS = Weights(b"a secret of the tests")
POOL = "main"
BLOCK = 32
_SEED = WEIGHTS.seed(salt="a tenant's")


def tokens(*pieces: tuple[str, int]) -> Ids:
    """The token ids of a prompt: each piece is a name and how many tokens stand under it."""
    parts = [np.frombuffer(hashlib.shake_256(name.encode()).digest(2 * size), np.uint16) for name, size in pieces]
    return np.concatenate(parts).astype(np.uint32) if parts else np.empty(0, np.uint32)


class Table:
    """One pool. `now` is moved by the test; `place` books one request and remembers it by number."""

    def __init__(self, *endpoints: str, following: Following = Following.NONE, **settings: Any) -> None:
        self.core = Core({POOL: endpoints}, WEIGHTS, **settings)
        self.now = 1000.0
        self.pool = self.core.pools[POOL]
        for endpoint in endpoints:
            self.core.follows(POOL, endpoint, following)

    def ask(
        self,
        *pieces: tuple[str, int],
        output: int = 64,
        without: tuple[str, ...] = (),
        stream: bool = True,
        exact: bool = True,
        session: str = "",
    ) -> Ask:
        ids = tokens(*pieces)
        keys = WEIGHTS.extend(_SEED, 0, ids)[1].tobytes()
        return Ask(POOL, keys, len(ids), output, without, stream, exact, session)

    def place(self, *pieces: tuple[str, int], owner: int = 0, **asked: Any) -> Placed:
        placed = self.core.place(self.ask(*pieces, **asked), self.now, owner)
        assert placed is not None
        return placed

    def request(self, *pieces: tuple[str, int], owner: int = 0, patience_s: float = 60.0, **asked: Any) -> int:
        """Ask for a place; its number."""
        ask = msgspec.structs.replace(self.ask(*pieces, **asked), patience_s=patience_s)
        return self.core.request(ask, self.now, owner)

    def pump(self) -> None:
        self.core.pump(POOL, self.now)

    def settled(self) -> dict[int, Result]:
        return {settled.number: settled.result for settled in self.core.settled()}

    def explain(self, *pieces: tuple[str, int], **asked: Any) -> dict[str, Candidate]:
        return {one.endpoint: one for one in self.core.explain(self.ask(*pieces, **asked), self.now)}

    def cached(self, *pieces: tuple[str, int]) -> dict[str, int]:
        """Tokens of a prompt that each endpoint is taken to hold, where any are."""
        return {name: one.cached for name, one in self.explain(*pieces).items() if one.cached}

    def begin(self, *placed: Placed) -> None:
        for one in placed:
            self.core.begun(one.booking, self.now)

    def end(self, *placed: Placed, **outcome: Any) -> None:
        for one in placed:
            self.core.ended(one.booking, Outcome(**outcome), self.now)

    def serve(self, *pieces: tuple[str, int], **asked: Any) -> str:
        """One whole request with nobody beside it; returns who answered."""
        placed = self.place(*pieces, **asked)
        self.begin(placed)
        self.end(placed)
        return placed.endpoint

    def stores(self, endpoint: str, *pieces: tuple[str, int], block: int = BLOCK) -> None:
        """Its KV events say that it has computed a prompt."""
        ids = tokens(*pieces)
        blocks = len(ids) // block
        hashes = [int(h) for h in WEIGHTS.running(1, 0, ids)[block - 1 :: block]]
        event = Stored(list(hashes), None, ids[: blocks * block].tolist(), block, salt="a tenant's")
        self.core.apply(POOL, endpoint, [event])

    def loads(self) -> dict[str, tuple[int, int, int]]:
        """In flight, tokens of prefill, tokens of output, by endpoint."""
        return {
            name: (member.load.in_flight, member.load.prefill, member.load.output)
            for name, member in self.pool.members.items()
        }

    def idle(self) -> bool:
        return not self.core.bookings and set(self.loads().values()) == {(0, 0, 0)}


class Engines:
    """Engines behind a table that compute one prompt after the other, as fast as a router takes them to be that has
    learnt nothing. `ask` at a time, then `run`; what became of each is told by its number in the order of asking."""

    def __init__(self, table: Table, *, answer_s: float = 1.0) -> None:
        self.table = table
        self.first_s: dict[int, float] = {}  # from asking to the first token
        self.queued_s: dict[int, float] = {}  # of that, in an engine before it began to compute
        self.where: dict[int, str] = {}
        self.computed: dict[str, int] = dict.fromkeys(table.pool.members, 0)  # tokens
        self.refused: list[int] = []
        self._answer_s = answer_s
        self._free_at = dict.fromkeys(table.pool.members, 0.0)
        self._held: dict[str, set[int]] = {name: set() for name in table.pool.members}
        self._plan: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._asked = 0
        self._known: dict[int, tuple[int, Ask, float]] = {}

    def ask(self, ask: Ask, at: float | None = None) -> int:
        self._asked += 1
        self._at(self.table.now if at is None else at, partial(self._request, self._asked, ask))
        return self._asked

    def run(self, until: float) -> None:
        table, every = self.table, 0.02
        for number in range(round((until - table.now) / every) + 1):
            at = table.now + number * every
            self._at(at, partial(table.core.tick, at) if number % 25 == 0 else int)
        while self._plan:
            at, _, what = heapq.heappop(self._plan)
            table.now = max(table.now, at)
            what()
            table.core.pump(POOL, table.now)
            for settled in table.core.settled():
                self._settled(settled)

    def copies(self, tokens: int) -> int:
        """Endpoints that have computed as much."""
        return sum(computed >= tokens for computed in self.computed.values())

    def _at(self, when: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._plan, (when, next(self._order), what))

    def _request(self, name: int, ask: Ask) -> None:
        number = self.table.core.request(ask, self.table.now)
        self._known[number] = name, ask, self.table.now

    def _settled(self, settled: Settled) -> None:
        name, ask, asked_at = self._known.pop(settled.number)
        placed, now = settled.result, self.table.now
        if not isinstance(placed, Placed):
            self.refused.append(name)
            return
        held, keys = self._held[placed.endpoint], np.frombuffer(ask.keys, "<u8").tolist()
        cached = next((number for number, key in enumerate(keys) if key not in held), len(keys)) * BLOCK
        held.update(keys)
        fresh = max(1, ask.tokens - cached)
        starts = max(now, self._free_at[placed.endpoint])
        self._free_at[placed.endpoint] = starts + fresh * COLD_PREFILL_S
        begins = self._free_at[placed.endpoint] + COLD_FIXED_S
        self.where[name], self.queued_s[name] = placed.endpoint, starts - now
        self.first_s[name] = begins - asked_at
        self.computed[placed.endpoint] += fresh
        told = Outcome(ask.tokens, min(cached, ask.tokens - 1), ask.output, begins - now, self._answer_s)
        self._at(begins, lambda: self.table.begin(placed))
        self._at(begins + self._answer_s, lambda: self.table.core.ended(placed.booking, told, self.table.now))


def endpoints_of(placed: Sequence[Placed]) -> list[str]:
    return [one.endpoint for one in placed]
