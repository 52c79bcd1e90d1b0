"""The double itself: routes, the ticker that drives the scheduler, and its life."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from tests.doubles.engine import frames
from tests.doubles.engine.answers import StreamAnswer, WholeAnswer
from tests.doubles.engine.cache import PrefixCache
from tests.doubles.engine.errors import BUSY, DEAD, WireError, of_status
from tests.doubles.engine.events import EventPublisher
from tests.doubles.engine.faults import Fault, FaultSet
from tests.doubles.engine.generation import Job, Sequence
from tests.doubles.engine.metrics import Metrics
from tests.doubles.engine.protocol import Connection, Request
from tests.doubles.engine.routes import Routes
from tests.doubles.engine.scheduler import Scheduler
from tests.doubles.engine.settings import Settings
from tests.doubles.engine.validation import parse_body, parse_chat, parse_completion

_NOT_FOUND = b'{"detail":"Not Found"}'
_NOT_ALLOWED = b'{"detail":"Method Not Allowed"}'

Handler = Callable[[Request, Connection, Fault | None], None]


class EngineDouble:
    """An engine on a port of its own. `async with EngineDouble(token_seconds=0.01) as engine: engine.url`."""

    def __init__(
        self, settings: Settings | None = None, *, host: str = "127.0.0.1", port: int = 0, **changes: Any
    ) -> None:
        self.settings = msgspec.structs.replace(settings or Settings(), **changes)
        if self.settings.cache_blocks * self.settings.block_size < self.settings.max_model_len:
            raise ValueError("the cache cannot hold max_model_len tokens: raise cache_blocks or lower max_model_len")
        self.host, self.port = host, port
        self.faults = FaultSet(self.settings.faults, self.settings.seed)
        self.requests: deque[Request] = deque(maxlen=self.settings.request_log)
        self.cache = PrefixCache(
            self.settings.cache_blocks, self.settings.block_size, announce=self.settings.kv_events is not None
        )
        self.metrics = Metrics(
            self.settings.model,
            block_size=self.settings.block_size,
            blocks=self.settings.cache_blocks,
            created=time.time(),
        )
        self.scheduler = Scheduler(self.settings, self.cache, self.metrics)
        self.events: EventPublisher | None = None
        self.draining = False
        self._model = self.settings.model.encode()
        self._by_id: dict[str, list[Sequence]] = {}
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._timer_at = 0.0
        self._ticked = 0.0
        self._idle = asyncio.Event()
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/v1/completions"): self._completion,
            **Routes(self).table(),
        }
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        await self.listen()
        if self.settings.kv_events is not None:
            self.events = EventPublisher(self.settings)
            self.events.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await self.refuse()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._connections):
            connection.transport.abort()
        await asyncio.sleep(0)
        if self.events is not None:
            await self.events.stop()

    async def listen(self) -> None:
        """Accept connections, on the port of before if there was one."""
        if self._server is None:
            self._server = await self._loop.create_server(
                lambda: Connection(self, self._connections), self.host, self.port, backlog=1024
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Stop accepting: new connections are refused, open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None
            await asyncio.sleep(0)

    def refuse_for(self, seconds: float | None) -> None:
        """`refuse`, and `listen` again after `seconds`."""
        task = self._loop.create_task(self._refuse_for(seconds))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _refuse_for(self, seconds: float | None) -> None:
        await self.refuse()
        if seconds is not None:
            await asyncio.sleep(seconds)
            await self.listen()

    def clear_cache(self) -> None:
        """Forget every cached block, unless requests run."""
        self.cache.clear()
        self._publish()

    async def restart(self) -> None:
        """End and start again, as far as cache and events are concerned: running requests are aborted, the cache is
        empty, and the events' sequence begins at 0 at the same addresses."""
        if self.events is None:
            self._forget_cache()
        else:
            await self.events.restart(self._forget_cache)

    def _forget_cache(self) -> None:
        for sequence in [*self.scheduler.running, *self.scheduler.queued]:
            self._stop(sequence)
        self.cache.forget()

    async def drain(self) -> None:
        """vLLM's SIGTERM with --shutdown-timeout: new requests get 500, running ones finish. Returns when none runs."""
        self.draining = True
        deadline = self._loop.time() + self.settings.shutdown_timeout
        while self.scheduler.in_flight and self._loop.time() < deadline:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), deadline - self._loop.time())
            except TimeoutError:
                break
        for sequence in [*self.scheduler.running, *self.scheduler.queued]:
            self._stop(sequence)

    def abort(self, request_ids: list[str]) -> None:
        """End requests by id, as POST /inference/v1/abort_requests does. Unknown ids are no error."""
        for request_id in request_ids:
            for sequence in list(self._by_id.get(request_id, ())):
                self._stop(sequence)

    # protocol.App
    def reading(self, request: Request, connection: Connection) -> None:
        if not self.faults.faults:
            return
        fault = self.faults.pick_reader(urlsplit(request.path).path)
        if fault is not None:
            connection.transport.pause_reading()
            if fault.seconds is not None:
                self._loop.call_later(fault.seconds, connection.transport.resume_reading)

    def handle(self, request: Request, connection: Connection) -> None:
        path = request.path.partition("?")[0]
        own = path.startswith("/_double/")
        if not own:
            self.requests.append(request)
        handler = self._routes.get((request.method, path))
        if handler is None:
            known = next((method for method, route in self._routes if route == path), None)
            if known is None:
                connection.respond(404, _NOT_FOUND)
            else:
                connection.respond(405, _NOT_ALLOWED, extra=b"allow: %b\r\n" % known.encode())
            return
        fault = None
        if self.faults.faults and not own:
            fault = self._pick(request, path)
            if fault is not None and self._before_headers(fault, request, connection, handler):
                return
        self._run(handler, request, connection, fault)

    def _run(self, handler: Handler, request: Request, connection: Connection, fault: Fault | None) -> None:
        if connection.gone:
            return
        try:
            handler(request, connection, fault)
        except WireError as error:
            connection.respond(error.status, error.body())

    # Faults before an answer begins
    def _pick(self, request: Request, path: str) -> Fault | None:
        stream, model = None, None
        if any(fault.needs_body() for fault in self.faults.faults):
            try:
                body = msgspec.json.decode(request.body)
                stream, model = bool(body.get("stream")), body.get("model")
            except (msgspec.DecodeError, AttributeError):
                pass
        return self.faults.pick(path, stream=stream, model=model)

    def _before_headers(self, fault: Fault, request: Request, connection: Connection, handler: Handler) -> bool:
        """Whether the fault took the place of the answer."""
        match fault.kind:
            case "status":
                error = of_status(fault.status, fault.message)
                extra = b"retry-after: %b\r\n" % fault.retry_after.encode() if fault.retry_after else b""
                connection.respond(error.status, error.body(), extra=extra)
            case "close_before_headers":
                connection.cut(rst=fault.rst)
            case "hang_before_headers":
                if fault.seconds is not None:
                    self._loop.call_later(fault.seconds, self._run, handler, request, connection, None)
            case "close_after_headers":
                connection.begin_stream()
                self._loop.call_later(0.02, lambda: connection.cut(rst=fault.rst))
            case _:
                return False
        return True

    # Generation
    def _chat(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        body = parse_body(request.body, request.headers.get("content-type", ""))
        self._submit(parse_chat(body, self.settings, request.request_id(body)), connection, fault)

    def _completion(self, request: Request, connection: Connection, fault: Fault | None) -> None:
        body = parse_body(request.body, request.headers.get("content-type", ""))
        self._submit(parse_completion(body, self.settings, request.request_id(body)), connection, fault)

    def _submit(self, job: Job, connection: Connection, fault: Fault | None) -> None:
        if self.draining:
            raise of_status(500, DEAD)
        limit = self.settings.max_queued
        if limit is not None and self.scheduler.in_flight + job.n > limit:
            self.metrics.rejected += 1
            raise of_status(503, BUSY)
        sequences = job.sequences(self.settings.answer_tokens)
        created = int(time.time())
        answer: StreamAnswer | WholeAnswer
        if job.stream:
            made = frames.StreamFrames(job, self._model, created, details=self.settings.prompt_tokens_details)
            answer = StreamAnswer(connection, job, sequences, self._drop, made)
            answer.begin(fault)
        else:
            answer = WholeAnswer(connection, job, sequences, self._drop)
            answer.fault, answer.created, answer.model = fault, created, self.settings.model
            answer.details = self.settings.prompt_tokens_details
        connection.answer = answer
        now = self._loop.time()
        for sequence in sequences:
            sequence.owner = answer
            self._by_id.setdefault(_abort_id(sequence), []).append(sequence)
            self.scheduler.add(sequence, now)
        self.scheduler.admit(now)
        if not job.stream and not self.settings.token_seconds and not self.settings.prefill_rate:
            for sequence in sequences:
                if sequence in self.scheduler.running:
                    self.scheduler.run_through(sequence, now, self._token)
            self.scheduler.advance(now, self._token)
        self._publish()
        self._arm()

    def _token(self, sequence: Sequence, text: bytes) -> None:
        if sequence.finish_reason is not None:
            self._forget(sequence)
        sequence.owner.token(sequence, text)

    def _stop(self, sequence: Sequence) -> None:
        """Abort one sequence and tell its client."""
        if self.scheduler.drop(sequence):
            self._forget(sequence)
            sequence.owner.aborted(sequence, b"")
            self._freed()

    def _drop(self, sequences: list[Sequence]) -> None:
        """Abort sequences whose client has left."""
        for sequence in sequences:
            if self.scheduler.drop(sequence):
                self._forget(sequence)
        self._freed()

    def _freed(self) -> None:
        self.scheduler.admit(self._loop.time())
        self._publish()
        self._arm()

    def _forget(self, sequence: Sequence) -> None:
        key = _abort_id(sequence)
        left = self._by_id[key]
        left.remove(sequence)
        if not left:
            del self._by_id[key]
        if not self.scheduler.in_flight:
            self._idle.set()

    # The ticker
    def _arm(self) -> None:
        due = self.scheduler.next_due()
        if due is None:
            return
        if self.settings.token_seconds:
            due = max(due, self._ticked + self.settings.tick_seconds)
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        late = due <= self._loop.time()
        self._timer = self._loop.call_soon(self._tick) if late else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._ticked = now = self._loop.time()
        self.scheduler.advance(now, self._token)
        self._publish()
        self._arm()

    def _publish(self) -> None:
        if self.cache.events:
            events, self.cache.events = self.cache.events, []
            if self.events is not None:
                self.events.publish(events)


def _abort_id(sequence: Sequence) -> str:
    """The id that an abort names: a chat's own, or one for each prompt of a completion."""
    return sequence.job.id if sequence.job.chat else f"{sequence.job.id}-{sequence.number}"
