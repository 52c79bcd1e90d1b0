"""A router's warm start: peers are asked first, since they have heard the latest, then what it wrote down itself."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from forebay.platform.config.model import Config
from forebay.platform.warm import kept
from forebay.platform.warm.access import token_of
from forebay.platform.warm.loader import Loader
from forebay.platform.warm.peer import PeerError, fetch
from forebay.platform.warm.stream import SnapshotError
from forebay.platform.warm.taken import taken
from forebay.router import EndpointSpec, RouterService

log = logging.getLogger(__name__)

KEEP_WITHIN_S = 10.0
KEEP_EVERY_S = 60.0


def warming(
    config: Config, specs: Mapping[str, Sequence[EndpointSpec]], file: Path
) -> Callable[[RouterService], Awaitable[None]]:
    """What a router does before it follows its engines. It ends within `router.warmStartTimeout`, and never fails."""
    # Only a replay proves that an engine is still the one of which a snapshot tells.
    endpoints = {(pool, spec.name) for pool in specs for spec in specs[pool] if spec.events and spec.replay}

    async def warm(service: RouterService) -> None:
        if not endpoints:
            return
        loader = Loader(service, set(endpoints))
        try:
            async with asyncio.timeout(config.router.warm_start_timeout):
                for name, source in _sources(config, file):
                    await _take(loader, source, name)
        except TimeoutError:
            log.warning("the start goes on without what %d endpoints hold: it took too long", len(loader.missing))

    return warm


async def keeping(service: RouterService, file: Path) -> None:
    """Until cancelled, now and then: a process that is killed writes nothing more, and engines repeat only their latest
    events."""
    while True:
        await asyncio.sleep(KEEP_EVERY_S)
        await keep(service, file)


async def keep(service: RouterService, file: Path) -> None:
    """Write down what is known, for the next start. Never fails: it is also the last thing that a process does."""
    if not any(follower.position() for follower in service.followers.values()):
        return
    try:
        async with asyncio.timeout(KEEP_WITHIN_S), aclosing(taken(service)) as source:
            await kept.write(file, source)
    except (OSError, TimeoutError) as error:
        log.warning("what is cached where is not kept for the next start: %s", error or "it took too long")
    except Exception:
        log.exception("what is cached where is not kept for the next start")


def _sources(config: Config, file: Path) -> "list[tuple[str, AsyncGenerator[bytes, None]]]":
    token, connect = token_of(config), config.timeouts.connect
    peers = [(f"peer {url}", fetch(url, token, connect_timeout=connect)) for url in config.router.peers]
    return [*peers, *([(str(file), kept.read(file))] if kept.is_fresh(file) else [])]


async def _take(loader: Loader, source: AsyncGenerator[bytes, None], name: str) -> None:
    async with aclosing(source):
        if not loader.missing:
            return
        try:
            await loader.take(source, name)
        except (PeerError, SnapshotError, OSError) as error:
            log.warning("%s is of no use for a warm start: %s", name, error)
