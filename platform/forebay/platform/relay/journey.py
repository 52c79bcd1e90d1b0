"""One request's way through its attempts: placed, dispatched, and moved to another engine: from the start while the
tenant has seen nothing, and going on with the answer when it has."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from msgspec import Struct, field

from forebay.metering import Spool
from forebay.platform.errors import ApiError
from forebay.platform.relay import upstream_errors
from forebay.platform.relay.budget import Budget
from forebay.platform.relay.call import Call
from forebay.platform.relay.chain import Chain
from forebay.platform.relay.client import Client, ClientLeft
from forebay.platform.relay.elsewhere import CutOff, TryElsewhere
from forebay.platform.relay.exchange import Exchange
from forebay.platform.relay.metrics import BUDGET_SPENT, CONTINUATIONS, FAILOVERS
from forebay.platform.relay.patience import Clock
from forebay.platform.relay.resuming import Resumer
from forebay.platform.relay.seam import Seam
from forebay.platform.relay.suspects import Suspects
from forebay.platform.relay.untold import Untold
from forebay.platform.relay.wait import Wait
from forebay.platform.tenancy.principal import Scope
from forebay.platform.tiers import TierTable
from forebay.router import Endpoint, Outcome, Placed, Result, Router, RouterUnavailable

log = logging.getLogger(__name__)

MAX_GONE = 8  # endpoints that one request may be given although they are not known here
MAX_ATTEMPTS = 3  # a request that fails on three endpoints is more likely at fault itself
MAX_MOVES = 8  # times that it may be taken away from an engine
MOST_EARLY = 64


class Means(Struct):
    """What all requests of a front door share. `live` are the attempts at work, by their booking; `early` are bookings
    that were to be stopped when it was not known yet who has them, or not any more."""

    router: Router
    spool: Spool
    tiers: TierTable
    checkpoint_every: float
    suspects: Suspects
    retries: Budget
    continuations: Budget  # apart: requests that no engine can answer do not end answers that have begun
    resumer: Resumer
    untold: Untold
    live: dict[int, Exchange]
    early: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_EARLY))


class Journey:
    """`call` is the request as it came; `_wait.call` is what the next engine is asked, which may be to continue."""

    def __init__(self, call: Call, client: Client, means: Means) -> None:
        self._call = call
        self._client = client
        self._means = means
        self._chain = Chain(Seam(call.inference.held) if _streams_one(call) else None)
        self._clock = Clock(_now())
        self._wait = Wait(call, client, means.router, means.tiers, self._clock)
        self._tried: tuple[str, ...] = ()
        self._attempts = 0
        self._moves = 0
        self._failure: ApiError | None = None
        self._lost: Callable[[str], ApiError] = upstream_errors.lost  # what to say of a cut answer that does not go on
        self._suspected: list[tuple[Endpoint, str]] = []

    async def run(self) -> None:
        """As `Relay.run`."""
        chain = self._chain
        for budget in (self._means.retries, self._means.continuations):
            budget.request(_now())
        try:
            try:
                await self._go()
            except ClientLeft:
                if not chain.cut_short:
                    raise
            except asyncio.CancelledError:
                if self._client.stalled and chain.cut_short:
                    await asyncio.shield(chain.leave())
                raise
            if self._client.left:
                await chain.leave()
            elif self._failure is not None:
                raise self._failure
        finally:
            if chain.cut_short:
                if chain.carried is not None:
                    CONTINUATIONS.labels(why="failed", outcome="failed").inc()
                await asyncio.shield(chain.fail())

    async def _go(self) -> None:
        """Sets `_failure` where no engine answers. Raises `ApiError` for an answer that is final."""
        while not self._client.left:
            placed = await self._somewhere()
            if placed is None:
                return
            if self._tried and self._chain.carried is None:
                FAILOVERS.inc()
            self._tried = (*self._tried, placed.endpoint)
            endpoint = self._call.pool.endpoints[placed.endpoint]
            try:
                await self._attempt(endpoint, placed)
            except TryElsewhere as retry:
                self._failure = retry.error
                self._note(endpoint, retry)
                if not await self._again(retry):
                    return
            else:
                self._failure = None
                self._answered(endpoint)
                return

    async def _somewhere(self) -> Placed | None:
        """None, with `_failure` set, where there is nowhere to go."""
        try:
            placed = await self._place()
        except RouterUnavailable as error:
            log.warning("request %s is not placed: %s", self._call.request_id, error)
            self._failure = self._failure or upstream_errors.no_router()
            placed = None
        else:
            if isinstance(placed, Placed):
                self._call.permit.placed()
                return placed
            if placed is not None:
                self._failure = upstream_errors.refused(placed)
            elif self._failure is None:
                self._failure = upstream_errors.no_endpoint(self._call)
        if self._chain.cut_short:
            self._failure = self._lost("no_endpoint" if placed is None else "no_room")
        return None

    async def _again(self, retry: TryElsewhere) -> bool:
        """Whether another engine may be asked; with what, where it is to continue."""
        self._lost = upstream_errors.CUT.get(retry.error.code, upstream_errors.lost)
        if spent := self._clock.over(self._wait.terms.timeouts, _now()):
            self._stays(spent, retry)
            self._failure = upstream_errors.silent(spent)
            return False
        if retry.moved:
            self._moves += 1
            self._tried = self._tried[:-1]
        if self._moves > MAX_MOVES or len(self._tried) >= MAX_ATTEMPTS:
            return self._stays("moves" if self._moves > MAX_MOVES else "attempts", retry)
        found = await self._means.resumer.resume(self._call, self._chain) if isinstance(retry, CutOff) else None
        if isinstance(found, str):
            return self._stays(found, retry)
        if found is not None and not self._chain.prompt_told:
            return self._stays("untold_usage", retry)
        if not retry.moved and not self._afford(retry):
            BUDGET_SPENT.inc()
            return self._stays("budget", retry)
        if found is not None:
            self._chain.carry(self._call, found.cut.known, found.cut.seen)
            self._wait.call = self._call.resumed(found)
            CONTINUATIONS.labels(why=_why(retry), outcome="resumed").inc()
        return True

    def _afford(self, retry: TryElsewhere) -> bool:
        if isinstance(retry, CutOff):
            return self._means.continuations.failover(_now())
        return self._means.retries.failover(_now(), self._call.principal.tenant_id)

    def _stays(self, reason: str, retry: TryElsewhere) -> bool:
        if isinstance(retry, CutOff):
            CONTINUATIONS.labels(why=_why(retry), outcome=reason).inc()
        if isinstance(retry, CutOff) or self._chain.cut_short:
            self._failure = self._lost(reason)
        return False

    def _note(self, endpoint: Endpoint, retry: TryElsewhere) -> None:
        if retry.suspicion and self._call.pool.has(endpoint):
            if not isinstance(retry, CutOff):  # that one was blamed at once
                self._suspected.append((endpoint, retry.suspicion))
            self._means.suspects.add(self._call.pool.name, endpoint.name, _now())

    def _answered(self, endpoint: Endpoint) -> None:
        if self._client.left:
            return
        pool = self._call.pool
        self._means.suspects.clear(pool.name, endpoint.name)
        for suspect, reason in self._suspected:
            if pool.has(suspect):
                self._means.router.failed(pool.name, suspect.name, reason)

    async def _place(self) -> Result:
        """Where it was not tried. An endpoint that went after it was picked is no failure of anybody."""
        gone: tuple[str, ...] = ()
        while len(gone) <= MAX_GONE:
            placed = await self._pick((*self._tried, *self._unable(), *gone))
            if not isinstance(placed, Placed) or placed.endpoint in self._call.pool.endpoints:
                return placed
            self._means.router.ended(placed.booking, Outcome())
            gone = (*gone, placed.endpoint)
        return None

    def _unable(self) -> list[str]:
        if self._chain.carried is None:
            return []
        return [name for name, one in self._call.pool.endpoints.items() if not one.adapter.continues]

    async def _pick(self, tried: tuple[str, ...]) -> Result:
        """Away from suspects as long as there is anybody else."""
        pool, suspects = self._call.pool.name, self._means.suspects
        avoid = suspects.of(pool, _now(), again=bool(self._tried))
        avoided = tuple(dict.fromkeys((*tried, *avoid))) if avoid else tried
        placed = await self._wait.place(avoided)
        if placed is None and len(avoided) > len(tried):
            placed = await self._wait.place(tried)
        if isinstance(placed, Placed):
            suspects.asked(pool, placed.endpoint, _now())
        return placed

    async def _attempt(self, endpoint: Endpoint, placed: Placed) -> None:
        """Whatever happens, the booking ends: usually earlier than here, when the engine is done."""
        means, client = self._means, self._client
        terms = means.tiers[placed.tier]
        self._attempts += 1
        try:
            if Scope.DEBUG in self._call.principal.scopes:
                client.debug_headers = [
                    (b"x-forebay-endpoint", placed.endpoint.encode()),
                    (b"x-forebay-cached-tokens", b"%d" % placed.cached),
                    (b"x-forebay-tier", terms.name.encode()),
                ]
            exchange = Exchange(
                self._wait.call,
                client,
                endpoint,
                placed,
                number=self._attempts,
                chain=self._chain,
                clock=self._clock,
                quiet_since=self._wait.quiet_since,
                router=means.router,
                spool=means.spool,
                untold=means.untold,
                terms=terms,
                checkpoint_every=means.checkpoint_every,
            )
        except BaseException:
            means.router.ended(placed.booking, Outcome())
            raise
        means.live[placed.booking] = exchange
        if placed.booking in means.early:
            exchange.take(upstream_errors.preempted())
        try:
            await exchange.run()
        except ApiError as error:
            if self._chain.cut_short and error.status < 500:  # it is not the tenant's own request that is refused
                raise self._lost("refused") from error
            raise
        finally:
            if exchange.hung and not client.left and self._call.pool.has(endpoint):
                means.suspects.add(self._call.pool.name, placed.endpoint, _now(), silent=True)
            self._wait.quiet_since = exchange.written_at
            del means.live[placed.booking]


def _streams_one(call: Call) -> bool:
    inference = call.inference
    return inference.stream and inference.n * inference.prompts == 1


def _why(retry: TryElsewhere) -> str:
    if not retry.moved:
        return "died"
    return "preempted" if retry.error.code == "preempted" else "drained"


def _now() -> float:
    return asyncio.get_running_loop().time()
