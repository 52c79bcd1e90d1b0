"""One attempt: dispatched to one endpoint and relayed, to whatever end."""

import asyncio
import logging
import time

from forebay.metering import Spool
from forebay.platform.errors import ApiError
from forebay.platform.relay import answer, objectives, upstream_errors
from forebay.platform.relay.accounting import Account
from forebay.platform.relay.call import Call
from forebay.platform.relay.chain import Chain
from forebay.platform.relay.client import Client
from forebay.platform.relay.ending import Ending
from forebay.platform.relay.frames import StreamError, StreamTransform, View
from forebay.platform.relay.halt import halt
from forebay.platform.relay.metrics import first_byte
from forebay.platform.relay.nothing import nothing
from forebay.platform.relay.patience import Clock, Patience
from forebay.platform.relay.resumed import Diverged, ResumedTransform
from forebay.platform.relay.tally import Tally
from forebay.platform.relay.told import Told
from forebay.platform.relay.untold import Untold
from forebay.platform.tiers import Terms
from forebay.router import Connection, Endpoint, Outcome, Placed, Router, UpstreamError, Usage, Wake

log = logging.getLogger(__name__)

RACE_S = 1.0  # a kept-alive connection that ends later than this was in use: the engine may be at work
MAX_ANSWER = 256 << 20  # bytes of a whole answer (embeddings of many inputs are the largest)


class _Left(Exception):  # noqa: N818 - not an error
    """The tenant left; the engine has been told and has said its last."""


class _OutOfTime(Exception):  # noqa: N818 - not an engine's
    """The request has had all the time that it may take, by the bound that is named."""


