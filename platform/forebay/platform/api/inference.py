"""The inference routes: plain ASGI, because every event of every stream passes here."""

import asyncio
import logging
import os
import time
from typing import Any

from litestar import asgi
from litestar.handlers import ASGIRouteHandler

from forebay.metering import Spool
from forebay.platform.api.requests import Inference, decode
from forebay.platform.catalogue import Catalogue
from forebay.platform.config.model import Server
from forebay.platform.errors import ApiError, invalid, unavailable
from forebay.platform.relay.call import Call
from forebay.platform.relay.client import Client, ClientLeft, Receive, Send
from forebay.platform.relay.metrics import CLIENTS_LEFT, IN_FLIGHT, REQUESTS
from forebay.platform.relay.relay import Relay
from forebay.platform.tenancy.auth import Authenticator, bearer, require
from forebay.platform.tenancy.principal import Principal, Scope
from forebay.platform.tenancy.salt import Salter

log = logging.getLogger(__name__)
_ROUTES = {"/v1/chat/completions": "chat.completions", "/v1/completions": "completions", "/v1/embeddings": "embeddings"}
STALLED_S = 60.0  # seconds a tenant may leave its socket full
LARGE_BODY = 1 << 20  # bytes; larger bodies are decoded one at a time, so that they take turns with other tenants


class Gate:
    """Bounds on what is being answered here at once, in all and per project."""

    def __init__(self, total: int, per_project: int) -> None:
        self._total = total
        self._per_project = per_project
        self._projects: dict[str, int] = {}
        self.in_flight = 0
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()

    def enter(self, project_id: str) -> None:
        """Raises `ApiError` 503 or 429; otherwise `leave` must follow."""
        if self.draining:
            raise unavailable("shutting_down", "This server is shutting down. Please try again.", retry_after=1)
        if self.in_flight >= self._total:
            raise unavailable("server_overloaded", "The server is at capacity. Please try again.", retry_after=1)
        mine = self._projects.get(project_id, 0)
        if mine >= self._per_project:
            raise ApiError(
                429,
                "concurrency_limit_exceeded",
                f"Your project has {mine} requests in flight; the limit is {self._per_project}.",
                headers={"retry-after": "1"},
                metadata={"limit": "project_concurrency", "value": self._per_project},
            )
        self._projects[project_id] = mine + 1
        self.in_flight += 1
        self.idle.clear()

    def leave(self, project_id: str) -> None:
        self.in_flight -= 1
        left = self._projects[project_id] - 1
        if left:
            self._projects[project_id] = left
        else:
            del self._projects[project_id]
        if not self.in_flight:
            self.idle.set()


class Inferences:
    """Authenticates, bounds, decodes, and hands to the relay. One instance serves all inference routes."""

    def __init__(
        self, *, auth: Authenticator, catalogue: Catalogue, relay: Relay, spool: Spool, salter: Salter, server: Server
    ) -> None:
        self._auth = auth
        self._catalogue = catalogue
        self._relay = relay
        self._spool = spool
        self._salter = salter
        self._body_limit = server.body_limit
        self._decoding = asyncio.Lock()
        self._clients: dict[asyncio.Task[Any], Client] = {}
        self.gate = Gate(server.max_in_flight, server.max_in_flight_per_project)
        IN_FLIGHT.set_function(lambda: self.gate.in_flight)

    def routes(self) -> list[ASGIRouteHandler]:
        return [self._route(path, api) for path, api in _ROUTES.items()]

    @property
    def tasks(self) -> "set[asyncio.Task[Any]]":
        """The requests that are being answered."""
        return set(self._clients)

    async def sweep(self) -> None:
        """End requests whose tenant has stopped reading; until cancelled."""
        while True:
            await asyncio.sleep(1.0)
            for task, client in tuple(self._clients.items()):
                if not client.stalled and client.check_stalled(STALLED_S):
                    task.cancel()

    def _route(self, path: str, api: str) -> ASGIRouteHandler:
        async def handle(scope: Any, receive: Any, send: Any) -> None:
            await self.handle(api, scope, receive, send)

        return asgi(path, copy_scope=False)(handle)

    async def handle(self, api: str, scope: Any, receive: Receive, send: Send) -> None:
        client = Client(receive, send, new_request_id())
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = client
        model, status = "", "200"
        try:
            model = await self._answer(api, scope, client)
        except ApiError as error:
            status = error.code
            await client.fail(error)
        except ClientLeft:
            client.left = True
        except asyncio.CancelledError:
            status = "shutting_down"
            await client.fail(unavailable("shutting_down", "This server is shutting down.", retry_after=1))
        except Exception:
            log.exception("request %s failed", client.request_id)
            status = "internal_error"
            await client.fail(ApiError(500, "internal_error", "The server had an error while processing your request."))
        finally:
            client.close()
            del self._clients[task]
            if client.left:
                CLIENTS_LEFT.inc()
                status = "client_left"
            REQUESTS.labels(api=api, model=model, status=status).inc()

    async def _answer(self, api: str, scope: Any, client: Client) -> str:
        headers = dict(scope["headers"])
        principal = await self._authenticate(headers)
        require(principal, Scope.INFERENCE)
        _check_head(scope["method"], headers)
        if not self._spool.accepting:
            raise unavailable("metering_unavailable", "Usage cannot be recorded at the moment.", retry_after=5)
        self.gate.enter(principal.project_id)
        try:
            body = await client.body(self._body_limit, _content_length(headers))
            inference = await self._decode(api, body)
            call = self._call(client.request_id, principal, inference)
            client.watch()
            await self._relay.run(call, client)
            return call.model
        finally:
            self.gate.leave(principal.project_id)

    async def _authenticate(self, headers: dict[bytes, bytes]) -> Principal:
        token = bearer(headers.get(b"authorization"), headers.get(b"x-api-key"))
        return self._auth.cached(token) or await self._auth.authenticate(token)

    async def _decode(self, api: str, body: bytes) -> Inference:
        if len(body) < LARGE_BODY:
            return decode(api, body)
        async with self._decoding:
            return await asyncio.to_thread(decode, api, body)

    def _call(self, request_id: str, principal: Principal, inference: Inference) -> Call:
        entry = self._catalogue.for_api(inference.model, principal, inference.api)
        return Call(
            request_id=request_id,
            principal=principal,
            inference=inference,
            model=entry.model.name,
            asked=inference.model,
            pool=entry.pool,
            price_version=entry.price_version(time.time()),
            cache_salt=self._salter.salt(principal.project_id),
        )


def new_request_id() -> str:
    return "req_" + os.urandom(16).hex()


def _check_head(method: str, headers: dict[bytes, bytes]) -> None:
    if method != "POST":
        raise ApiError(
            405,
            "method_not_allowed",
            f"Not allowed to {method} on this route; use POST.",
            type="invalid_request_error",
            headers={"allow": "POST"},
        )
    content_type = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if content_type != b"application/json":
        raise invalid(
            f"Unsupported content type '{content_type.decode('latin-1')[:64]}'; use 'application/json'.",
            code="unsupported_media_type",
            status=415,
        )
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise invalid("Compressed request bodies are not supported.", code="unsupported_media_type", status=415)


def _content_length(headers: dict[bytes, bytes]) -> int | None:
    value = headers.get(b"content-length")
    return int(value) if value is not None and value.isdigit() else None
