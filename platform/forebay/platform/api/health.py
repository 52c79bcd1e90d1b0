"""Whether the front door lives, whether it can answer, and its metrics."""

from typing import Any

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from forebay.platform.service import Service


def report(service: Service) -> tuple[bool, dict[str, Any]]:
    """Ready, and every component as it is.

    A store that is away degrades the service (known keys are honoured, usage waits in the spool), so it does not end
    readiness: taking every replica out at once would turn a degraded service into an outage.
    """
    stores = {
        name: {"status": "up" if s.up else "down", "since": s.since, **({"error": s.error} if s.error else {})}
        for name, s in service.stores.states.items()
    }
    pools = {
        pool.name: {
            endpoint.name: {"status": endpoint.health.value, **({"reason": endpoint.reason} if endpoint.reason else {})}
            for endpoint in pool.endpoints.values()
        }
        for pool in service.pools
    }
    answering = any(pool.available for pool in service.pools) or not service.pools
    ready = service.spool.accepting and not service.draining and answering
    well = (
        ready
        and all(s.up for s in service.stores.states.values())
        and all(endpoint.available for pool in service.pools for endpoint in pool.endpoints.values())
    )
    return ready, {
        "status": "ok" if well else "degraded" if ready else "unavailable",
        "draining": service.draining,
        "stores": stores,
        "spool": {
            "status": "accepting" if service.spool.accepting else "refusing",
            "unshipped": service.spool.unshipped,
        },
        "pools": pools,
    }


class HealthController(Controller):
    """`/health` is 200 while the process can speak; `/ready` is 503 while it should get no traffic."""

    @get("/health", sync_to_thread=False)
    def health(self, service: NamedDependency[Service]) -> dict[str, Any]:
        return report(service)[1]

    @get("/ready", sync_to_thread=False)
    def ready(self, service: NamedDependency[Service]) -> Response[dict[str, Any]]:
        ready, body = report(service)
        return Response(body, status_code=200 if ready else 503, headers=None if ready else {"retry-after": "1"})

    @get("/metrics", sync_to_thread=False)
    def metrics(self) -> Response[bytes]:
        return Response(generate_latest(), headers={"content-type": CONTENT_TYPE_LATEST})
