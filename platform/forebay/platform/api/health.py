"""Whether the front door lives, whether it can answer, and its metrics. Any of its workers answers for all of it."""

import math
import time
from typing import Any

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from prometheus_client import CONTENT_TYPE_LATEST

from forebay.platform.service import Service
from forebay.platform.sharing.report import is_well, of_load
from forebay.platform.workers import gathered
from forebay.platform.workers.view import Status
from forebay.router import EndpointState, Following


def report(service: Service) -> tuple[bool, dict[str, Any]]:
    """Whether this process is ready, and every component as it is.

    A store that is away degrades the service (known keys are honoured, usage waits in the spool), so it does not end
    readiness: taking every replica out at once would turn a degraded service into an outage.
    """
    stores = {
        name: {"status": "up" if s.up else "down", "since": s.since, **({"error": s.error} if s.error else {})}
        for name, s in service.stores.states.items()
    }
    endpoints = {pool.name: service.router.states(pool.name) for pool in service.pools}
    every = [state for states in endpoints.values() for state in states.values()]
    answering = any(state.open for state in every) or not service.pools
    ready = service.spool.accepting and not service.draining and answering and service.routes
    readable = all(state.events is not Following.UNDECODABLE for state in every)
    answers = all(state.available or state.shut for state in every)
    sharing = of_load(service.routing.core.peers) if service.routing is not None else None
    stored = all(s.up for s in service.stores.states.values())
    well = ready and stored and service.limiter.link.shared and answers and readable and is_well(sharing)
    found = service.routing.discovery() if service.routing is not None else {}
    return ready, {
        "status": "ok" if well else "degraded" if ready else "unavailable",
        "draining": service.draining,
        "stores": stores,
        "spool": {
            "status": "accepting" if service.spool.accepting else "refusing",
            "unshipped": service.spool.unshipped,
        },
        "pools": {pool: {name: _endpoint(s) for name, s in states.items()} for pool, states in endpoints.items()},
        **({"waiting": service.routing.waiting} if service.routing is not None else {}),
        **({"load_sharing": sharing} if sharing else {}),
        "limits": service.limiter.report(),
        **({"discovery": found} if found else {}),
        "prompts": service.inferences.prompts.report(),
    }


def _endpoint(state: EndpointState) -> dict[str, str | int | bool]:
    reason = {"reason": state.reason} if state.reason else {}
    events = {} if state.events is Following.NONE else {"events": state.events.value}
    group = {name: value for name, value in msgspec.structs.asdict(state.group).items() if value not in ("", "unified")}
    shut: dict[str, str | bool] = {"unused": state.shut} if state.shut else {}
    if state.draining:
        shut = {"draining": state.draining, "drained": not state.in_flight}
    back = {"back_in_s": math.ceil(left)} if (left := state.back_at - time.monotonic()) > 0 else {}
    return {"status": state.health.value, **reason, **back, **shut, **events, **group}


class HealthController(Controller):
    """`/health` is 200 while the process can speak; `/ready` is 503 while it should get no traffic."""

    @get("/health")
    async def health(self, service: NamedDependency[Service]) -> dict[str, Any]:
        return (await _whole(service))[1]

    @get("/ready")
    async def ready(self, service: NamedDependency[Service]) -> Response[dict[str, Any]]:
        ready, body = await _whole(service)
        return Response(body, status_code=200 if ready else 503, headers=None if ready else {"retry-after": "1"})

    @get("/metrics")
    async def metrics(self, service: NamedDependency[Service]) -> Response[bytes]:
        text = await (service.seat.view.metrics() if service.seat else gathered.own())
        return Response(text, headers={"content-type": CONTENT_TYPE_LATEST})


async def _whole(service: Service) -> tuple[bool, dict[str, Any]]:
    """Of the front door, all its processes."""
    ready, body = report(service)
    return await service.seat.view.report(Status(ready, body)) if service.seat else (ready, body)
