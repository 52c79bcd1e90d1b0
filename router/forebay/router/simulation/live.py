"""The router's own core as a policy of the simulation: the code that places requests in production, on virtual time.

It is told what a front door is told and no more: the prompt's keys, KV events after their delay, first tokens and
usage. Rates are learnt on the way.
"""

from collections.abc import Sequence

import numpy as np

from forebay.router.core import Core
from forebay.router.prefix.blocks import Event, Removed, Stored
from forebay.router.prefix.keys import Keys, Weights
from forebay.router.routing import Ask, Following, Outcome, Placed
from forebay.router.simulation.blocks import Blocks, Change
from forebay.router.simulation.engine import Engine, Request
from forebay.router.simulation.policies import Send

_POOL = "simulated"
_WEIGHTS = Weights(b"simulation")
TICK_S = 0.5
PUMP_S = 0.02


class Prompts:
    """The prefix keys of simulated prompts: block number `b` holds the tokens `b * size` and on."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: dict[str, tuple[Blocks, Keys, int]] = {}

    def tokens(self, blocks: Blocks) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
        ids = blocks[:, None] * self._block + np.arange(self._block)
        return ids.astype(np.uint32).reshape(-1)

    def keys(self, conversation: str, blocks: Blocks) -> bytes:
        seen, keys, total = self._known.get(conversation, (blocks[:0], np.empty(0, np.uint64), 0))
        if len(seen) > len(blocks) or (seen != blocks[: len(seen)]).any():
            seen, keys, total = blocks[:0], np.empty(0, np.uint64), 0
        total, more = _WEIGHTS.extend(total, len(seen) * self._block, self.tokens(blocks[len(seen) :]))
        keys = np.concatenate((keys, more))
        self._known[conversation] = (blocks, keys, total)
        return (keys + np.uint64(_WEIGHTS.seed())).astype("<u8").tobytes()

    def event(self, change: Change) -> Event:
        blocks, parent, stored = change
        if not stored:
            return Removed(blocks.tolist()[::-1])
        return Stored(blocks.tolist(), parent, self.tokens(blocks).tolist(), self._block)


class Forebay:
    """One front door. `prompts` may be of several."""

    wake_at = 0.0

    def __init__(self, engines: Sequence[Engine], send: Send, seed: int, prompts: Prompts | None = None) -> None:
        self._names = [f"e{number}" for number in range(len(engines))]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._send = send
        self._prompts = prompts or Prompts(engines[0].spec.block)
        self._bookings: dict[int, int] = {}
        self._asked: dict[int, Request] = {}
        self._tick_at = 0.0
        self.core = Core({_POOL: self._names}, _WEIGHTS)
        for name in self._names:
            self.core.follows(_POOL, name, Following.FOLLOWING)

    def asked(self, request: Request, now: float) -> None:
        turn = request.turn
        keys = self._prompts.keys(request.conversation, turn.blocks)
        ask = Ask(_POOL, keys, turn.tokens, min(turn.output, 256), (), stream=True, patience_s=1e9)
        self._asked[self.core.request(ask, now)] = request
        self._deliver(now)

    def _deliver(self, now: float) -> None:
        for settled in self.core.settled():
            request, placed = self._asked.pop(settled.number), settled.result
            assert isinstance(placed, Placed)
            self._bookings[request.number] = placed.booking
            self._send(request, self._numbers[placed.endpoint], now)
        self.wake_at = min(self.wake_at, now + PUMP_S) if self._asked else self.wake_at

    def begun(self, request: Request, now: float) -> None:
        self.core.begun(self._bookings[request.number], now)
        self._pump(now)

    def _pump(self, now: float) -> None:
        self.core.pump(_POOL, now)
        self._deliver(now)

    def ended(self, request: Request, now: float) -> None:
        turn = request.turn
        outcome = Outcome(
            turn.tokens, request.cached, turn.output,
            request.began_at - request.sent_at, request.ended_at - request.began_at, turn.returns,
        )  # fmt: skip
        self.core.ended(self._bookings.pop(request.number), outcome, now)
        self._pump(now)

    def news(self, engine: int, changes: Sequence[Change], now: float) -> None:
        self.heard(engine, [self._prompts.event(change) for change in changes])

    def heard(self, engine: int, events: Sequence[Event]) -> None:
        self.core.apply(_POOL, self._names[engine], events)

    def wake(self, now: float) -> None:
        if now >= self._tick_at:
            self._tick_at = now + TICK_S
            self.core.tick(now)
        self.wake_at = self._tick_at
        self._pump(now)
