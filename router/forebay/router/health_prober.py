"""Asks every engine how it is, over connections of its own."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct

from forebay.router.endpoints import Endpoint, EndpointSpec
from forebay.router.health import Card, Failed, Finding, Misfit, Well
from forebay.router.upstream import UpstreamError

log = logging.getLogger(__name__)

PROBE_EVERY_S = 2.0
PROBE_TIMEOUT_S = 5.0  # SGLang's /health computes a token and takes a second even when idle
Tell = Callable[[str, str, Finding], None]
Proven = Callable[[str, str], bool]


class _Server:
    """What several names may stand for: `names` are pools and endpoints."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.names: list[tuple[str, str]] = []
        self.watching: asyncio.Task[None] | None = None


class Prober:
    """`tell(pool, endpoint, finding)` hears of every probe; of an endpoint that is not `proven` the model is asked for.
    Ranks behind one URL are probed once. Endpoints come and go with `keep`."""

    def __init__(
        self,
        pools: Mapping[str, Iterable[EndpointSpec]],
        *,
        tell: Tell,
        proven: Proven,
        connect_timeout: float,
    ) -> None:
        self._tell = tell
        self._proven = proven
        self._connect_timeout = connect_timeout
        self._servers: dict[tuple[str, str, str, str | None, str], _Server] = {}
        self._tasks: asyncio.TaskGroup | None = None
        for pool, specs in pools.items():
            self.keep(pool, specs)

    def keep(self, pool: str, specs: Iterable[EndpointSpec]) -> None:
        """Probe these endpoints of a pool, and no others of it."""
        wanted: dict[tuple[str, str, str, str | None, str], list[EndpointSpec]] = {}
        for spec in specs:
            wanted.setdefault((spec.url, spec.engine, spec.served_model, spec.api_key, spec.instance), []).append(spec)
        for key, server in tuple(self._servers.items()):
            others = [named for named in server.names if named[0] != pool]
            server.names = others + [(pool, spec.name) for spec in wanted.pop(key, ())]
            if not server.names:
                self._leave(self._servers.pop(key))
        for key, here in wanted.items():
            server = self._servers[key] = _Server(Endpoint(here[0], connect_timeout=self._connect_timeout))
            server.names = [(pool, spec.name) for spec in here]
            self._begin(server)

    async def run(self) -> None:
        """Until cancelled. A fault in one of its loops ends all of them, to be started again together."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for server in self._servers.values():
                    self._begin(server)
                await asyncio.Event().wait()
        finally:
            self._tasks = None

    async def once(self) -> None:
        """Probe every server now."""
        await asyncio.gather(*(self._probe(server) for server in tuple(self._servers.values())))

    def close(self) -> None:
        for server in self._servers.values():
            server.endpoint.client.close()

    def _begin(self, server: _Server) -> None:
        if self._tasks is not None:
            server.watching = self._tasks.create_task(self._watch(server))

    def _leave(self, server: _Server) -> None:
        if server.watching is not None:
            server.watching.cancel()
        server.endpoint.client.close()

    async def _watch(self, server: _Server) -> None:
        while True:
            started = time.monotonic()
            await self._probe(server)
            server.endpoint.client.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(max(0.1, PROBE_EVERY_S - (time.monotonic() - started)))

    async def _probe(self, server: _Server) -> None:
        proven = all(self._proven(pool, name) for pool, name in server.names)
        finding = await probe(server.endpoint, proven=proven)
        for pool, name in server.names:
            self._tell(pool, name, finding)


async def probe(endpoint: Endpoint, *, proven: bool) -> Finding:
    """How an engine is; never raises for its faults."""
    path = endpoint.adapter.health_path
    try:
        if path and (status := (await endpoint.call(b"GET", path, b"", timeout=PROBE_TIMEOUT_S))[0]) != 200:
            return Failed(f"{path.decode()} answered {status}")
        return Well() if proven and path else await _model(endpoint)
    except UpstreamError as error:
        return Failed(str(error), at_once=error.kind == "refused")


class _Card(Struct):
    id: str
    max_model_len: int | None = None
    parent: str | None = None  # of a LoRA adapter (vLLM): the model that it adapts


class _ModelList(Struct):
    data: list[_Card]


async def _model(endpoint: Endpoint) -> Finding:
    status, body = await endpoint.call(b"GET", b"/v1/models", b"", timeout=PROBE_TIMEOUT_S)
    if status != 200:
        return Failed(f"/v1/models answered {status}")
    try:
        cards = msgspec.json.decode(body, type=_ModelList).data
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Failed(f"/v1/models is not a model list: {error}")
    wanted = endpoint.spec.served_model
    card = next((card for card in cards if card.id == wanted), None)
    if card is None:
        names = ", ".join(card.id for card in cards[:5]) or "no model"
        return Misfit(f"serves {names}, not {wanted!r}: set servedModel")
    return Card(card.max_model_len, wanted if card.parent else None)
