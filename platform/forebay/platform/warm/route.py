"""Where peers read a front door's snapshot. A stranger learns nothing, not even that there is one."""

from typing import Any

from litestar import Request, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from forebay.platform.errors import unavailable
from forebay.platform.service import Service
from forebay.platform.warm.access import PATH, is_peer, token_of
from forebay.router import RouterUnavailable


def snapshot_route(service: Service) -> HTTPRouteHandler:
    token = token_of(service.config)

    @get(PATH, media_type="application/octet-stream")
    async def snapshot(request: Request[Any, Any, Any], service: NamedDependency[Service]) -> Stream:
        if not is_peer(token, request.headers.get("authorization", "")):
            raise NotFoundException
        try:
            return Stream(await service.snapshot())
        except RouterUnavailable as error:
            raise unavailable("snapshot_unavailable", f"There is no snapshot: {error}.", retry_after=5) from error

    return snapshot
