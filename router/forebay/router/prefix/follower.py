"""Follows one engine's KV events over ZeroMQ and brings the index what they say.

There is one follower for each endpoint, so for each data-parallel rank of an engine. `sequence` decides what may be
applied, `events` reads it; here are the sockets, the clock, and what an operator sees of it.
"""

import asyncio
import logging
import time
from collections import deque
from typing import Protocol

import msgspec
import zmq

from forebay.router.prefix.blocks import Event
from forebay.router.prefix.events import Decoder, UndecodableError
from forebay.router.prefix.follower_counters import Counters
from forebay.router.prefix.follower_link import Context, Link
from forebay.router.prefix.sequence import Action, Apply, Ask, Clear, Gap, Limits, Over, Result, Sequence, Why, parse
from forebay.router.routing import Following

log = logging.getLogger(__name__)

SLICE_S = 0.002
PAUSES_S = (0.1, 2.0)  # between two connections, doubled until something comes
ALARM_EVERY_S = 60.0  # seconds between two lines of one follower about what cannot be read
CAUGHT_UP_S = 10.0  # after that long without a replay's end nobody waits for it any more


class Sink(Protocol):
    """The endpoint's part of the index."""

    def apply(self, events: list[Event]) -> None: ...

    def clear(self) -> None: ...

    def follows(self, following: Following) -> None:
        """Told once at the start and at each change."""


