"""The engines behind a pool: which are up, what they can do, and what is booked on them."""

import asyncio
import logging
import time
from collections.abc import Collection
from enum import StrEnum

import msgspec
from msgspec import Struct
from prometheus_client import Gauge

from forebay.router.adapters import Adapter, adapter
from forebay.router.placement import Booking, Load, Work, pick
from forebay.router.upstream import Client, Connection, UpstreamError

log = logging.getLogger(__name__)

PROBE_EVERY_S = 2.0
PROBE_TIMEOUT_S = 5.0  # SGLang's /health computes a token and takes a second even when idle
FAILURES_TO_DOWN = 2
_UP = Gauge("forebay_endpoint_up", "1 while an endpoint is taken to be able to answer", ["pool", "endpoint"])
_IN_FLIGHT = Gauge("forebay_endpoint_in_flight", "Requests at an endpoint", ["pool", "endpoint"])
_BOOKED = Gauge("forebay_endpoint_booked_seconds", "Predicted seconds of work at an endpoint", ["pool", "endpoint"])
_RATE = Gauge("forebay_endpoint_seconds_per_token", "Learnt rates", ["pool", "endpoint", "phase"])


class Health(StrEnum):
    UNKNOWN = "unknown"  # not probed yet; may be tried
    UP = "up"
    DOWN = "down"
    MISCONFIGURED = "misconfigured"  # answers, but does not serve the model


class EndpointSpec(Struct, frozen=True):
    name: str
    url: str
    engine: str
    served_model: str
    api_key: str | None
    priority_scheduling: bool


class Endpoint:
    """One engine server. `can_abort` is None until the engine has shown whether it stops requests by id."""

    def __init__(self, pool: str, spec: EndpointSpec, *, connect_timeout: float) -> None:
        self.spec = spec
        self.name = spec.name
        self.adapter: Adapter = adapter(spec.engine)
        self.client = Client(spec.url, connect_timeout=connect_timeout)
        self.load = Load()
        self.health = Health.UNKNOWN
        self.reason = "not probed yet"
        self.max_model_len: int | None = None
        self.can_abort: bool | None = None
        self.failures = 0
        labels = {"pool": pool, "endpoint": spec.name}
        _UP.labels(**labels).set_function(lambda: float(self.available))
        _IN_FLIGHT.labels(**labels).set_function(lambda: self.load.in_flight)
        _BOOKED.labels(**labels).set_function(lambda: self.load.booked_s)
        _RATE.labels(**labels, phase="prefill").set_function(lambda: self.load.prefill_s)
        _RATE.labels(**labels, phase="decode").set_function(lambda: self.load.decode_s)

    def __repr__(self) -> str:
        return (
            f"<Endpoint {self.name} {self.health} [{self.load.in_flight} in flight, {self.load.booked_s:.2f} s booked]>"
        )

    @property
    def available(self) -> bool:
        return self.health in (Health.UNKNOWN, Health.UP)

    def failed(self, reason: str, *, at_once: bool = False) -> None:
        """An exchange failed for the endpoint's fault. `at_once`: it is certainly gone (connection refused)."""
        self.failures += 1
        if self.health is not Health.DOWN and (at_once or self.failures >= FAILURES_TO_DOWN):
            log.warning("endpoint %s is down: %s", self.name, reason)
            self.health, self.reason = Health.DOWN, reason

    def answered(self) -> None:
        self.failures = 0

    def head(self, method: bytes, path: bytes, headers: bytes, length: int) -> bytes:
        """The head of a request to this engine; `headers` are complete lines."""
        auth = f"authorization: Bearer {self.spec.api_key}\r\n".encode() if self.spec.api_key else b""
        return (
            method
            + b" "
            + self.client.base_path
            + path
            + b" HTTP/1.1\r\nhost: "
            + self.client.host_header
            + b"\r\ncontent-type: application/json\r\ncontent-length: "
            + str(length).encode()
            + b"\r\n"
            + auth
            + headers
            + b"\r\n"
        )

    async def call(self, method: bytes, path: bytes, body: bytes, *, timeout: float) -> tuple[int, bytes]:
        """A short exchange of the router's own (probes, aborts). Raises `UpstreamError`."""
        connection = await self.client.acquire()
        try:
            async with asyncio.timeout(timeout):
                connection.send(self.head(method, path, b"", len(body)), body)
                await connection.head()
                return connection.status, await _read_all(connection)
        except TimeoutError as error:
            raise UpstreamError("timeout", f"no answer within {timeout:g} s") from error
        finally:
            self.client.release(connection)

    async def probe(self) -> None:
        """Ask the engine how it is and update `health`; never raises for the engine's faults."""
        try:
            health_path = self.adapter.health_path
            status = (await self.call(b"GET", health_path, b"", timeout=PROBE_TIMEOUT_S))[0] if health_path else 200
            if status == 200 and self.health is not Health.UP:  # it may have come back with another model
                await self._check_model()
        except UpstreamError as error:
            self.failed(str(error), at_once=error.kind == "connect")
            return
        if status != 200:
            self.failed(f"{health_path.decode()} answered {status}")
        elif self.health is not Health.MISCONFIGURED:
            if self.health is not Health.UP:
                log.info("endpoint %s is up", self.name)
            self.health, self.reason, self.failures = Health.UP, "", 0

    async def _check_model(self) -> None:
        status, body = await self.call(b"GET", b"/v1/models", b"", timeout=PROBE_TIMEOUT_S)
        if status != 200:
            raise UpstreamError("protocol", f"/v1/models answered {status}")
        try:
            cards = msgspec.json.decode(body, type=_ModelList).data
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UpstreamError("protocol", f"/v1/models is not a model list: {error}") from error
        card = next((card for card in cards if card.id == self.spec.served_model), None)
        if card is None:
            names = ", ".join(card.id for card in cards[:5]) or "no model"
            reason = f"serves {names}, not {self.spec.served_model!r}: set servedModel"
            if self.reason != reason:
                log.error("endpoint %s %s", self.name, reason)
            self.health, self.reason = Health.MISCONFIGURED, reason
        else:
            self.max_model_len = card.max_model_len or 0
            if self.health is Health.MISCONFIGURED:
                self.health = Health.UNKNOWN