class Exchange:
    """`run` relays one attempt to its end. Raises `TryElsewhere`, or `ApiError` for an answer that is final."""

    def __init__(
        self,
        call: Call,
        client: Client,
        endpoint: Endpoint,
        placed: Placed,
        *,
        number: int,
        chain: Chain,
        clock: Clock,
        quiet_since: float,
        router: Router,
        spool: Spool,
        untold: Untold,
        terms: Terms,
        checkpoint_every: float,
    ) -> None:
        self.call = call
        self.endpoint = endpoint
        self.chain = chain
        self.hung = False  # the engine was silent for too long
        self._client = client
        self._terms = terms
        self._checkpoint_every = checkpoint_every
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._first_byte_at = 0.0
        self._held = b""
        self._checkpoint_at = 0.0
        self._taken: ApiError | None = None  # away from this engine: what to say if no other takes it
        self._told = Told(router, call.pool, endpoint, placed.booking)
        self._patience = Patience(
            terms.timeouts, clock, stream=call.inference.stream, now=self._loop.time(), quiet_since=quiet_since
        )
        client.bound(clock.left(terms.timeouts, self._patience.sent_at))
        self._view = call.view(endpoint, terms.name)
        self._stream = _transform(self._view, chain)
        self._tally = Tally(call, client, endpoint, self._stream, self._view)
        attempt = call.attempt(number, endpoint, terms, time.time())
        self._account = Account(spool, attempt, call.permit, continues=chain.carried is not None)
        self._ending = Ending(
            call, client, endpoint, terms, chain, untold,
            self._account, self._told, self._tally, self._stream, self._patience,
        )  # fmt: skip

    @property
    def begun(self) -> bool:
        """Whether the tenant has seen something of this attempt."""
        return self._patience.begun

    @property
    def written_at(self) -> float:
        """When the tenant last got something, on the event loop's clock."""
        return self._patience.written_at

    async def run(self) -> None:
        self._client.on_left = self._interrupt
        try:
            try:
                await self._dispatch()
                await (self._relay_stream() if self.call.inference.stream else self._relay_whole())
            except UpstreamError as error:
                await self._broken(error)
            except _OutOfTime as error:
                await self._ending.fail(upstream_errors.silent(str(error)), retry=False)
            except Diverged as error:
                log.warning("request %s at %s: %s", self.call.request_id, self.endpoint.name, error)
                await self._ending.fail(upstream_errors.lost("diverged"), retry=False)
            except StreamError as error:
                log.warning("request %s at %s: %s", self.call.request_id, self.endpoint.name, error)
                if self._patience.begun:
                    self._ending.blame(str(error))
                await self._ending.fail(upstream_errors.broken(), retry=True, suspicion=str(error))
            except _Left:
                pass
            except asyncio.CancelledError:
                if not self._client.stalled or self._connection is None or self._account.closed:
                    raise
                asyncio.current_task().uncancel()  # type: ignore[union-attr]  # there is one: it was cancelled
                await self._abandon(self._connection)
        finally:
            self._client.on_left = self._client.on_full = None
            self._patience.end(self._loop.time())
            self._told.ended(Outcome())
            if self._connection is not None:
                self.endpoint.client.release(self._connection)
            if not self._account.closed:
                await asyncio.shield(self._ending.interrupted())

    # -- towards the engine

    async def _dispatch(self) -> None:
        """Send the request and wait for an answer's head, once more on a fresh connection after a keep-alive race."""
        head, body = self.call.to_engine(self.endpoint, self._terms.rank)
        raced = False
        while True:
            connection = self._connection = await self.endpoint.client.acquire(fresh=raced)
            if self._client.left:
                self._tally.not_run = True
                await self._ending.left()
                raise _Left
            if self._taken is not None:
                await self._ending.move(self._taken)
            began = self._loop.time()
            try:
                connection.send(head, body)
                self._arm()
                while (wake := await connection.head()) is not None:
                    await self._woken(wake)
                break
            except UpstreamError as error:
                raced = error.reused and self._loop.time() - began < RACE_S
                if not raced:
                    raise
                self.endpoint.client.release(connection)
                self._connection = None
        if connection.status != 200:
            await self._refused(connection)

    async def _refused(self, connection: Connection) -> None:
        body = await self._read_whole(connection, limit=1 << 20)
        refusal = upstream_errors.for_status(connection.status, body, self.call)
        suspicion = f"answered {connection.status}" if refusal.endpoint_fault else ""
        if not suspicion:
            self._told.answered()
            self._tally.not_run = True
        await self._ending.fail(refusal.error, retry=refusal.retry, suspicion=suspicion)
        raise _Left

    # -- towards the tenant

    async def _relay_stream(self) -> None:
        connection, stream = self._connection, self._stream
        assert connection is not None
        self._checkpoint_at = self._loop.time() + self._checkpoint_every
        self._client.on_full = connection.stop
        while not stream.done:
            heard = await connection.flow(self._pass)
            if heard is None:
                await self._go_on(connection)
            elif heard:
                await self._woken(heard)
            else:
                break
        if not stream.complete:
            raise UpstreamError("closed", "the engine ended the stream before its answer was complete")
        await self._swallow_end(connection)
        await self._end_stream()

    def _pass(self, data: bytes) -> bool:
        """To the tenant, as soon as it is there. False: `_go_on` is to be awaited before there is more. What the tenant
        may see: an engine that is stopping accepts a request and aborts it after its role chunk, so until a token was
        generated, the request can still move."""
        stream, connection = self._stream, self._connection
        assert connection is not None
        out = stream.feed(data)
        if not self._patience.begun:
            self._held += out
            return not stream.done and (not out or stream.nothing_yet)
        if self._client.left:  # of many who leave at once, each in its turn is abandoned: until then it has to wait
            connection.rest()
            return not stream.done
        if stream.seam is not None:
            stream.seam.shown()
        if out:
            self._patience.written_at = connection.last_activity
            self._client.put(out)
        if connection.last_activity >= self._checkpoint_at:
            self._checkpoint_at = connection.last_activity + self._checkpoint_every
            self._account.checkpoint(self._tally.counted())
        return not stream.done

    async def _go_on(self, connection: Connection) -> None:
        """What `_pass` could not do by itself."""
        stream, client = self._stream, self._client
        if self._patience.begun:
            await client.written()
        elif self._held and not stream.nothing_yet:
            await self._first_byte()
            if stream.seam is not None:
                stream.seam.shown()
            self._patience.written_at = connection.last_activity
            await client.write(self._held)

    async def _end_stream(self) -> None:
        stream, client = self._stream, self._client
        if not self._patience.begun:
            await self._first_byte()
            await client.write(self._held)
        if closing := stream.closing():
            await client.write(closing)
        await self._complete(stream.usage(), stream.finish_reason)
        await client.end_stream()

    async def _swallow_end(self, connection: Connection) -> None:
        """Read past `[DONE]` to the end of the message, which is usually there already, to keep the connection."""
        connection.wake_at = self._loop.time()
        while not connection.complete and isinstance(data := await connection.read(), bytes) and data:
            pass

    async def _relay_whole(self) -> None:
        assert self._connection is not None
        body = await self._read_whole(self._connection, limit=MAX_ANSWER)
        self._tally.whole.clear()
        whole = answer.transform(body, self._view)
        del body
        if whole.finish_reason == "abort":
            raise UpstreamError("closed", "the engine aborted the request")
        await self._first_byte(stream=False)
        await self._complete(whole.usage, whole.finish_reason, whole.body)
        await self._client.answer(whole.body)

    async def _read_whole(self, connection: Connection, *, limit: int) -> bytes:
        size = 0
        declared = connection.headers.get(b"content-length", b"")
        if declared.isdigit():  # at once, before any of it: of many that do not fit together some do
            await self._keep(min(int(declared), limit))
        while True:
            data = await connection.read()
            if not isinstance(data, bytes):
                await self._woken(data)
                continue
            if not data:
                return b"".join(self._tally.whole)
            size += len(data)
            await self._keep(size)
            self._tally.whole.append(data)
            if size > limit:
                raise StreamError(f"an answer of more than {limit} bytes")

    async def _keep(self, size: int) -> None:
        """A whole answer is held until the tenant has read it."""
        try:
            self._tally.keep(size)
        except ApiError as error:
            await self._ending.fail(error, retry=False)
            raise _Left from error

    async def _first_byte(self, *, stream: bool = True) -> None:
        """The engine has begun to answer: from here on the request stays where it is."""
        assert self._connection is not None
        self._patience.begin()
        self._first_byte_at = self._connection.last_activity
        self._told.begun()
        first_byte(self.call.model).observe(self._first_byte_at - self._patience.sent_at)
        self._account.begun()
        if stream:  # of a whole answer the tenant sees nothing before its terminal record is durable
            await self._account.opened()
            if self.chain.carried is None:
                objectives.first_token(self._terms, self._client.age_s)
            call, shown = self.call, self._stream  # without this exchange, which knows the client
            self._client.nothing = lambda: nothing(call, shown.identity())
            self._arm()  # the bound on silence is another one now
            await self._client.start_stream()

    async def _complete(self, usage: Usage | None, finish_reason: str | None, body: bytes = b"") -> None:
        """An engine is measured by when its bytes came: not by how fast the tenant reads, nor at all once it had to
        wait for that."""
        connection = self._connection
        assert connection is not None
        decode_s = None if connection.held_up else max(0.0, connection.last_activity - self._first_byte_at)
        first_s = self._first_byte_at - self._patience.sent_at
        await self._ending.complete(usage, finish_reason, first_token_s=first_s, decode_s=decode_s, body=body)

    async def _broken(self, error: UpstreamError) -> None:
        """The exchange failed."""
        begun, hangs = self._patience.begun, error.kind == "timeout"
        if begun and not hangs and self._stream.complete:
            await self._end_stream()  # the answer is whole; what was lost is how the engine counted it
            return
        if error.kind in ("refused", "connect"):
            self._told.failed(str(error), at_once=error.kind == "refused")
        elif begun or hangs:  # nobody else will answer it
            self._ending.blame(str(error))
        self.hung = hangs
        told = upstream_errors.silent("" if begun else "first_byte") if hangs else upstream_errors.broken()
        await self._ending.fail(told, retry=begun or not hangs, suspicion=str(error))

    # -- taken away

    def take(self, error: ApiError) -> None:
        """Let go of this engine: the answer goes on elsewhere, or ends in `error`."""
        if self._told.booked and self._taken is None:
            self._taken = error
            self._interrupt()

    # -- waits: heartbeats, deadlines, a tenant that leaves

    def _arm(self) -> None:
        assert self._connection is not None
        self._connection.wake_at = max(self._patience.wake_at(self._connection.last_activity), self._loop.time())

    async def _woken(self, wake: object) -> None:
        """Raises `_Left`; `UpstreamError("timeout")` or `_OutOfTime` when a deadline has passed."""
        connection = self._connection
        assert connection is not None
        if wake is Wake.INTERRUPT:
            if not self._client.left and self._taken is not None:
                self._ending.forget()
                await self._halt(connection)
            if self._client.left or self._taken is None:
                await self._abandon(connection)
                raise _Left
            await self._ending.move(self._taken)
        now, heard = self._loop.time(), connection.last_activity
        if self._patience.hangs(now, heard):
            await self._halt(connection)
            raise UpstreamError("timeout", "the engine did not answer in time")
        if spent := self._patience.spent(now, heard):
            await self._halt(connection)
            raise _OutOfTime(spent)
        if self._patience.heartbeat_due(now):
            self._patience.written_at = now
            await self._client.heartbeat()
        self._arm()

    def _interrupt(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    async def _abandon(self, connection: Connection) -> None:
        """The tenant left: stop the engine, hear what it had used, and account for it."""
        await self._halt(connection)
        await self._ending.left("abort")

    async def _halt(self, connection: Connection) -> None:
        hear = self._stream.feed if self.call.inference.stream else self._tally.hear
        self._stream.seam = None  # nobody is shown what comes now, and it may be much
        await halt(self.endpoint, connection, self.call.abort_order(self.endpoint), hear)


def _transform(view: View, chain: Chain) -> StreamTransform:
    if chain.seam is not None and chain.carried is not None:
        return ResumedTransform(view, chain.seam, chain.carried)
    return StreamTransform(view, chain.seam)