class Follower:
    """`address` and `replay` are the engine's, as `tcp://host:port` or `ipc://path`. `rank`: the data-parallel rank
    whose events are taken; None: the first that is seen. `turns` is shared by the followers of a process: one works at
    a time. `caught_up` is set when the first replay is over, or nobody should wait for it any more."""

    def __init__(
        self,
        pool: str,
        endpoint: str,
        address: str,
        replay: str | None,
        sink: Sink,
        *,
        rank: int | None = None,
        context: Context | None = None,
        turns: asyncio.Lock | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.state = Following.STARTING
        self.caught_up = asyncio.Event()
        self._address = address
        self._replay = replay
        self._sink = sink
        self._rank = self._own_rank = rank
        self._context = context
        self._turns = turns or asyncio.Lock()
        self._decoder = Decoder(rank or 0)
        self._sequence = Sequence(replay=replay is not None, limits=limits)
        self._arrived: deque[tuple[bool, list[bytes]]] = deque()  # whether it is of the replay, and its frames
        self._todo: deque[Action] = deque()
        self._done: Apply | None = None
        self._resumed = b""
        self._met = False  # there was a connection
        self._unread = False  # the latest batch could not be read
        self._alarmed = False
        self._said = -ALARM_EVERY_S  # when that was logged last
        self._loud = False  # this alarm was
        self._relearn = False
        self._filled = True  # the sink may hold something
        self._reason = ""  # why there is no connection
        self._pause = PAUSES_S[0]
        self._counters = Counters(pool, endpoint, lambda: self.state is Following.FOLLOWING)

    def __repr__(self) -> str:
        return f"<Follower of {self.endpoint}: {self.state}, {self._sequence!r}, {len(self._todo)} to do>"

    def forget(self) -> None:
        """Its endpoint has gone, and its metrics go with it. To be called before another one takes its place."""
        self._counters.forget()

    def position(self) -> bytes:
        """Up to where the sink knows the engine's events, for `resume`; empty if it does not."""
        if self._done is None and not self._resumed:
            return b""
        known = self._resumed if self._done is None else self._done.position()
        return msgspec.msgpack.encode((known, self._decoder.group))

    def resume(self, position: bytes) -> None:
        """Take the sink as filled up to `position`, before `run`. Raises `ValueError`."""
        if not position:
            return
        try:
            known, group = msgspec.msgpack.decode(position, type=tuple[bytes, int | None])
        except msgspec.DecodeError as error:
            raise ValueError(f"not a position in KV events: {error}") from error
        self._sequence.resume(known)
        self._resumed, self._decoder.group = known, group

    async def run(self) -> None:
        """Until cancelled, and again if wanted. Faults are its own: it logs them and begins anew."""
        context = self._context or zmq.Context()
        due = asyncio.get_running_loop().call_later(CAUGHT_UP_S, self._late)
        self._sink.follows(self.state)
        try:
            while True:
                try:
                    await self._connection(context)
                except zmq.ZMQError as error:
                    self._unreachable(str(error))
                except Exception:
                    log.exception("following the KV events of endpoint %s failed and begins anew", self.endpoint)
                    self._start_over()
                await asyncio.sleep(self._pause)
                self._pause = min(2 * self._pause, PAUSES_S[1])
        finally:
            due.cancel()
            self.state = Following.AWAY
            if self._context is None:
                context.term()

    def _late(self) -> None:
        self.caught_up.set()
        if not self._met:
            log.warning("nothing publishes KV events of endpoint %s at %s", self.endpoint, self._address)
            self._now(Following.AWAY)

    async def _connection(self, context: Context) -> None:
        """One connection, until it breaks."""
        link = Link(context, self._address, self._replay)
        try:
            while not link.broken:
                deadline = self._sequence.deadline
                await link.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                await self._work(link)
        finally:
            link.close()
            self._arrived.clear()
            self._todo.extend(self._sequence.disconnected())
        self._now(Following.AWAY)
        await self._work(link)

    async def _work(self, link: Link) -> None:
        """All there is to do, in slices, between which others have their turn."""
        more = True
        while more:
            async with self._turns:
                more = self._slice(link, time.monotonic() + SLICE_S)
                await asyncio.sleep(0)  # with the turn taken: else every follower works before others are let in

    def _slice(self, link: Link, end: float) -> bool:
        """Work until `end`. Whether there is more."""
        while self._todo or self._arrived or self._receive(link):
            if self._todo:
                self._perform(self._todo.popleft(), link)
            else:
                self._take(*self._arrived.popleft())
            if time.monotonic() >= end:
                return True
        return False

    def _receive(self, link: Link) -> bool:
        connected = link.connected
        live, rows = link.receive()
        if link.connected and not connected:
            self._connected()
        self._arrived.extend((True, frames) for frames in rows)
        self._arrived.extend((False, frames) for frames in live)
        if not self._arrived:
            self._todo.extend(self._sequence.tick(time.monotonic()))
        return bool(self._arrived or self._todo)

    def _connected(self) -> None:
        log.info("following the KV events of endpoint %s", self.endpoint)
        self._met = True
        self._todo.extend(self._sequence.connected(time.monotonic()))
        if self._replay is None:
            self.caught_up.set()
        self._now(Following.STARTING if self._sequence.replaying else Following.FOLLOWING)

    def _take(self, replayed: bool, frames: list[bytes]) -> None:
        self._pause = PAUSES_S[0]
        try:
            number, payload = parse(frames[1:] if replayed else frames)
        except ValueError as error:
            self._refuse(str(error), frames[-1])
            return
        taken = self._sequence.replayed if replayed else self._sequence.live
        self._todo.extend(taken(number, payload, time.monotonic()))

    def _perform(self, action: Action, link: Link) -> None:
        match action:
            case Apply():
                self._apply(action)
            case Ask():
                link.ask(action.start)
                self._arrived = deque((replayed, frames) for replayed, frames in self._arrived if not replayed)
                self._sequence.asked(time.monotonic())
            case Clear():
                self._clear(action.why)
            case Gap():
                self._counters.gaps.inc()
            case Over():
                self._over(action.result)

    def _apply(self, action: Apply) -> None:
        self._done = action
        try:
            batch = self._decoder.decode(action.payload)
        except UndecodableError as error:
            self._refuse(str(error), action.payload)
            return
        self._unread = False
        if self._alarmed and not self._relearn and not self._sequence.replaying:
            self._well()
        if self._relearn and not self._todo and not self._sequence.replaying:
            self._relearn = False
            self._todo.extend(self._sequence.again(action.number, action.payload, time.monotonic()))
            return
        if self._rank is None:
            self._rank = batch.rank
        if batch.rank != self._rank:
            self._counters.misdirected(batch)
            return
        self._counters.count(batch)
        self._filled = True
        self._sink.apply(batch.events)

    def _refuse(self, reason: str, payload: bytes) -> None:
        """A message that cannot be read: what it removed is unknown, so nothing is known."""
        self._counters.undecodable.inc()
        if not self._alarmed and (now := time.monotonic()) >= self._said + ALARM_EVERY_S:
            self._said, self._loud = now, True
            log.error(
                "KV events of endpoint %s cannot be read, so nothing is known of what it holds: %s. They begin with %s",
                *(self.endpoint, reason[:300], payload[:24].hex(" ") or "nothing"),
            )
        self._unread = self._alarmed = True
        self._relearn = self._relearn or (self._replay is not None and not self._sequence.replaying)
        self._empty()
        self._now(Following.UNDECODABLE)

    def _clear(self, why: Why) -> None:
        log.info("what endpoint %s holds is not known any more: %s", self.endpoint, why)
        if why is Why.RESTART:
            self._counters.restarts.inc()
        self._done, self._resumed = None, b""
        self._empty()
        if self._sequence.replaying and not self._unread:
            self._now(Following.STARTING)

    def _over(self, result: Result) -> None:
        self._counters.replayed(result)
        if result is Result.FAILED:
            log.warning("the replay of endpoint %s at %s does not answer, or not whole", self.endpoint, self._replay)
        if result is not Result.CUT:
            self.caught_up.set()
            if not self._unread:
                self._well()

    def _well(self) -> None:
        if self._loud:
            log.info("KV events of endpoint %s can be read again", self.endpoint)
        self._alarmed = self._loud = False
        self._now(Following.FOLLOWING)

    def _unreachable(self, reason: str) -> None:
        if self._reason != reason:
            where = self._address if self._replay is None else f"{self._address} with replay at {self._replay}"
            log.error("KV events of endpoint %s cannot be followed at %s: %s", self.endpoint, where, reason)
        self._reason = reason
        self._pause = PAUSES_S[1]
        self._now(Following.AWAY)

    def _start_over(self) -> None:
        self._pause = PAUSES_S[1]
        self._now(Following.AWAY)
        self._done, self._resumed = None, b""
        self._todo.clear()
        self._sequence.reset()
        self._empty()

    def _empty(self) -> None:
        if self._filled:
            self._sink.clear()
        self._filled = False
        self._decoder.group, self._rank = None, self._own_rank

    def _now(self, state: Following) -> None:
        if state is not self.state:
            self.state = state
            self._sink.follows(state)
