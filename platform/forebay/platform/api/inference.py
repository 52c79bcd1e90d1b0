"""The inference routes: plain ASGI, because every event of every stream passes here."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from litestar import asgi
from litestar.handlers import ASGIRouteHandler

from forebay.metering import Spool
from forebay.platform.api.bounds import Gate, Held, Memory, Turns
from forebay.platform.api.explaining import explanation
from forebay.platform.api.layout import Prior
from forebay.platform.api.prompts import Prompts, Unread
from forebay.platform.api.requests import Inference, Source, decode
from forebay.platform.api.session_identity import named_session
from forebay.platform.api.transcripts import Known
from forebay.platform.catalogue import Catalogue
from forebay.platform.config.model import Server
from forebay.platform.errors import ApiError, invalid, unavailable
from forebay.platform.limits.limiter import Limiter
from forebay.platform.limits.permit import UNLIMITED, Permit
from forebay.platform.relay import metrics
from forebay.platform.relay.call import Call
from forebay.platform.relay.client import Client, ClientLeft, Receive, Send
from forebay.platform.relay.nothing import nothing
from forebay.platform.relay.relay import Relay
from forebay.platform.relay.upstream_errors import no_router
from forebay.platform.tenancy.auth import Authenticator, require
from forebay.platform.tenancy.principal import Principal, Scope
from forebay.platform.tenancy.salt import Salter
from forebay.platform.tiers import TierTable
from forebay.router import Router, RouterUnavailable

log = logging.getLogger(__name__)
_Act = Callable[[Call, Client], Awaitable[None]]
_ROUTES = {"chat/completions": "chat.completions", "completions": "completions", "embeddings": "embeddings"}
SWEEP_S = 1.0
LIGHT_BYTES, LIGHT_NESTED = 1 << 16, 512  # bodies that take less than half a millisecond; others are decoded in turn
HUGE_BYTES = 1 << 22  # a body that takes milliseconds to copy
_UNLIMITED = nullcontext(UNLIMITED)


class Inferences:
    """Authenticates, bounds, decodes, and hands to the relay. One instance serves all inference routes."""

    def __init__(
        self,
        *,
        auth: Authenticator,
        catalogue: Catalogue,
        prompts: Prompts,
        router: Router,
        relay: Relay,
        spool: Spool,
        salter: Salter,
        server: Server,
        tiers: TierTable,
        limiter: Limiter,
    ) -> None:
        self._auth = auth
        self._catalogue = catalogue
        self.prompts = prompts
        self._router = router
        self._relay = relay
        self._spool = spool
        self._salter = salter
        self._tiers = tiers
        self._limiter = limiter
        self._body_limit = server.body_limit
        self._stall_s = server.stall_timeout
        self.memory = Memory(server.memory, server.memory_per_project, body_limit=server.body_limit)
        self._decoding = Turns()
        self._clients: dict[asyncio.Task[Any], Client] = {}
        self.gate = Gate(server.max_in_flight, server.max_in_flight_per_project)
        metrics.IN_FLIGHT.set_function(lambda: self.gate.in_flight)
        metrics.HELD.set_function(lambda: self.memory.held)
        metrics.BLOCKED.set_function(lambda: sum(client.blocked for client in self._clients.values()))

    def routes(self) -> list[ASGIRouteHandler]:
        """`/v1/explain/…` takes what the route proper takes, and says where it would be sent."""
        relayed = [self._route(f"/v1/{path}", api, self._run) for path, api in _ROUTES.items()]
        explained = [self._route(f"/v1/explain/{path}", api, self._explain) for path, api in _ROUTES.items()]
        return relayed + explained

    @property
    def tasks(self) -> "set[asyncio.Task[Any]]":
        """The requests that are being answered."""
        return set(self._clients)

    async def sweep(self) -> None:
        """End requests whose tenant has stopped reading, or does not finish its own; until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self._sweep()

    def _sweep(self) -> None:
        """Keeps nothing of a client in its frame: the server ends a connection only when its reader is let go of."""
        for task, client in tuple(self._clients.items()):
            if client.check_late():
                task.cancel()
            elif not client.stalled and client.check_stalled(self._stall_s):
                metrics.STALLED.inc()
                task.cancel()

    def _route(self, path: str, api: str, act: _Act) -> ASGIRouteHandler:
        async def handle(scope: Any, receive: Any, send: Any) -> None:
            await self.handle(api, act, scope, receive, send)

        return asgi(path, copy_scope=False)(handle)

    async def handle(self, api: str, act: _Act, scope: Any, receive: Receive, send: Send) -> None:
        client = Client(receive, send, new_request_id())
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = client
        model, status = "", "200"
        try:
            model = await self._answer(api, act, scope, client)
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
                metrics.CLIENTS_LEFT.inc()
                status = "client_left"
            metrics.requests(api, model, status).inc()

    async def _answer(self, api: str, act: _Act, scope: Any, client: Client) -> str:
        headers = dict(scope["headers"])
        principal = await self._auth.identify(headers)
        require(principal, Scope.INFERENCE)
        _check_head(scope["method"], headers)
        if not self._spool.accepting:
            raise unavailable("metering_unavailable", "Usage cannot be recorded at the moment.", retry_after=5)
        self.gate.enter(principal.project_id)
        try:
            with permitted(self._limiter, principal, client) as permit, self.memory.hold(principal.project_id) as held:
                client.hold = held.more
                if permit.limited:
                    await permit.enter()
                call = await self._read(api, client, principal, held, headers, permit=permit)
                await act(call, client)
                return call.model
        finally:
            self.gate.leave(principal.project_id)

    async def _run(self, call: Call, client: Client) -> None:
        if call.permit.limited:
            await self._take(call)
        if call.inference.stream:
            client.nothing = lambda: nothing(call)
        client.watch()
        await self._relay.run(call, client)

    async def _take(self, call: Call) -> None:
        """Reserve what the request is expected to use: of its prompt, what is not cached where it would go."""
        uncached, output = call.prompt.tokens, call.inference.output
        if call.permit.counts_input(call.model):
            try:
                explained = await self._router.explain(call.ask(()))
            except RouterUnavailable as error:
                raise no_router() from error
            uncached -= max((one.cached for one in explained.candidates if one.chosen), default=0)
        await call.permit.take(call.model, uncached, output)

    async def _explain(self, call: Call, client: Client) -> None:
        require(call.principal, Scope.DEBUG)
        try:
            patience_s = self._tiers[call.tier].timeouts.queue
            explained = await self._router.explain(call.ask((), patience_s=patience_s))
        except RouterUnavailable as error:
            raise no_router() from error
        await client.answer(explanation(call, explained))

    async def _read(
        self,
        api: str,
        client: Client,
        principal: Principal,
        held: Held,
        headers: dict[bytes, bytes],
        *,
        permit: Permit,
    ) -> Call:
        """Returns without the body, so that nothing keeps it while the answer streams."""
        body = b"".join(await client.body(self._body_limit, _content_length(headers), held.at_least))
        project = principal.project_id
        known = self.prompts.known(project, api, body)
        inference, source = await self._decode(api, body, known, project)
        entry = self._catalogue.for_api(inference.model, principal, inference.api)
        tier = self._tiers.choose(inference.tier, principal.tiers)
        salt = self._salter.salt(project)
        prompt = await self.prompts.read(Unread(project, salt, entry, inference, source, known, body))
        return Call(
            request_id=client.request_id,
            principal=principal,
            inference=inference,
            model=entry.model.name,
            asked=inference.model,
            pool=entry.pool,
            price_version=entry.price_version(time.time(), principal.prices),
            cache_salt=salt,
            prompt=prompt,
            tier=tier,
            session=named_session(project, headers, inference.cache_key),
            permit=permit,
        )

    async def _decode(self, api: str, body: bytes, known: Known | None, project: str) -> tuple[Inference, Source]:
        prior = known.prior if known else None
        if _is_light(body, prior):
            return decode(api, body, prior)
        async with self._decoding.take(project):
            return await asyncio.to_thread(decode, api, body, prior)