class _Card(Struct):
    id: str
    max_model_len: int | None = None


class _ModelList(Struct):
    data: list[_Card]


class Pool:
    """The endpoints of one pool, and the picks among them."""

    def __init__(self, name: str, specs: Collection[EndpointSpec], *, connect_timeout: float) -> None:
        self.name = name
        self.endpoints = {spec.name: Endpoint(name, spec, connect_timeout=connect_timeout) for spec in specs}

    def __repr__(self) -> str:
        return f"<Pool {self.name} {list(self.endpoints.values())}>"

    @property
    def available(self) -> int:
        return sum(endpoint.available for endpoint in self.endpoints.values())

    @property
    def context_length(self) -> int | None:
        lengths = [e.max_model_len for e in self.endpoints.values() if e.max_model_len]
        return min(lengths) if lengths else None

    def place(self, work: Work, affinity: bytes, exclude: Collection[str] = ()) -> tuple[Endpoint, Booking] | None:
        """Pick an endpoint and book the work on it. None when none that is left is available."""
        candidates = [(e.name, e.load) for e in self.endpoints.values() if e.available and e.name not in exclude]
        choice = pick(candidates, affinity)
        if choice is None:
            return None
        endpoint = self.endpoints[choice]
        return endpoint, Booking(endpoint.load, endpoint.load.seconds(work))


class Watcher:
    """Probes every endpoint and turns the clock of every connection."""

    def __init__(self, pools: Collection[Pool], *, tick_s: float = 0.1) -> None:
        self._endpoints = [endpoint for pool in pools for endpoint in pool.endpoints.values()]
        self._tick_s = tick_s

    async def run(self) -> None:
        """Until cancelled. A fault in one of its loops ends all of them, to be started again together."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            for endpoint in self._endpoints:
                tasks.create_task(self._probe(endpoint))

    def close(self) -> None:
        """Drop every connection."""
        for endpoint in self._endpoints:
            endpoint.client.close()

    async def _probe(self, endpoint: Endpoint) -> None:
        while True:
            started = time.monotonic()
            await endpoint.probe()
            await asyncio.sleep(max(0.1, PROBE_EVERY_S - (time.monotonic() - started)))

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._tick_s)
            for endpoint in self._endpoints:
                endpoint.client.tick(loop.time())


async def _read_all(connection: Connection) -> bytes:
    parts = []
    while isinstance(data := await connection.read(), bytes) and data:
        parts.append(data)
    return b"".join(parts)
