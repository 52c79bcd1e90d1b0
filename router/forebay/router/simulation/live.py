"""The router's own core as a policy of the simulation: the code that places requests in production, on virtual time.

It is told what a front door is told and no more: the prompt's keys, KV events after their delay, first tokens and
usage. Rates are learnt on the way.
"""

from collections.abc import Sequence

import numpy as np

from forebay.router.core import Core
from forebay.router.prefix.blocks import Event, Removed, Stored
from forebay.router.prefix.keys import Keys, Weights
from forebay.router.routing import Ask, Following, Outcome, Placed, Refused
from forebay.router.simulation.blocks import Blocks, Change
from forebay.router.simulation.engine import Engine, Request
from forebay.router.simulation.policies import Send
from forebay.router.tiers import Tiers

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
    """One front door. `prompts` may be of several. Without `tiers` requests wait for ever."""

    wake_at = 0.0

    def __init__(
        self, engines: Sequence[Engine], send: Send, seed: int, prompts: Prompts | None = None,
        tiers: Tiers | None = None,
    ) -> None:  # fmt: skip
        self._names = [f"e{number}" for number in range(len(engines))]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._send = send
        self._prompts = prompts or Prompts(engines[0].spec.block)
        self._bookings: dict[int, int] = {}
        self._running: dict[int, Request] = {}  # by booking
        self._asked: dict[int, Request] = {}
        self._numbered: dict[int, int] = {}  # the other way round
        self._tick_at = 0.0
        self._tiers = tiers
        self.core = Core({_POOL: self._names}, _WEIGHTS, tiers=tiers)
        for name in self._names:
            self.core.follows(_POOL, name, Following.FOLLOWING)

    def asked(self, request: Request, now: float) -> None:
        turn = request.turn
        keys = self._prompts.keys(request.conversation, turn.blocks)
        patience_s = 1e9 if self._tiers is None else self._tiers[request.tier].queue_s
        ask = Ask(
            _POOL, keys, turn.tokens, min(turn.output, 256), (), stream=True, patience_s=patience_s,
            tier=request.tier, tenant=request.tenant, promised=request.stops > 0,
        )  # fmt: skip
        number = self.core.request(ask, now)
        self._asked[number] = request
        self._numbered[request.number] = number
        self._deliver(now)

    def _deliver(self, now: float) -> None:
        for settled in self.core.settled():
            request, result = self._asked.pop(settled.number), settled.result
            del self._numbered[request.number]
            if isinstance(result, Placed):
                self._bookings[request.number] = result.booking
                self._running[result.booking] = request
                request.served_as = result.tier
                self._send(request, self._numbers[result.endpoint], now)
            else:
                retry_s = result.retry_s if isinstance(result, Refused) else 1.0
                request.served_as = result.tier if isinstance(result, Refused) else request.tier
                self._send.refuse(request, retry_s, now)
        self.wake_at = min(self.wake_at, now + PUMP_S) if self._asked else self.wake_at

    def begun(self, request: Request, now: float) -> None:
        self.core.begun(self._bookings[request.number], now)
        self._pump(now)

    def left(self, request: Request, now: float) -> None:
        """Its client is gone, or its engine: nobody waits for it any more."""
        if (number := self._numbered.pop(request.number, None)) is not None:
            del self._asked[number]
            self.core.withdraw(number, now)
        elif (booking := self._bookings.pop(request.number, None)) is not None:
            del self._running[booking]
            self.core.ended(booking, Outcome(), now)
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
        booking = self._bookings.pop(request.number)
        del self._running[booking]
        self.core.ended(booking, outcome, now)
        self._pump(now)

    def news(self, engine: int, changes: Sequence[Change], now: float) -> None:
        self.heard(engine, [self._prompts.event(change) for change in changes])

    def heard(self, engine: int, events: Sequence[Event]) -> None:
        self.core.apply(_POOL, self._names[engine], events)

    def wake(self, now: float) -> None:
        if now >= self._tick_at:
            self._tick_at = now + TICK_S
            self.core.tick(now)
            self._evict(now)
        self.wake_at = self._tick_at
        self._pump(now)

    def _evict(self, now: float) -> None:
        """What is stopped for a higher tier asks at once to go on."""
        for _, booking in self.core.evictions():
            request = self._running.get(booking)
            if request is not None and (rest := self._send.stop(request, now)) is not None:
                self.left(request, now)
                self.asked(rest, now)
