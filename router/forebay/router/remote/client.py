"""A worker's router: `routing.Router` that asks the router process, and connects again when that comes back."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from forebay.router.crowd import in_turn
from forebay.router.endpoints import Roster
from forebay.router.remote.channel import Channel, Handler, RouterUnavailable
from forebay.router.remote.wire import (
    VERSION,
    Answered,
    Begun,
    Ended,
    Evict,
    Explain,
    ExplainAnswer,
    Failed,
    FromRouter,
    Hello,
    Place,
    PlaceAnswer,
    Specs,
    States,
    Waits,
    Withdraw,
)
from forebay.router.routing import Ask, EndpointState, Explanation, Outcome, Placed, Reading, Result, reading

log = logging.getLogger(__name__)

DEADLINE_S = 2.0  # a router that replays or collects garbage may take a tenth of it
ASKS_UNSENT = 16 << 20  # bytes; beyond them the router is not asked
_FIRST_PAUSE, _LAST_PAUSE = 0.01, 1.0
_EPOCH = 48  # bits of a booking; above them stands the connection on which it was made


class RemoteRouter:
    """`name` is the worker's. `handlers` answer what the router process asks it. `roster` follows how the router's
    endpoints are reached. Start it with `run`.

    A connection that ends takes its bookings with it: telling of them later changes nothing.
    """

    def __init__(
        self, path: Path, name: str, *, handlers: Mapping[str, Handler] | None = None, deadline: float = DEADLINE_S
    ) -> None:
        self.path = path
        self._name = name
        self._handlers = handlers or {}
        self._deadline = deadline
        self._link: _Link | None = None
        self._epoch = 0
        self._connected = asyncio.Event()
        self._states: dict[str, dict[str, EndpointState]] = {}
        self.roster = Roster()
        self._evicting: list[Callable[[int], None]] = []

    def __repr__(self) -> str:
        return f"<RemoteRouter {self.path} {'connected' if self.connected else 'away'}>"

    @property
    def connected(self) -> bool:
        """Whether the router is there and its endpoints are known."""
        return self._connected.is_set()

    async def run(self) -> None:
        """Keep connected, until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            try:
                link = await self._connect()
            except OSError as error:
                log.warning("the router at %s cannot be reached: %s", self.path, error.strerror or error)
            else:
                try:
                    await asyncio.shield(link.closed)
                finally:
                    link.close()
                if link.welcome:
                    pause = _FIRST_PAUSE
                log.warning("the router at %s has gone", self.path)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE)

    async def until_connected(self, timeout: float) -> None:
        """Raises `RouterUnavailable`."""
        try:
            async with asyncio.timeout(timeout):
                await self._connected.wait()
        except TimeoutError:
            raise RouterUnavailable(f"no router at {self.path} within {timeout:g} s") from None

    async def query(self, name: str, body: bytes = b"", *, timeout: float) -> bytes:
        """What the router process answers to something beside routing. Raises `RouterUnavailable`."""
        if self._link is None:
            raise RouterUnavailable(f"no router at {self.path}")
        return await self._link.query(name, body, timeout=timeout)

    # -- routing.Router; `place` and `explain` raise `RouterUnavailable`

    async def place(self, ask: Ask) -> Result:
        link = await self._ready_link()
        result: Result = await link.ask(Place(link.number(), ask))
        return result

    async def explain(self, ask: Ask) -> Explanation:
        link = await self._ready_link()
        explanation: Explanation = await link.ask(Explain(link.number(), ask))
        return explanation

    def begun(self, booking: int) -> None:
        if self._link is not None and (own := self._link.own(booking)) is not None:
            self._link.tell(Begun(own))

    def ended(self, booking: int, outcome: Outcome) -> None:
        if self._link is not None and (own := self._link.own(booking)) is not None:
            self._link.tell(Ended(own, outcome))

    def failed(self, pool: str, endpoint: str, reason: str, *, at_once: bool = False) -> None:
        if self._link is not None:
            self._link.tell(Failed(pool, endpoint, reason[:1000], at_once))

    def answered(self, pool: str, endpoint: str) -> None:
        if self._link is not None:
            self._link.tell(Answered(pool, endpoint))

    def reading(self, pool: str) -> Reading:
        return reading(self._states.get(pool, {}).values())

    def states(self, pool: str) -> dict[str, EndpointState]:
        return self._states.get(pool, {})

    def listen_evictions(self, tell: Callable[[int], None]) -> None:
        self._evicting.append(tell)

    def evict(self, booking: int) -> None:
        """Of the connection: a booking is to be stopped."""
        for tell in self._evicting:
            tell(booking)

    # -- the connection

    async def _ready_link(self) -> "_Link":
        if not self.connected:
            await self.until_connected(self._deadline)
        link = self._link
        if link is None or link.gone or link.unsent > ASKS_UNSENT:
            raise RouterUnavailable(f"the router at {self.path} does not keep up")
        return link

    async def _connect(self) -> "_Link":
        self._epoch = (self._epoch + 1) % (1 << (63 - _EPOCH))
        loop = asyncio.get_running_loop()
        link = _Link(self, self._epoch, self._deadline, self._handlers)
        await loop.create_unix_connection(lambda: link, str(self.path))
        self._link = link
        link.tell(Hello(VERSION, self._name))
        return link

    def heard(self, states: States) -> None:
        """Of the connection: the router's endpoints."""
        known: dict[str, dict[str, EndpointState]]
        known = {} if states.whole else {pool: dict(endpoints) for pool, endpoints in self._states.items()}
        for state in states.endpoints:
            known.setdefault(state.pool, {})[state.name] = state
        self._states = known
        if states.whole:
            self._connected.set()

    def lost(self) -> None:
        """Of the connection: it is gone."""
        self._link = None
        self._connected.clear()


