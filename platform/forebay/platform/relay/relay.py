"""A request's way through its attempts: placed, dispatched, and moved elsewhere while the tenant has seen nothing."""

import asyncio
import logging

from forebay.metering import Spool
from forebay.platform.errors import ApiError
from forebay.platform.relay import upstream_errors
from forebay.platform.relay.call import Call
from forebay.platform.relay.client import Client
from forebay.platform.relay.exchange import Exchange, TryElsewhere
from forebay.platform.relay.metrics import FAILOVERS
from forebay.platform.relay.suspects import Suspects
from forebay.platform.relay.wait import Wait
from forebay.platform.tenancy.principal import Scope
from forebay.platform.tiers import TierTable
from forebay.router import Endpoint, Outcome, Placed, Result, Router, RouterUnavailable

log = logging.getLogger(__name__)

MAX_GONE = 8  # endpoints that one request may be given although they are not known here
MAX_ATTEMPTS = 3  # a request that fails on three endpoints is more likely at fault itself


class Relay:
    def __init__(self, router: Router, spool: Spool, tiers: TierTable, *, checkpoint_every: float) -> None:
        self._router = router
        self._spool = spool
        self._tiers = tiers
        self._checkpoint_every = checkpoint_every
        self._suspects = Suspects()

    async def run(self, call: Call, client: Client) -> None:
        """Answer `client`. Raises `ApiError` where the answer is an error; the caller says it to the client. Raises
        `ClientLeft` where it has left before anything was sent to an engine."""
        router, pool = self._router, call.pool.name
        tried: tuple[str, ...] = ()
        failure: ApiError | None = None
        suspects: list[tuple[Endpoint, str]] = []
        wait = Wait(call, client, router, self._tiers[call.tier].timeouts)
        while len(tried) < MAX_ATTEMPTS and not client.left:
            try:
                placed = await self._place(wait, tried)
            except RouterUnavailable as error:
                log.warning("request %s is not placed: %s", call.request_id, error)
                failure = failure or upstream_errors.no_router()
                break
            if not isinstance(placed, Placed):
                failure = upstream_errors.refused(placed) if placed is not None else failure
                break
            call.permit.placed()
            if tried:
                FAILOVERS.inc()
            tried = (*tried, placed.endpoint)
            endpoint = call.pool.endpoints[placed.endpoint]
            try:
                await self._attempt(wait, endpoint, placed, len(tried))
            except TryElsewhere as retry:
                failure = retry.error
                if retry.suspicion and call.pool.has(endpoint):
                    suspects.append((endpoint, retry.suspicion))
                    self._suspects.add(pool, endpoint.name, _now())
            else:
                if not client.left:
                    self._suspects.clear(pool, placed.endpoint)
                    for suspect, reason in suspects:
                        if call.pool.has(suspect):
                            router.failed(pool, suspect.name, reason)
                return
        if not client.left:
            raise failure or upstream_errors.no_endpoint(call)

    def forget(self, pool: str, endpoint: str) -> None:
        """It has gone: one that comes under its name is another."""
        self._suspects.clear(pool, endpoint)

    async def _place(self, wait: Wait, tried: tuple[str, ...]) -> Result:
        """Where it was not tried. An endpoint that went after it was picked is no failure of anybody."""
        gone: tuple[str, ...] = ()
        while len(gone) <= MAX_GONE:
            placed = await self._pick(wait, (*tried, *gone))
            if not isinstance(placed, Placed) or placed.endpoint in wait.call.pool.endpoints:
                return placed
            self._router.ended(placed.booking, Outcome())
            gone = (*gone, placed.endpoint)
        return None

    async def _pick(self, wait: Wait, tried: tuple[str, ...]) -> Result:
        """Away from suspects as long as there is anybody else."""
        pool = wait.call.pool.name
        suspects = self._suspects.of(pool, _now(), again=bool(tried))
        avoided = tuple(dict.fromkeys((*tried, *suspects))) if suspects else tried
        placed = await wait.place(avoided)
        if placed is None and len(avoided) > len(tried):
            placed = await wait.place(tried)
        if isinstance(placed, Placed):
            self._suspects.asked(pool, placed.endpoint, _now())
        return placed

    async def _attempt(self, wait: Wait, endpoint: Endpoint, placed: Placed, number: int) -> None:
        """Whatever happens, the booking ends: usually earlier than here, when the engine is done."""
        call, client, terms = wait.call, wait.client, self._tiers[placed.tier]
        try:
            if Scope.DEBUG in call.principal.scopes:
                client.debug_headers = [
                    (b"x-forebay-endpoint", placed.endpoint.encode()),
                    (b"x-forebay-cached-tokens", b"%d" % placed.cached),
                    (b"x-forebay-tier", terms.name.encode()),
                ]
            exchange = Exchange(
                call,
                client,
                endpoint,
                placed,
                number=number,
                quiet_since=wait.quiet_since,
                router=self._router,
                spool=self._spool,
                terms=terms,
                checkpoint_every=self._checkpoint_every,
            )
        except BaseException:
            self._router.ended(placed.booking, Outcome())
            raise
        try:
            await exchange.run()
        except ApiError as error:
            if error.code == upstream_errors.TIMEOUT and call.pool.has(endpoint):
                self._suspects.add(call.pool.name, placed.endpoint, _now(), silent=True)
            raise


def _now() -> float:
    return asyncio.get_running_loop().time()
