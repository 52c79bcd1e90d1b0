"""The front door put together from its configuration, started in order and stopped in the reverse of it."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Books, Ledger, PriceConflictError, Pricing, Shipper, Spool, SpoolInUseError, Statements
from forebay.metering.stripe import StripeMissingError
from forebay.platform.api.agreement import Agreement
from forebay.platform.api.engine_tokens import EngineTokens
from forebay.platform.api.inference import Inferences
from forebay.platform.api.prompts import Prompts
from forebay.platform.catalogue import Catalogue, Entry, prices_of
from forebay.platform.config.faults import ConfigError
from forebay.platform.config.model import Config
from forebay.platform.config.secrets import secrets_of
from forebay.platform.finding import ClusterError
from forebay.platform.limits.limiter import Limiter
from forebay.platform.listed import specs_of
from forebay.platform.offered import offered_of
from forebay.platform.readers import Readers, load_readers
from forebay.platform.relay.metrics import ATTEMPTS_FAILED
from forebay.platform.relay.relay import Relay
from forebay.platform.routers import replica_name, routed, weights_of
from forebay.platform.sharing.wire import deployment
from forebay.platform.stores import database, valkey
from forebay.platform.stores.contact import first_contact
from forebay.platform.stores.daemon import StoreError
from forebay.platform.stores.health import StoreHealth
from forebay.platform.stores.schema import migrate
from forebay.platform.stripe import Billing, billing
from forebay.platform.tasks import background, end
from forebay.platform.tenancy.auth import Authenticator
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.salt import Salter
from forebay.platform.tenancy.service import Tenancy
from forebay.platform.tiers import TierTable, table_of
from forebay.platform.warm.serving import Snapshots, opened, pulled
from forebay.platform.workers.view import View
from forebay.router import EndpointSpec, Memory, Pool, RemoteRouter, Router, RouterService, Ticker

log = logging.getLogger(__name__)

SHIP_AT_END_S = 5.0  # what is not shipped by then waits in the spool for the next start
SPOOL_WITHIN_S = 5.0  # a worker that starts may be adopting the spool of one that starts beside it
SETTLE_S = 5.0
CUT_S = 10.0  # seconds for requests that are cut to end their streams and records
# Of a start, told in one line.
FAULTS = (
    ConfigError, StoreError, PriceConflictError, SpoolInUseError, ClusterError, StripeMissingError, OSError
)  # fmt: skip


class Seat(Struct, frozen=True):
    """A worker's place in a front door of `of` workers: `name` is its number."""

    name: str
    of: int
    router: RemoteRouter
    view: View