class _Asked(Struct):
    """A question on its way, to be answered `within` seconds of `at`. `answer`: None when nobody waits for it."""

    at: float
    within: float
    answer: "asyncio.Future[Any] | None"

    @property
    def due(self) -> float:
        return self.at + self.within


class _Link(Channel[FromRouter]):
    def __init__(
        self, router: RemoteRouter, epoch: int, deadline: float, handlers: Mapping[str, Handler]
    ) -> None:
        super().__init__(FromRouter, handlers, "router")
        self.welcome = False  # set when the endpoints are known
        self._epoch = epoch
        self._deadline = deadline
        self._router = router
        self._asked: dict[int, _Asked] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, question: Place | Explain) -> Any:
        answer: asyncio.Future[Any] = self._loop.create_future()
        asked = _Asked(self._loop.time(), self._deadline, answer)
        self._asked[question.id] = asked
        self.tell(question)
        self._expire_at(asked.due)
        try:
            return await answer
        except BaseException:
            if question.id in self._asked:  # its booking is given back when it comes
                asked.answer = None
                if isinstance(question, Place):
                    self.tell(Withdraw(question.id))
            elif answer.done() and not answer.cancelled() and answer.exception() is None:
                self._give_back(answer.result())
            raise

    def own(self, booking: int) -> int | None:
        """The router's number of a booking; None for one of an earlier connection."""
        return booking & ((1 << _EPOCH) - 1) if booking >> _EPOCH == self._epoch else None

    def on_message(self, message: FromRouter) -> None:
        if isinstance(message, PlaceAnswer):
            placed = _at(message.placed, self._epoch) if message.placed else message.refused
            in_turn(self._answered, message.id, placed)
        elif isinstance(message, ExplainAnswer):
            self._answered(message.id, message.explanation)
        elif isinstance(message, Waits):
            if (asked := self._asked.get(message.id)) is not None:
                asked.within = message.within_s + self._loop.time() - asked.at + self._deadline
        elif isinstance(message, States):
            self.welcome = self.welcome or message.whole
            self._router.heard(message)
        elif isinstance(message, Evict):
            self._router.evict(message.booking | self._epoch << _EPOCH)
        elif isinstance(message, Specs):
            self._router.roster.change(message.pool, message.endpoints)
        else:
            super().on_message(message)

    def on_closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for asked in self._asked.values():
            in_turn(_fail, asked.answer, "the router is gone")
        self._router.lost()

    def _answered(self, number: int, value: Any) -> None:
        asked = self._asked.pop(number, None)
        if asked is None or asked.answer is None or asked.answer.done():
            self._give_back(value)
        else:
            asked.answer.set_result(value)

    def _give_back(self, value: Any) -> None:
        own = self.own(value.booking) if isinstance(value, Placed) else None
        if own is not None:
            self.tell(Ended(own, Outcome()))

    def _expire_at(self, due: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for asked in self._asked.values():
            if asked.due <= now:
                _fail(asked.answer, f"the router did not answer within {asked.within:g} s")
        if dues := [asked.due for asked in self._asked.values() if asked.answer is not None and asked.due > now]:
            self._expire_at(min(dues))


def _fail(answer: "asyncio.Future[Any] | None", reason: str) -> None:
    if answer is not None and not answer.done():
        answer.set_exception(RouterUnavailable(reason))


def _at(placed: Placed, epoch: int) -> Placed:
    return Placed(
        placed.endpoint,
        placed.booking | epoch << _EPOCH,
        placed.cached,
        placed.predicted_s,
        placed.alone,
        placed.tier,
    )