def permitted(limiter: Limiter, principal: Principal, client: Client) -> AbstractContextManager[Permit]:
    """What a request may hold of its limits. One that we could not answer counts as if it had not come."""
    return _permitted(limiter, principal, client) if principal.limits else _UNLIMITED


@contextmanager
def _permitted(limiter: Limiter, principal: Principal, client: Client) -> Iterator[Permit]:
    permit = Permit(limiter, client.request_id, principal.tenant_id, principal.limits)
    client.limit_headers = permit.headers
    refund = False
    try:
        yield permit
    except ApiError as error:
        refund = not client.answered and (error.status == 429 or error.status >= 500)
        raise
    except ClientLeft:
        raise
    except BaseException:
        refund = not client.answered
        raise
    finally:
        permit.close(refund=refund)


def new_request_id() -> str:
    return "req_" + os.urandom(16).hex()


def _is_light(body: bytes, prior: Prior | None) -> bool:
    """Whether the rest takes less than half a millisecond; what is known is cut out of it before it is parsed."""
    head, end = (prior.head, prior.end) if prior else (0, 0)
    if len(body) > HUGE_BYTES or head + len(body) - end > LIGHT_BYTES:
        return False
    nested = body.count(b"[", end) + body.count(b"{", end)
    if head:
        nested += body.count(b"[", 0, head) + body.count(b"{", 0, head)
    return nested <= LIGHT_NESTED


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
    chunked = b"transfer-encoding" in headers  # then that is where the body ends
    return int(value) if value is not None and value.isdigit() and not chunked else None
