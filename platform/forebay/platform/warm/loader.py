"""Fills a router that starts from snapshots: whole endpoints, of those that it has and knows nothing of."""

import asyncio
import logging
from collections.abc import AsyncIterator

from forebay.platform.warm.stream import Begin, Part, Piece, Reader, SnapshotError, Whole
from forebay.router import Loading, RouterService
from forebay.router import SnapshotError as EndpointError

log = logging.getLogger(__name__)

Endpoint = tuple[str, str]  # pool and name


class Loader:
    """`missing`: endpoints that are to be loaded, as long as they are not."""

    def __init__(self, service: RouterService, missing: set[Endpoint]) -> None:
        self._service = service
        self._loading: tuple[Endpoint, Loading] | None = None
        self.missing = missing

    async def take(self, source: AsyncIterator[bytes], name: str) -> None:
        """Load what is missing. Raises `SnapshotError` for a damaged source; what was whole by then is kept."""
        before = len(self.missing)
        reader = Reader()
        try:
            async for data in source:
                for part in reader.feed(data):
                    self._part(part, name)
                    await asyncio.sleep(0)
            if not reader.ended:
                raise SnapshotError("it is cut off")
        finally:
            self._give_up()
            if before > len(self.missing):
                log.info("what %d endpoints hold is known from %s", before - len(self.missing), name)

    def _part(self, part: Part, name: str) -> None:
        try:
            if isinstance(part, Begin):
                self._begin((part.pool, part.endpoint))
            elif self._loading is None:
                return
            elif isinstance(part, Piece):
                self._loading[1].feed(part.data)
            elif isinstance(part, Whole):
                self._finish(*self._loading)
                self._loading = None
        except EndpointError as error:
            assert self._loading is not None
            log.warning("endpoint %s is not loaded from %s: %s", self._loading[0][1], name, error)
            self._give_up()

    def _begin(self, endpoint: Endpoint) -> None:
        self._give_up()
        if endpoint in self.missing:
            self._loading = endpoint, Loading(self._service.core.pools[endpoint[0]].index, endpoint[1])

    def _finish(self, endpoint: Endpoint, loading: Loading) -> None:
        pool, name = endpoint
        member = self._service.core.pools[pool].members.get(name)
        if member is None or endpoint not in self._service.followers:
            raise EndpointError("it has gone")
        if member.gone:
            raise EndpointError("it refuses connections, so what it held is gone")
        position = loading.finish()
        try:
            self._service.followers[endpoint].resume(position)
        except ValueError as error:
            self._service.core.clear(pool, name)
            raise EndpointError(str(error)) from error
        self.missing.discard(endpoint)

    def _give_up(self) -> None:
        if self._loading is not None:
            self._loading[1].give_up()
            self._loading = None
