"""Asks every engine how it is, over connections of its own."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping

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


class Prober:
    """`tell(pool, endpoint, finding)` hears of every probe; of an endpoint that is not `proven` the model is asked for.
    Ranks behind one URL are probed once."""

    def __init__(
        self,
        pools: Mapping[str, Collection[EndpointSpec]],
        *,
        tell: Tell,
        proven: Proven,
        connect_timeout: float,
    ) -> None:
        self._tell = tell
        self._proven = proven
        self._servers: dict[tuple[str, str, str, str | None], list[tuple[str, str]]] = defaultdict(list)
        self._endpoints: list[tuple[Endpoint, list[tuple[str, str]]]] = []
        for pool, specs in pools.items():
            for spec in specs:
                names = self._servers[spec.url, spec.engine, spec.served_model, spec.api_key]
                if not names:
                    self._endpoints.append((Endpoint(spec, connect_timeout=connect_timeout), names))
                names.append((pool, spec.name))

    async def run(self) -> None:
        """Until cancelled. A fault in one of its loops ends all of them, to be started again together."""
        async with asyncio.TaskGroup() as tasks:
            for endpoint, names in self._endpoints:
                tasks.create_task(self._watch(endpoint, names))

    async def once(self) -> None:
        """Probe every server now."""
        await asyncio.gather(*(self._probe(endpoint, names) for endpoint, names in self._endpoints))

    def close(self) -> None:
        for endpoint, _ in self._endpoints:
            endpoint.client.close()

    async def _watch(self, endpoint: Endpoint, names: list[tuple[str, str]]) -> None:
        while True:
            started = time.monotonic()
            await self._probe(endpoint, names)
            endpoint.client.tick(asyncio.get_running_loop().time())
            await asyncio.sleep(max(0.1, PROBE_EVERY_S - (time.monotonic() - started)))

    async def _probe(self, endpoint: Endpoint, names: list[tuple[str, str]]) -> None:
        proven = all(self._proven(pool, name) for pool, name in names)
        finding = await probe(endpoint, proven=proven)
        for pool, name in names:
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
