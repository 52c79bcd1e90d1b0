"""The engines behind a pool, as those who send them requests see them: how each is reached, and what it can do."""

import asyncio
from collections.abc import Collection

from msgspec import Struct

from forebay.router.adapters import Adapter, adapter
from forebay.router.upstream import Client, Connection, UpstreamError


class EndpointSpec(Struct, frozen=True):
    """One engine server, or one data-parallel `rank` of it: several may share a URL, as `engine-0/0` and `engine-0/1`.
    `events` and `replay` are ZeroMQ addresses."""

    name: str
    url: str
    engine: str
    served_model: str
    api_key: str | None
    priority_scheduling: bool
    events: str | None = None
    replay: str | None = None
    rank: int | None = None


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

    def __repr__(self) -> str:
        return f"<Pool {self.name} {list(self.endpoints.values())}>"


class Ticker:
    """Turns the clock of every connection."""

    def __init__(self, pools: Collection[Pool], *, tick_s: float = 0.1) -> None:
        self._clients = [endpoint.client for pool in pools for endpoint in pool.endpoints.values()]
        self._tick_s = tick_s

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._tick_s)
            now = loop.time()
            for client in self._clients:
                client.tick(now)

    def close(self) -> None:
        """Drop every connection."""
        for client in self._clients:
            client.close()


async def _read_all(connection: Connection) -> bytes:
    parts = []
    while isinstance(data := await connection.read(), bytes) and data:
        parts.append(data)
    return b"".join(parts)
