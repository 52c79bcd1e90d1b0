"""One attempt: dispatched to one endpoint, relayed, and accounted for however it ends."""

import asyncio
import logging
import time

from forebay.metering import Spool, Status, TerminatedBy
from forebay.platform.config.model import Timeouts
from forebay.platform.errors import ApiError
from forebay.platform.relay import answer, upstream_errors
from forebay.platform.relay.accounting import Account, Counted, count
from forebay.platform.relay.call import Call
from forebay.platform.relay.chain import Chain
from forebay.platform.relay.client import Client
from forebay.platform.relay.frames import StreamError, StreamTransform
from forebay.platform.relay.halt import halt
from forebay.platform.relay.metrics import ATTEMPTS_FAILED, INTERRUPTED, first_byte
from forebay.platform.relay.patience import Patience
from forebay.platform.relay.resumed import Diverged, ResumedTransform
from forebay.router import Connection, Endpoint, Outcome, Placed, Router, UpstreamError, Usage, Wake

log = logging.getLogger(__name__)

RACE_S = 1.0  # a kept-alive connection that ends later than this was in use: the engine may be at work
MOST_TOKENS = 1 << 31  # in one request, that are believed
MAX_ANSWER = 256 << 20  # bytes of a whole answer (embeddings of many inputs are the largest)
_RETURNS = {"tool_calls": True, "function_call": True, "stop": False, "length": False}  # by finish reason


