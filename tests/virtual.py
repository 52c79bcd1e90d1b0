"""A router's core on virtual time, with prompts made of named pieces of text."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay.router.core import Core
from forebay.router.prefix.blocks import Stored
from forebay.router.prefix.keys import Ids, Weights
from forebay.router.routing import Ask, Candidate, Following, Outcome, Placed

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


def endpoints_of(placed: Sequence[Placed]) -> list[str]:
    return [one.endpoint for one in placed]
