"""The front door put together from its configuration, started in order and stopped in the reverse of it."""

import asyncio
import contextlib
import logging
import os
import socket
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Ledger, Shipper, Spool
from forebay.platform.api.inference import Inferences
from forebay.platform.catalogue import Catalogue, Entry, prices_of
from forebay.platform.config.model import Config, Endpoint
from forebay.platform.config.secrets import secrets_of
from forebay.platform.relay.relay import Relay
from forebay.platform.stores import database, valkey
from forebay.platform.stores.contact import first_contact
from forebay.platform.stores.daemon import StoreError
from forebay.platform.stores.health import StoreHealth
from forebay.platform.stores.schema import migrate
from forebay.platform.tasks import background, end
from forebay.platform.tenancy.auth import Authenticator
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.salt import Salter
from forebay.platform.tenancy.service import Tenancy
from forebay.router import EndpointSpec, Pool, Watcher

log = logging.getLogger(__name__)

SHIP_AT_END_S = 5.0  # what is not shipped by then waits in the spool for the next start


class Service:
    """Everything a front door holds while it runs. Build it with `running`."""

    def __init__(
        self,
        config: Config,
        *,
        engine: AsyncEngine,
        pools: list[Pool],
        catalogue: Catalogue,
        spool: Spool,
        auth: Authenticator,
        tenancy: Tenancy,
        ledger: Ledger,
        inferences: Inferences,
        stores: StoreHealth,
    ) -> None:
        self.config = config
        self.engine = engine
        self.pools = pools
        self.catalogue = catalogue
        self.spool = spool
        self.auth = auth
        self.tenancy = tenancy
        self.ledger = ledger
        self.inferences = inferences
        self.stores = stores

    @property
    def draining(self) -> bool:
        return self.inferences.gate.draining

    async def drain(self) -> None:
        """Take no new request, wait for those in flight, and end what is left at the deadline with an error frame."""
        self.inferences.gate.draining = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.server.drain_timeout):
                await self.inferences.gate.idle.wait()
        left = set(self.inferences.tasks)
        for task in left:
            task.cancel()
        if left:
            log.warning("%d requests did not end within the drain timeout and were cut", len(left))
            await asyncio.wait(left, timeout=10.0)


@asynccontextmanager
async def running(config: Config, *, postgres_url: str, valkey_url: str) -> AsyncIterator[Service]:
    """A started front door. Waits for Postgres, since a first start needs its keys and its schema."""
    state = Path(config.stores.state_dir)
    async with AsyncExitStack() as stack:
        engine = database.create_engine(postgres_url)
        stack.push_async_callback(engine.dispose)
        cache = valkey.create_client(valkey_url)
        stack.push_async_callback(cache.aclose)
        await first_contact(engine)
        await migrate(engine)
        ledger = Ledger(engine)
        await ledger.register_prices(prices_of(config))

        spool = await _started(Spool(state / "spool" / spool_name(), config.stores.spool_limit_bytes))
        stack.push_async_callback(spool.stop)
        shipper = Shipper(spool, ledger)
        stack.push_async_callback(end, background("shipper", shipper.run))
        stack.push_async_callback(shipper.drain, SHIP_AT_END_S)

        hasher = Hasher(secrets_of(config, "key-hash"))
        lookups = database.create_engine(postgres_url, name="forebay-auth")  # strangers' keys wait apart from the rest
        stack.push_async_callback(lookups.dispose)
        auth = Authenticator(lookups, hasher, staleness=config.stores.key_cache_staleness)
        stack.push_async_callback(end, background("key changes", auth.run))

        pools = build_pools(config)
        watcher = Watcher(pools)
        stack.callback(watcher.close)
        stack.push_async_callback(end, background("endpoints", watcher.run))

        stores = StoreHealth({"postgres": lambda: database.ping(engine), "valkey": lambda: valkey.ping(cache)})
        await stores.check()
        stack.push_async_callback(end, background("stores", stores.run))

        catalogue = build_catalogue(config, pools)
        inferences = Inferences(
            auth=auth,
            catalogue=catalogue,
            spool=spool,
            server=config.server,
            relay=Relay(spool, config.timeouts, checkpoint_every=config.stores.checkpoint_every),
            salter=Salter(secrets_of(config, "cache-salt")[0][1]),
        )
        stack.push_async_callback(end, background("stalled tenants", inferences.sweep))
        yield Service(
            config,
            engine=engine,
            pools=pools,
            catalogue=catalogue,
            spool=spool,
            auth=auth,
            tenancy=Tenancy(engine, hasher),
            ledger=ledger,
            inferences=inferences,
            stores=stores,
        )


def build_pools(config: Config) -> list[Pool]:
    return [
        Pool(
            pool.name,
            [_spec(endpoint, config.served_model(pool, endpoint)) for endpoint in pool.endpoints],
            connect_timeout=config.timeouts.connect,
        )
        for pool in config.pools
    ]


def build_catalogue(config: Config, pools: list[Pool]) -> Catalogue:
    by_name = {pool.name: pool for pool in pools}
    prices = prices_of(config)
    return Catalogue(
        [
            Entry(model, by_name[model.pool], tuple(price for price in prices if price.model == model.name))
            for model in config.models
        ]
    )


def spool_name() -> str:
    """One spool a host (and replica): the same after a restart, so that what it held is found again."""
    return os.environ.get("FOREBAY_REPLICA") or socket.gethostname()


def _spec(endpoint: Endpoint, served_model: str) -> EndpointSpec:
    return EndpointSpec(
        name=endpoint.called,
        url=endpoint.url,
        engine=endpoint.engine,
        served_model=served_model,
        api_key=os.environ.get(endpoint.api_key_env) if endpoint.api_key_env else None,
        priority_scheduling=endpoint.priority_scheduling,
    )


async def _started(spool: Spool) -> Spool:
    try:
        await spool.start()
    except sqlite3.Error as error:
        raise StoreError(f"{spool.directory} cannot hold the usage spool: {error}") from error
    return spool
