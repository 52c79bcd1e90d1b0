"""The engines behind a pool, as those who send them requests see them: how each is reached, and what it can do."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
from msgspec import Struct

from forebay.router.adapters import Adapter, adapter
from forebay.router.routing import Group
from forebay.router.upstream import Client, Connection, UpstreamError

LEAVING_S = 60.0  # an exchange may be between two connections to an endpoint that has gone


class EndpointSpec(Struct, frozen=True):
    """One engine server, or one data-parallel `rank` of it: several may share a URL, as `engine-0/0` and `engine-0/1`.
    `events` and `replay` are ZeroMQ addresses. `draining`: why it is sent nothing new; empty where it is. `instance`
    tells one process from the next at the same address, where something knows: caches do not outlive it."""

    name: str
    url: str
    engine: str
    served_model: str
    api_key: str | None
    priority_scheduling: bool
    events: str | None = None
    replay: str | None = None
    rank: int | None = None
    draining: str = ""
    instance: str = ""
    group: Group = Group()

    def is_still(self, other: "EndpointSpec") -> bool:
        """Whether `other` speaks of the same process, reached in the same way."""
        return self._reached() == other._reached()  # noqa: SLF001 - its own kind

    def _reached(self) -> "EndpointSpec":
        return msgspec.structs.replace(self, draining="", group=Group())


class Endpoint:
    """`can_abort` is None until the engine has shown whether it stops requests by id."""

    def __init__(self, spec: EndpointSpec, *, connect_timeout: float) -> None:
        self.spec = spec
        self.name = spec.name
        self.adapter: Adapter = adapter(spec.engine)
        self.client = Client(spec.url, connect_timeout=connect_timeout)
        self.can_abort: bool | None = None
        self._auth = f"authorization: Bearer {spec.api_key}\r\n".encode() if spec.api_key else b""

    def __repr__(self) -> str:
        return f"<Endpoint {self.name} {self.client}>"

    def head(self, method: bytes, path: bytes, headers: bytes, length: int) -> bytes:
        """The head of a request to this engine; `headers` are complete lines."""
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
            + self._auth
            + headers
            + b"\r\n"
        )

    async def call(self, method: bytes, path: bytes, body: bytes, *, timeout: float) -> tuple[int, bytes]:
        """A short exchange of our own (probes, aborts). Raises `UpstreamError`."""
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


class Pool:
    """The endpoints of one pool by name."""

    def __init__(self, name: str, specs: Collection[EndpointSpec], *, connect_timeout: float) -> None:
        self.name = name
        self.endpoints = {spec.name: Endpoint(spec, connect_timeout=connect_timeout) for spec in specs}
        self._connect_timeout = connect_timeout
        self._leaving: dict[Client, float] = {}  # of endpoints that have gone, and when one was in use last

    def __repr__(self) -> str:
        return f"<Pool {self.name} {list(self.endpoints.values())}>"

    def has(self, endpoint: Endpoint) -> bool:
        """Whether it is still here; another one of its name is not it."""
        return self.endpoints.get(endpoint.name) is endpoint

    def keep(self, specs: Iterable[EndpointSpec]) -> list[str]:
        """Have these endpoints and no others; returns the names of those that went. What is being exchanged with them
        goes on to its end."""
        before, self.endpoints = self.endpoints, {}
        for spec in specs:
            known = before.get(spec.name)
            if known is not None and known.spec.is_still(spec):
                known.spec = spec
                self.endpoints[spec.name] = before.pop(spec.name)
            else:
                self.endpoints[spec.name] = Endpoint(spec, connect_timeout=self._connect_timeout)
        for gone in before.values():
            gone.client.retire()
            self._leaving[gone.client] = asyncio.get_running_loop().time()
        return list(before)

    def tick(self, now: float) -> None:
        for endpoint in self.endpoints.values():
            endpoint.client.tick(now)
        for client, used_at in tuple(self._leaving.items()):
            client.tick(now)
            if client.active:
                self._leaving[client] = now
            elif now - used_at > LEAVING_S:
                del self._leaving[client]

    def close(self) -> None:
        """Drop every connection."""
        for client in (*(endpoint.client for endpoint in self.endpoints.values()), *self._leaving):
            client.close()


class Roster:
    """The endpoints of each pool as they are wanted, and who hears of changes to them."""

    def __init__(self, pools: Mapping[str, Iterable[EndpointSpec]] | None = None) -> None:
        self.pools = {pool: tuple(specs) for pool, specs in (pools or {}).items()}
        self._hear: list[Hear] = []

    def __repr__(self) -> str:
        return f"<Roster {({pool: [spec.name for spec in specs] for pool, specs in self.pools.items()})}>"

    def listen(self, hear: "Hear") -> None:
        """Call `hear` with each pool's endpoints, now and whenever they change."""
        self._hear.append(hear)
        for pool, specs in self.pools.items():
            hear(pool, specs)

    def change(self, pool: str, specs: Iterable[EndpointSpec]) -> None:
        specs = tuple(specs)
        if self.pools.get(pool) == specs:
            return
        self.pools[pool] = specs
        for hear in self._hear:
            hear(pool, specs)


Hear = Callable[[str, tuple[EndpointSpec, ...]], None]


class Ticker:
    """Turns the clock of every connection."""

    def __init__(self, pools: Collection[Pool], *, tick_s: float = 0.1) -> None:
        self._pools = tuple(pools)
        self._tick_s = tick_s

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._tick_s)
            now = loop.time()
            for pool in self._pools:
                pool.tick(now)

    def close(self) -> None:
        """Drop every connection."""
        for pool in self._pools:
            pool.close()


async def _read_all(connection: Connection) -> bytes:
    parts = []
    while isinstance(data := await connection.read(), bytes) and data:
        parts.append(data)
    return b"".join(parts)