class TryElsewhere(Exception):  # noqa: N818 - not an error
    """This attempt failed before the tenant saw anything of it. `error` is what to answer if nobody else can;
    `suspicion` is held against the endpoint if somebody else can: until then the request itself may be at fault.
    `moved`: it did not fail, but was taken away from its engine."""

    def __init__(self, error: ApiError, suspicion: str = "", *, moved: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.suspicion = suspicion
        self.moved = moved


class CutOff(TryElsewhere):
    """It was cut after the tenant had seen a part of the answer. `Chain` knows that part, if it may go on."""


class _Left(Exception):  # noqa: N818 - not an error
    """The tenant left; the engine has been told and has said its last."""


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
        quiet_since: float,
        router: Router,
        spool: Spool,
        timeouts: Timeouts,
        checkpoint_every: float,
    ) -> None:
        self._call = call
        self._client = client
        self._endpoint = endpoint
        self._router = router
        self._booking: int | None = placed.booking
        self._checkpoint_every = checkpoint_every
        self._loop = asyncio.get_running_loop()
        self._patience = Patience(
            timeouts, stream=call.inference.stream, now=self._loop.time(), quiet_since=quiet_since
        )
        self._view = call.view(endpoint)
        self._chain = chain
        self._continues = chain.carried is not None
        seam, carried = chain.seam, chain.carried
        self._stream = StreamTransform(self._view, seam)
        if seam is not None and carried is not None:
            self._stream = ResumedTransform(self._view, seam, carried)
        self._account = Account(spool, call.attempt(number, endpoint, time.time()))
        self._connection: Connection | None = None
        self._first_byte_at = 0.0
        self._held = b""
        self._whole: list[bytes] = []
        self._not_run = False  # the engine refused the request
        self._taken: ApiError | None = None  # away from this engine: what to say if no other takes it

    @property
    def endpoint(self) -> Endpoint:
        return self._endpoint

    @property
    def call(self) -> Call:
        return self._call

    @property
    def origin(self) -> Call:
        """The request as it came, where this attempt continues its answer."""
        return self._call if self._chain.origin is None else self._chain.origin

    @property
    def chain(self) -> Chain:
        return self._chain

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
                await (self._relay_stream() if self._call.inference.stream else self._relay_whole())
            except UpstreamError as error:
                await self._broken(error)
            except Diverged as error:
                log.warning("request %s at %s: %s", self._call.request_id, self._endpoint.name, error)
                await self._fail(upstream_errors.lost("diverged"), retry=False)
            except StreamError as error:
                log.warning("request %s at %s: %s", self._call.request_id, self._endpoint.name, error)
                if self._patience.begun:
                    self._blame(str(error))
                await self._fail(upstream_errors.broken(), retry=True, suspicion=str(error))
            except _Left:
                pass
            except asyncio.CancelledError:
                if not self._client.stalled or self._connection is None or self._account.closed:
                    raise
                _uncancel()
                await self._abandon(self._connection)
        finally:
            self._client.on_left = None
            self._ended(Outcome())
            if self._connection is not None:
                self._endpoint.client.release(self._connection)
            if not self._account.closed:  # cancelled, or a fault of our own: nothing is billed, nothing is forgotten
                INTERRUPTED.inc()
                await asyncio.shield(
                    self._account.close(Status.FAILED, TerminatedBy.FRONT_DOOR, self._counted(), error="interrupted")
                )

    # -- towards the engine

    async def _dispatch(self) -> None:
        """Send the request and wait for an answer's head, once more on a fresh connection after a keep-alive race."""
        head, body = self._call.to_engine(self._endpoint)
        raced = False
        while True:
            connection = self._connection = await self._endpoint.client.acquire(fresh=raced)
            if self._client.left:
                await self._cancelled(Counted.nothing(), None)
                raise _Left
            if self._taken is not None:
                await self._move(self._taken)
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
                self._endpoint.client.release(connection)
                self._connection = None
        if connection.status != 200:
            await self._refused(connection)

    async def _refused(self, connection: Connection) -> None:
        body = await self._read_whole(connection, limit=1 << 20)
        refusal = upstream_errors.for_status(connection.status, body, self._call)
        suspicion = f"answered {connection.status}" if refusal.endpoint_fault else ""
        if not suspicion:
            self._router.answered(self._call.pool.name, self._endpoint.name)
            self._not_run = True
        await self._fail(refusal.error, retry=refusal.retry, suspicion=suspicion)
        raise _Left

    # -- towards the tenant

    async def _relay_stream(self) -> None:
        connection, stream, client = self._connection, self._stream, self._client
        assert connection is not None
        next_checkpoint = self._loop.time() + self._checkpoint_every
        while True:
            data = await connection.read()
            if not isinstance(data, bytes):
                await self._woken(data)
                continue
            if not data or stream.done:
                break
            out = stream.feed(data)
            if out and not self._patience.begun:
                out = await self._begin(out)
            if stream.seam is not None and self._patience.begun:
                stream.seam.shown()
            if out:
                self._patience.written_at = connection.last_activity
                await client.write(out)
            if stream.done:
                break
            if connection.last_activity >= next_checkpoint:
                next_checkpoint = connection.last_activity + self._checkpoint_every
                self._account.checkpoint(self._counted())
        if not stream.complete:
            raise UpstreamError("closed", "the engine ended the stream before its answer was complete")
        await self._swallow_end(connection)
        await self._end_stream()

    async def _end_stream(self) -> None:
        stream, client = self._stream, self._client
        if not self._patience.begun:
            await self._first_byte()
            await client.write(self._held)
        if closing := stream.closing():
            await client.write(closing)
        await self._complete(stream.usage(), stream.finish_reason)
        await client.end_stream()

    async def _begin(self, out: bytes) -> bytes:
        """What the tenant may see. An engine that is stopping accepts a request and aborts it after its role chunk:
        until a token was generated, the request can still move."""
        self._held += out
        if self._stream.nothing_yet:
            return b""
        await self._first_byte()
        return self._held

    async def _swallow_end(self, connection: Connection) -> None:
        """Read past `[DONE]` to the end of the message, which is usually there already, to keep the connection."""
        connection.wake_at = self._loop.time()
        while not connection.complete and isinstance(data := await connection.read(), bytes) and data:
            pass

    async def _relay_whole(self) -> None:
        assert self._connection is not None
        body = await self._read_whole(self._connection, limit=MAX_ANSWER)
        whole = answer.transform(body, self._view)
        if whole.finish_reason == "abort":
            raise UpstreamError("closed", "the engine aborted the request")
        await self._first_byte(stream=False)
        await self._complete(whole.usage, whole.finish_reason)
        await self._client.answer(whole.body)

    async def _read_whole(self, connection: Connection, *, limit: int) -> bytes:
        size = 0
        while True:
            data = await connection.read()
            if not isinstance(data, bytes):
                await self._woken(data)
                continue
            if not data:
                return b"".join(self._whole)
            self._whole.append(data)
            size += len(data)
            if size > limit:
                raise StreamError(f"an answer of more than {limit} bytes")

    async def _first_byte(self, *, stream: bool = True) -> None:
        """The engine has begun to answer: from here on the request stays where it is."""
        self._patience.begun = True
        self._first_byte_at = self._loop.time()
        if self._booking is not None:
            self._router.begun(self._booking)
        first_byte(self._call.model).observe(self._first_byte_at - self._patience.sent_at)
        await self._account.opened()
        if stream:
            self._arm()  # the bound on silence is another one now
            await self._client.start_stream()

    async def _complete(self, usage: Usage | None, finish_reason: str | None) -> None:
        self._ended(self._outcome(usage, finish_reason))
        await self._account.close(
            Status.COMPLETED,
            TerminatedBy.ENGINE,
            self._count(usage),
            finish_reason=finish_reason,
            continues=self._continues,
        )
        await self._chain.settle(usage)

    async def _broken(self, error: UpstreamError) -> None:
        """The exchange failed."""
        begun = self._patience.begun
        if begun and error.kind != "timeout" and self._stream.complete:
            await self._end_stream()  # the answer is whole; what was lost is how the engine counted it
            return
        if error.kind in ("refused", "connect"):
            self._failed(str(error), at_once=error.kind == "refused")
        elif begun or error.kind == "timeout":  # nobody else will answer it
            self._blame(str(error))
        hangs = error.kind == "timeout" and begun and not self._patience.spent(self._loop.time())
        await self._fail(
            upstream_errors.for_exception(error), retry=hangs or error.kind != "timeout", suspicion=str(error)
        )

    async def _fail(self, error: ApiError, *, retry: bool, suspicion: str = "") -> None:
        """Account for the failure, then say what is to happen to the request. Returns only if the tenant has left."""
        by = TerminatedBy.DEADLINE if error.status == 504 else TerminatedBy.ENGINE
        if self._client.left:
            await self._cancelled(self._counted(aborted=True), self._stream.usage())
            return
        if error.status >= 500:  # else the request is at fault
            ATTEMPTS_FAILED.labels(endpoint=self._endpoint.name, code=error.code).inc()
        if not (retry and self._hold(error)):
            await self._account.close(Status.FAILED, by, self._counted(), error=error.code)
            self._forget()
        if retry:
            raise CutOff(error, suspicion) if self._patience.begun else TryElsewhere(error, suspicion)
        raise error

    def _hold(self, error: ApiError) -> bool:
        """Whether this is an answer of which the tenant has seen a part, and that may go on elsewhere."""
        seam = self._chain.seam
        if seam is None or not self._patience.begun:
            return False
        seam.forget()
        self._chain.hold(
            self._account, self._counted(), self._stream.usage(), self._stream.identity(), error.code
        )
        return True

    def _forget(self) -> None:
        if self._chain.seam is not None:
            self._chain.seam.forget()

    async def _cancelled(self, counted: Counted, usage: Usage | None, finish_reason: str | None = None) -> None:
        """The tenant left."""
        await self._account.close(
            Status.CANCELLED,
            TerminatedBy.CLIENT,
            counted,
            finish_reason=finish_reason,
            continues=self._continues,
        )
        await self._chain.settle(usage)

    # -- taken away

    def take(self, error: ApiError) -> None:
        """Let go of this engine: the answer goes on elsewhere, or ends in `error`."""
        if self._booking is not None and self._taken is None:
            self._taken = error
            self._interrupt()

    async def _move(self, error: ApiError) -> None:
        if not self._hold(error):
            await self._account.close(Status.FAILED, TerminatedBy.FRONT_DOOR, self._counted(), error=error.code)
            self._forget()
        raise CutOff(error, moved=True) if self._patience.begun else TryElsewhere(error, moved=True)

    # -- waits: heartbeats, deadlines, a tenant that leaves

    def _arm(self) -> None:
        assert self._connection is not None
        self._connection.wake_at = max(self._patience.wake_at(self._connection.last_activity), self._loop.time())

    async def _woken(self, wake: object) -> None:
        """Raises `_Left`, or `UpstreamError("timeout")` when a deadline has passed."""
        connection = self._connection
        assert connection is not None
        if wake is Wake.INTERRUPT:
            if not self._client.left and self._taken is not None:
                self._forget()
                await self._halt(connection)
            if self._client.left or self._taken is None:
                await self._abandon(connection)
                raise _Left
            await self._move(self._taken)
        now = self._loop.time()
        if self._patience.overdue(now, connection.last_activity):
            await self._halt(connection)
            raise UpstreamError("timeout", "the engine did not answer in time")
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
        usage = self._stream.usage() if self._call.inference.stream else self._whole_usage()
        await self._cancelled(self._counted(aborted=True), usage, finish_reason="abort")

    async def _halt(self, connection: Connection) -> None:
        hear = self._stream.feed if self._call.inference.stream else self._whole.append
        await halt(self._endpoint, connection, self._call.abort_order(self._endpoint), hear)

    # -- what was used

    def _counted(self, *, aborted: bool = False) -> Counted:
        usage = self._stream.usage() if self._call.inference.stream else self._whole_usage()
        tells = self._call.inference.stream and self._endpoint.adapter.continuous_usage  # of its first token already
        if usage is None and (tells or self._not_run):
            usage = Usage(prompt_tokens=0, completion_tokens=0)
        return self._count(usage, aborted=aborted)

    def _whole_usage(self) -> Usage | None:
        """Of an answer that was not relayed because the tenant left."""
        if not self._whole or self._connection is None or self._connection.status != 200:
            return None
        try:
            return answer.transform(b"".join(self._whole), self._view).usage
        except StreamError:
            return None

    def _count(self, usage: Usage | None, *, aborted: bool = False) -> Counted:
        adapter = self._endpoint.adapter
        return count(
            usage,
            n=self._call.inference.n,
            prompts=self._call.inference.prompts,
            per_choice=adapter.prompt_counted_per_choice,
            aborted=aborted,
        )

    # -- towards the router

    def _failed(self, reason: str, *, at_once: bool) -> None:
        if self._call.pool.has(self._endpoint):
            self._router.failed(self._call.pool.name, self._endpoint.name, reason, at_once=at_once)

    def _blame(self, reason: str) -> None:
        """Not for a request that took all of its time, which is its own fault, nor where the tenant has left."""
        if not self._client.left and not self._patience.spent(self._loop.time()):
            self._failed(reason, at_once=False)

    def _ended(self, outcome: Outcome) -> None:
        """The engine is done with the request. Only the first time counts."""
        booking, self._booking = self._booking, None
        if booking is not None:
            self._router.ended(booking, outcome)

    def _outcome(self, usage: Usage | None, finish_reason: str | None) -> Outcome:
        """Of an answer that is complete. Of several choices or prompts an engine names the cached tokens of one, and
        nobody knows which of them the agent goes on with."""
        inference, usage = self._call.inference, usage or Usage()
        one = inference.n * inference.prompts == 1
        seen = inference.stream
        return Outcome(
            prompt_tokens=_plausible(usage.prompt_tokens) if one else None,
            cached=_plausible(usage.cached) if one else None,
            output=_plausible(usage.completion_tokens),
            first_token_s=self._first_byte_at - self._patience.sent_at if seen else None,
            decode_s=self._loop.time() - self._first_byte_at if seen and one else None,
            returns=_RETURNS.get(finish_reason or "") if one else None,
        )


def _plausible(tokens: int | None) -> int | None:
    """An engine may say any number."""
    return tokens if tokens is not None and 0 <= tokens < MOST_TOKENS else None


def _uncancel() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
