"""Endpoints as the configuration says them, as the router wants them."""

import os

import msgspec

from forebay.platform.config.engines import Announced, Endpoint
from forebay.platform.config.model import Config
from forebay.router import EndpointSpec, Group, Role


def specs_of(config: Config) -> dict[str, list[EndpointSpec]]:
    """The endpoints of each pool, every data-parallel rank by itself."""
    return {
        pool.name: [
            spec for endpoint in pool.endpoints for spec in ranks_of(endpoint, config.served_model(pool, endpoint))
        ]
        for pool in config.pools
    }


def ranks_of(endpoint: Endpoint, served_model: str) -> list[EndpointSpec]:
    """One endpoint, or each of its data-parallel ranks."""
    ranks = endpoint.data_parallel_ranks
    return [
        EndpointSpec(
            name=endpoint.called if ranks == 1 else f"{endpoint.called}/{rank}",
            url=endpoint.url,
            engine=endpoint.engine,
            served_model=served_model,
            api_key=os.environ.get(endpoint.api_key_env) if endpoint.api_key_env else None,
            priority_scheduling=endpoint.priority_scheduling,
            events=_of_rank(endpoint.kv_events, rank),
            replay=_of_rank(endpoint.kv_replay, rank),
            rank=None if ranks == 1 else rank,
            group=Group(Role(endpoint.role), endpoint.revision, endpoint.accelerator),
        )
        for rank in range(ranks)
    ]


def announced_ranks(engine: Announced, instance: str, served_model: str) -> list[EndpointSpec]:
    """The same of an engine that announced itself."""
    draining = "its file says drain" if engine.drain else ""
    ranks = ranks_of(engine, served_model)
    return [msgspec.structs.replace(spec, instance=instance, draining=draining) for spec in ranks]


def _of_rank(address: str | None, rank: int) -> str | None:
    """Where a rank publishes: at the port of rank 0 plus its number."""
    if address is None or not rank:
        return address
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + rank}"
