"""Engines that are found where they run, beside those that the configuration lists."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from forebay.platform.announced import Directory, directory_of
from forebay.platform.config.engines import Kubernetes, LocalProcesses, Pool
from forebay.platform.config.model import Config
from forebay.platform.tasks import background, end
from forebay.platform.watching import Watching
from forebay.router import EndpointSpec, RouterService
from forebay.router.discovery import Cluster, ClusterError, Discovery, Labels, Report, Rules, connect
from forebay.router.discovery.cluster import own_namespace

log = logging.getLogger(__name__)

FIRST_WITHIN_S = 10.0  # that the start waits for what is found; beyond it, engines come when they are known


class Finder:
    """`specs`: the endpoints of each pool as they are known, those of the configuration first."""

    def __init__(self, listed: Mapping[str, Sequence[EndpointSpec]]) -> None:
        self.specs = {pool: tuple(specs) for pool, specs in listed.items()}
        self.discoveries: list[Discovery | Watching] = []
        self._listed = dict(self.specs)
        self._service: RouterService | None = None

    def __repr__(self) -> str:
        return f"<Finder {self.discoveries}>"

    def tell(self, service: RouterService) -> None:
        """Let it know of what is found from now on, and report to it."""
        self._service = service
        service.discovery = self.reports
        for pool, specs in self.specs.items():
            service.reconcile(pool, specs)

    def found(self, pool: str, specs: Sequence[EndpointSpec]) -> None:
        """Those of the configuration keep their names, and are not found a second time."""
        listed = self._listed[pool]
        names, urls = {spec.name for spec in listed}, {spec.url for spec in listed}
        for spec in specs:
            if spec.name in names or spec.url in urls:
                what = "name" if spec.name in names else "url"
                log.error("%s of pool %s is not used: an endpoint of its %s is configured", spec.name, pool, what)
        further = (spec for spec in specs if spec.name not in names and spec.url not in urls)
        self.specs[pool] = (*listed, *further)
        if self._service is not None:
            self._service.reconcile(pool, self.specs[pool])

    def reports(self) -> dict[str, Report]:
        """By pool, of those whose engines are found."""
        return {discovery.pool: discovery.report() for discovery in self.discoveries}


@asynccontextmanager
async def finding(config: Config, listed: Mapping[str, Sequence[EndpointSpec]]) -> AsyncIterator[Finder]:
    """A started finder, which knows what there is if that can be known soon. Raises `ClusterError`."""
    finder = Finder(listed)
    ways = [(pool, pool.discovery) for pool in config.pools if pool.discovery]
    async with AsyncExitStack() as stack:
        if any(way.kubernetes for _, way in ways):
            cluster = await asyncio.to_thread(connect)
            stack.callback(cluster.close)
        for pool, way in ways:
            if way.kubernetes:
                rules = rules_of(way.kubernetes, config.served_model(pool, way.kubernetes))
                finder.discoveries.append(_discovery(finder, pool.name, way.kubernetes, rules, cluster))
            if way.local:
                finder.discoveries.append(_watching(finder, config, pool, way.local))
        for one in finder.discoveries:
            stack.push_async_callback(end, background(f"discovery of {one.pool}", one.run))
        await _first(finder)
        yield finder


def rules_of(options: Kubernetes, served_model: str) -> Rules:
    """How pods become endpoints."""
    labels = options.pod_labels
    return Rules(
        port=options.port,
        labels=Labels(labels.role, labels.revision, labels.accelerator, labels.drain),
        engine=options.engine,
        served_model=served_model,
        scheme=options.scheme,
        api_key=os.environ.get(options.api_key_env) if options.api_key_env else None,
        priority_scheduling=options.priority_scheduling,
        events=options.kv_events_port or "",
        replay=options.kv_replay_port or "",
        ranks=options.data_parallel_ranks,
    )


def _discovery(finder: Finder, pool: str, options: Kubernetes, rules: Rules, cluster: Cluster) -> Discovery:
    namespace = options.namespace or own_namespace()
    pods = cluster.pods(namespace, options.selector or "")
    slices = cluster.slices(namespace, options.service) if options.service else None
    return Discovery(pool, rules, pods, slices, lambda specs: finder.found(pool, specs))


def _watching(finder: Finder, config: Config, pool: Pool, options: LocalProcesses) -> Watching:
    return Watching(
        pool.name,
        Directory(directory_of(config, pool, options), options.api_key_env),
        lambda engine: config.served_model(pool, engine),
        lambda specs: finder.found(pool.name, specs),
    )


async def _first(finder: Finder) -> None:
    try:
        async with asyncio.timeout(FIRST_WITHIN_S):
            for discovery in finder.discoveries:
                await discovery.first.wait()
    except TimeoutError:
        away = {pool: report.away or "no answer yet" for pool, report in finder.reports().items() if not report.synced}
        log.warning("the start goes on without the engines of pools %s, which come when they are known", away)


__all__ = ["ClusterError", "Finder", "finding", "rules_of"]
