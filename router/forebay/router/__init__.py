"""Engines, which of them answers, and the wire to them."""

from forebay.router.adapters import Adapter, ServerFields, Usage, decode_usage
from forebay.router.endpoints import Endpoint, EndpointSpec, Health, Pool, Watcher
from forebay.router.placement import Booking, Work
from forebay.router.upstream import Connection, UpstreamError, Wake

__all__ = [
    "Adapter",
    "Booking",
    "Connection",
    "Endpoint",
    "EndpointSpec",
    "Health",
    "Pool",
    "ServerFields",
    "UpstreamError",
    "Usage",
    "Wake",
    "Watcher",
    "Work",
    "decode_usage",
]
