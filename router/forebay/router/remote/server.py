"""The router process's side: each connection is a worker, and an owner of bookings that go when it does."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from forebay.router.endpoints import EndpointSpec, Roster
from forebay.router.remote.channel import Channel, Handler, RouterUnavailable
from forebay.router.remote.sockets import Listener
from forebay.router.remote.wire import (
    VERSION,
    Answered,
    Begun,
    Ended,
    Evict,
    Explain,
    ExplainAnswer,
    Failed,
    FromWorker,
    Hello,
    Place,
    PlaceAnswer,
    Specs,
    States,
    Waits,
    Withdraw,
)
from forebay.router.routing import Ask, EndpointState, Explanation, Outcome, Refused, Result

log = logging.getLogger(__name__)

STATES_EVERY_S = 0.1
HELLO_WITHIN_S = 5.0
MOST_CONNECTIONS = 256


class Shared(Protocol):
    """A router on which several owners book."""

    def place(self, ask: Ask, owner: int, tell: Callable[[Result], None]) -> int | None:
        """Call `tell`, once, with what becomes of a request. It waits if there is a number, to withdraw it by."""

    def within_s(self, number: int) -> float:
        """Seconds within which `tell` is called."""

    def listen_evictions(self, owner: int, tell: Callable[[int], None]) -> None:
        """Call `tell` with what it has booked and is to stop, until it is released."""

    def withdraw(self, number: int) -> None:
        """`tell` is not called any more."""

    def explain(self, ask: Ask) -> Explanation: ...
    def begun(self, booking: int) -> None: ...
    def ended(self, booking: int, outcome: Outcome) -> None: ...
    def failed(self, pool: str, endpoint: str, reason: str, *, at_once: bool = False) -> None: ...
    def answered(self, pool: str, endpoint: str) -> None: ...
    def states(self, pool: str) -> dict[str, EndpointState]: ...
    def release_owner(self, owner: int) -> None:
        """Forget what it has booked, and what it waits for."""


class RouterServer:
    """`router` for the workers that connect to `path`. `handlers` answer what they ask beside routing, and may grow.
    `roster`: how the endpoints are reached, which workers are told in time.

    `async with` it: from then on workers are served. Raises `SocketInUseError`, `OSError`.
    """

    def __init__(
        self,
        router: Shared,
        pools: Sequence[str],
        path: Path,
        *,
        roster: Roster | None = None,
        handlers: dict[str, Handler] | None = None,
    ) -> None:
        self.path = path
        self._router = router
        self._pools = tuple(pools)
        self.handlers = handlers if handlers is not None else {}
        self._owners = itertools.count(1)
        self.links: set[_Link] = set()
        self._told: dict[tuple[str, str], EndpointState] = {}
        self.roster = roster or Roster()
        self.roster.listen(self._tell_specs)

    def __repr__(self) -> str:
        return f"<RouterServer {self.path} {sorted(link.peer for link in self.links)}>"

    async def __aenter__(self) -> "RouterServer":
        self._listener = Listener(self.path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._accept, sock=self._listener.socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for link in tuple(self.links):
            link.close()
        await asyncio.gather(*(link.closed for link in tuple(self.links)))
        self._listener.close()

    @property
    def workers(self) -> "dict[str, _Link]":
        """Those connected, by name."""
        return {link.peer: link for link in self.links if link.greeted}

    async def run(self) -> None:
        """Keep the workers' view of the endpoints fresh, until cancelled."""
        while True:
            self._tell_changes()
            await asyncio.sleep(STATES_EVERY_S)

    async def gather(self, name: str, body: bytes = b"", *, timeout: float) -> dict[str, bytes | None]:
        """What each worker answers to a query; None of one that does not within `timeout` seconds."""
        workers = self.workers
        answers = await asyncio.gather(*(_answer(link, name, body, timeout) for link in workers.values()))
        return dict(zip(workers, answers, strict=True))

    def _accept(self) -> "_Link":
        return _Link(self, self._router, next(self._owners), self.handlers)

    def endpoints(self) -> dict[tuple[str, str], EndpointState]:
        return {(pool, name): state for pool in self._pools for name, state in self._router.states(pool).items()}

    def _tell_specs(self, pool: str, specs: tuple[EndpointSpec, ...]) -> None:
        """At once: what is placed on a new endpoint comes behind it on each connection."""
        for link in self.links:
            if link.greeted:
                link.tell(Specs(pool, list(specs)))

    def _tell_changes(self) -> None:
        found, told = self.endpoints(), self._told
        self._told = found
        changed = [state for key, state in found.items() if state != told.get(key)]
        whole = found.keys() != told.keys()
        for link in self.links:
            link.tell_states(list(found.values()) if whole or link.behind else changed, whole=whole or link.behind)


