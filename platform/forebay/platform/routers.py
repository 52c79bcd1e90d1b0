"""The router of a process that has one, made from the configuration."""

import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from forebay.platform.config.model import Config
from forebay.platform.config.secrets import secrets_of
from forebay.platform.finding import finding
from forebay.platform.listed import specs_of
from forebay.platform.sharing.link import LoadLink
from forebay.platform.sharing.wire import channel_of
from forebay.platform.tasks import background, end
from forebay.platform.tiers import tiers_of
from forebay.platform.warm import rates
from forebay.platform.warm.kept import path_of
from forebay.platform.warm.start import keep, keeping, warming
from forebay.router import RouterService, Weights


@asynccontextmanager
async def routed(config: Config, valkey_url: str) -> AsyncIterator[RouterService]:
    """A started router, which knows what its engines hold as soon as it can. What it knows is kept for the next; what
    it has booked is shared with other front doors. Raises `StoreError`."""
    specs, file = specs_of(config), path_of(config.stores.state_dir, replica_name())
    async with AsyncExitStack() as stack:
        finder = await stack.enter_async_context(finding(config, specs))
        service = RouterService(
            finder.specs,
            weights_of(config),
            connect_timeout=config.timeouts.connect,
            blocks_per_endpoint=config.router.blocks_per_endpoint,
            tiers=tiers_of(config),
            ready_within=config.router.warm_start_timeout,
            warm=warming(config, finder.specs, file),
        )
        stack.callback(service.close)
        stack.push_async_callback(keep, service, file)
        learnt = rates.path_of(file)
        rates.load(learnt, service.core)
        stack.push_async_callback(rates.keep, service.core, learnt)
        stack.push_async_callback(end, background("rates", lambda: rates.keeping(service.core, learnt)))
        stack.push_async_callback(end, background("router", service.run))
        finder.tell(service)
        stack.push_async_callback(end, background("snapshot", lambda: keeping(service, file)))
        if config.router.share_load:
            link = LoadLink(service.core.peers, valkey_url, channel_of(config), replica_name())
            stack.push_async_callback(end, background("shared load", link.run))
        yield service


def replica_name() -> str:
    """What this front door's files are called: the same after a restart, so that they are found again."""
    return os.environ.get("FOREBAY_REPLICA") or socket.gethostname()


def weights_of(config: Config) -> Weights:
    """Of the deployment: those who share the secret that salts prefix caches agree on prefix keys."""
    return Weights(secrets_of(config, "cache-salt")[0][1])