class Service:
    """Everything a front door holds while it runs. Build it with `running`. `routing` is None, and `seat` is set, in a
    worker, whose router is in another process."""

    def __init__(
        self,
        config: Config,
        *,
        engine: AsyncEngine,
        pools: list[Pool],
        router: Router,
        routing: RouterService | None,
        seat: Seat | None,
        catalogue: Catalogue,
        spool: Spool,
        auth: Authenticator,
        tenancy: Tenancy,
        ledger: Ledger,
        pricing: Pricing,
        statements: Statements,
        inferences: Inferences,
        limiter: Limiter,
        stores: StoreHealth,
        stripe: Billing | None,
    ) -> None:
        self.config = config
        self.engine = engine
        self.pools = pools
        self.router = router
        self.routing = routing
        self._snapshots = Snapshots(routing) if routing is not None else None
        self.seat = seat
        self.catalogue = catalogue
        self.spool = spool
        self.auth = auth
        self.tenancy = tenancy
        self.ledger = ledger
        self.pricing = pricing
        self.statements = statements
        self.books = Books(engine, closings=[statements])
        self.inferences = inferences
        self.limiter = limiter
        self.stores = stores
        self.stripe = stripe

    @property
    def draining(self) -> bool:
        return self.inferences.gate.draining

    @property
    def routes(self) -> bool:
        """Whether the router is there, and knows what endpoints hold as far as it will soon."""
        return self.routing.ready if self.routing is not None else self.seat is not None and self.seat.router.connected

    async def snapshot(self) -> AsyncIterator[bytes]:
        """What the router knows, for a peer that starts. Raises `RouterUnavailable`."""
        if self.seat is not None:
            return await pulled(self.seat.router)
        assert self._snapshots is not None
        return await opened(self._snapshots)

    async def settle(self) -> None:
        """Wait until changes to keys are followed, without which no new key is let in. Not for long: Postgres may be
        away."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while not self.auth.feed.synchronised:  # noqa: ASYNC110 - once, for milliseconds
                    await asyncio.sleep(0.01)

    async def drain(self) -> None:
        """Take no new request, and wait for those in flight, as long as the drain timeout."""
        self.inferences.gate.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.server.drain_timeout):
                await self.inferences.gate.idle.wait()
                log.info("drained: no request is left")

    async def cut(self) -> None:
        """End what is in flight with an error frame."""
        left = set(self.inferences.tasks)
        for task in left:
            task.cancel()
        if left:
            log.warning("%d requests did not end in time and were cut", len(left))
            await asyncio.wait(left, timeout=CUT_S)


async def prepare(config: Config, postgres_url: str) -> None:
    """What is done once, however many processes serve. Waits for Postgres, since a first start needs its keys and its
    schema. Raises `StoreError`, `PriceConflictError`."""
    engine = database.create_engine(postgres_url, pool_size=1)
    try:
        await first_contact(engine)
        await migrate(engine)
        await Ledger(engine).prepare()
        await Ledger(engine).register_prices(prices_of(config))
    finally:
        await engine.dispose()


@asynccontextmanager
async def running(
    config: Config, *, postgres_url: str, valkey_url: str, seat: Seat | None = None
) -> AsyncIterator[Service]:
    """A started front door, or with a `seat` one of its workers, for which everything is prepared."""
    if seat is None:
        await prepare(config, postgres_url)
    async with AsyncExitStack() as stack:
        engine = database.create_engine(postgres_url)
        stack.push_async_callback(engine.dispose)
        ledger, hasher, tiers = Ledger(engine), Hasher(secrets_of(config, "key-hash")), table_of(config)
        spool = await _spooling(stack, config, ledger, seat)
        auth = _authenticating(stack, config, postgres_url, hasher)
        pools = _connecting(stack, config)
        routing = None if seat is not None else await stack.enter_async_context(routed(config, valkey_url))
        router: Router = seat.router if seat is not None else routing.router  # type: ignore[union-attr]
        weights, memory = weights_of(config), _memory(config)
        readers = await load_readers(config, weights, memory)
        catalogue = build_catalogue(config, pools)
        engines = EngineTokens(router)
        agreement = Agreement(readers.prompters, catalogue, engines)
        disputed = agreement.disputed
        relay = _relaying(stack, config, router, spool, tiers=tiers, readers=readers, disputed=disputed)
        roster = seat.router.roster if seat is not None else routing.roster  # type: ignore[union-attr]
        roster.listen(lambda pool, specs: _keep(pools, relay, pool, specs))
        stores = await _watching(stack, engine, valkey_url)
        limiter = await stack.enter_async_context(_limiting(config, valkey_url, workers=seat.of if seat else 1))
        stack.push_async_callback(end, background("tokenizers", agreement.run))
        inferences = Inferences(
            auth=auth,
            catalogue=catalogue,
            prompts=Prompts(readers, weights, memory, router, engines, disputed=disputed),
            router=router,
            spool=spool,
            server=config.server,
            relay=relay,
            salter=Salter(secrets_of(config, "cache-salt")[0][1]),
            tiers=tiers,
            limiter=limiter,
        )
        stack.push_async_callback(end, background("stalled tenants", inferences.sweep))
        yield Service(
            config,
            engine=engine,
            pools=pools,
            router=router,
            routing=routing,
            seat=seat,
            catalogue=catalogue,
            spool=spool,
            auth=auth,
            tenancy=Tenancy(engine, hasher, offered_of(config)),
            ledger=ledger,
            pricing=Pricing(engine, config.currency),
            statements=Statements(engine, config.currency),
            inferences=inferences,
            limiter=limiter,
            stores=stores,
            stripe=await _telling_stripe(stack, config, postgres_url, seat),
        )


async def _spooling(stack: AsyncExitStack, config: Config, ledger: Ledger, seat: Seat | None) -> Spool:
    """The spool, and who ships it: what is left at the end gets a few seconds."""
    spool = await _spool(config, seat)
    stack.push_async_callback(spool.stop)
    shipper = Shipper(spool, ledger)
    stack.push_async_callback(end, background("shipper", shipper.run))
    stack.push_async_callback(shipper.drain, SHIP_AT_END_S)
    return spool


def _authenticating(stack: AsyncExitStack, config: Config, postgres_url: str, hasher: Hasher) -> Authenticator:
    lookups = database.create_engine(postgres_url, name="forebay-auth")  # strangers' keys wait apart from the rest
    stack.push_async_callback(lookups.dispose)
    auth = Authenticator(lookups, hasher, staleness=config.stores.key_cache_staleness)
    stack.push_async_callback(end, background("key changes", auth.run))
    return auth


def _connecting(stack: AsyncExitStack, config: Config) -> list[Pool]:
    specs = specs_of(config)
    pools = [Pool(name, specs[name], connect_timeout=config.timeouts.connect) for name in specs]
    ticker = Ticker(pools)
    stack.callback(ticker.close)
    stack.push_async_callback(end, background("connections", ticker.run))
    return pools


def _relaying(
    stack: AsyncExitStack,
    config: Config,
    router: Router,
    spool: Spool,
    *,
    tiers: TierTable,
    readers: Readers,
    disputed: Collection[str],
) -> Relay:
    relay = Relay(
        router,
        spool,
        tiers,
        checkpoint_every=config.stores.checkpoint_every,
        prompters=readers.prompters,
        disputed=disputed,
        drain_grace={pool.name: pool.drain_grace for pool in config.pools},
    )
    stack.push_async_callback(relay.close)
    router.listen_evictions(relay.evict)
    return relay


async def _watching(stack: AsyncExitStack, engine: AsyncEngine, valkey_url: str) -> StoreHealth:
    cache = valkey.create_client(valkey_url)
    stack.push_async_callback(cache.aclose)
    stores = StoreHealth({"postgres": lambda: database.ping(engine), "valkey": lambda: valkey.ping(cache)})
    await stores.check()
    stack.push_async_callback(end, background("stores", stores.run))
    return stores


async def _telling_stripe(
    stack: AsyncExitStack, config: Config, postgres_url: str, seat: Seat | None
) -> Billing | None:
    """Every worker takes webhooks; one tells Stripe."""
    if config.stripe is None:
        return None
    stripe = await stack.enter_async_context(billing(config.stripe, postgres_url))
    if seat is None or seat.name == "0":
        stack.push_async_callback(end, background("stripe", stripe.run))
    return stripe


@asynccontextmanager
async def _limiting(config: Config, valkey_url: str, *, workers: int) -> AsyncIterator[Limiter]:
    limiter = Limiter(valkey_url, f"{deployment(config)}:limits", workers=workers)
    await limiter.start()
    running_limits = background("limits", limiter.run)
    try:
        yield limiter
    finally:
        await limiter.close()
        await end(running_limits)


def _keep(pools: list[Pool], relay: Relay, name: str, specs: Collection[EndpointSpec]) -> None:
    """Follow the router's endpoints."""
    relay.drain(name, specs)
    for pool in pools:
        if pool.name == name:
            for gone in pool.keep(specs):
                relay.forget(name, gone)
                ATTEMPTS_FAILED.remove_by_labels({"endpoint": gone})  # names of pods never come again


def build_catalogue(config: Config, pools: list[Pool]) -> Catalogue:
    by_name = {pool.name: pool for pool in pools}
    prices = prices_of(config)
    return Catalogue(
        [
            Entry(model, by_name[model.pool], tuple(price for price in prices if price.model == model.name))
            for model in config.models
        ]
    )


def _memory(config: Config) -> Memory:
    return Memory(config.router.prompt_memory_bytes, config.router.prompt_memory_bytes_per_project)


async def _spool(config: Config, seat: Seat | None) -> Spool:
    """This process's own, started. The bound on its size is the front door's."""
    name = f"{replica_name()}-w{seat.name}" if seat else replica_name()
    limit = config.stores.spool_limit_bytes // (seat.of if seat else 1)
    deadline = time.monotonic() + (SPOOL_WITHIN_S if seat else 0.0)
    spool = Spool(Path(config.stores.state_dir) / "spool" / name, limit)
    while True:
        try:
            await spool.start()
        except SpoolInUseError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        except sqlite3.Error as error:
            raise StoreError(f"{spool.directory} cannot hold the usage spool: {error}") from error
        else:
            return spool