class _Link(Channel[FromWorker]):
    def __init__(self, server: RouterServer, router: Shared, owner: int, handlers: Mapping[str, Handler]) -> None:
        super().__init__(FromWorker, handlers, f"connection {owner}")
        self.greeted = False
        self.behind = True  # it does not know all that was told to others
        self._server = server
        self._owner = owner
        self._router = router
        self._unanswered: dict[int, int] = {}  # the router's number of a question that is not answered yet
        self._greeting = self._loop.call_later(HELLO_WITHIN_S, self.close, f"no greeting within {HELLO_WITHIN_S:g} s")

    def tell_states(self, states: list[EndpointState], *, whole: bool) -> None:
        """A worker that does not keep up hears everything later instead."""
        if not self.greeted:
            return
        self.behind = not self.ready
        if self.ready and (states or whole):
            self.tell(States(states, whole))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.links.add(self)
        if len(self._server.links) > MOST_CONNECTIONS:
            self.close(f"more than {MOST_CONNECTIONS} connections")

    def pause_writing(self) -> None:
        """Answers follow questions: who does not read is not read from."""
        super().pause_writing()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._transport is not None:
            self._transport.resume_reading()

    def on_message(self, message: FromWorker) -> None:
        try:
            if self.greeted:
                self._take(message)
            else:
                self._greet(message)
        except Exception:
            log.exception("a %s of worker %s failed", type(message).__name__, self.peer)  # its deadline ends the wait

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Place):
            self._place(message.id, message.ask)
        elif isinstance(message, Begun):
            self._router.begun(message.booking)
        elif isinstance(message, Ended):
            self._router.ended(message.booking, message.outcome)
        elif isinstance(message, Answered):
            self._router.answered(message.pool, message.endpoint)
        elif isinstance(message, Failed):
            self._router.failed(message.pool, message.endpoint, message.reason, at_once=message.at_once)
        elif isinstance(message, Explain):
            self.tell(ExplainAnswer(message.id, self._router.explain(message.ask)))
        elif isinstance(message, Withdraw):
            self._withdraw(message.id)
        else:
            super().on_message(message)

    def _place(self, question: int, ask: Ask) -> None:
        def tell(result: Result) -> None:
            self._unanswered.pop(question, None)
            if isinstance(result, Refused):
                self.tell(PlaceAnswer(question, None, result))
            else:
                self.tell(PlaceAnswer(question, result))

        number = self._router.place(ask, self._owner, tell)
        if number is not None:
            self._unanswered[question] = number
            self.tell(Waits(question, self._router.within_s(number)))

    def _withdraw(self, question: int) -> None:
        """One that is answered already is given back by the worker, who finds the answer on its way."""
        number = self._unanswered.pop(question, None)
        if number is not None:
            self._router.withdraw(number)
            self.tell(PlaceAnswer(question))

    def on_closed(self) -> None:
        self._greeting.cancel()
        self._server.links.discard(self)
        self._router.release_owner(self._owner)

    def _greet(self, message: FromWorker) -> None:
        if not isinstance(message, Hello):
            self.close(f"it began with {type(message).__name__} instead of a greeting")
        elif message.version != VERSION:
            self.close(f"worker {message.worker} speaks version {message.version}, this router {VERSION}: restart both")
        else:
            self._greeting.cancel()
            self.peer, self.greeted = message.worker[:64], True
            self._router.listen_evictions(self._owner, lambda booking: self.tell(Evict(booking)))
            for pool, specs in self._server.roster.pools.items():
                self.tell(Specs(pool, list(specs)))
            self.tell_states(list(self._server.endpoints().values()), whole=True)


async def _answer(link: _Link, name: str, body: bytes, timeout: float) -> bytes | None:
    try:
        return await link.query(name, body, timeout=timeout)
    except RouterUnavailable as error:
        log.warning("worker %s does not answer: %s", link.peer, error)
        return None
