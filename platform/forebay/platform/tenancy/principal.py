"""Who is calling: the outcome of authentication, and all that later steps may know about identity."""

from enum import StrEnum

from msgspec import Struct

from forebay.metering import Price
from forebay.platform.limits.rules import Limit


class Scope(StrEnum):
    INFERENCE = "inference"
    USAGE_READ = "usage.read"
    DEBUG = "debug"  # may see the endpoint that served a request
    ADMIN = "admin"  # the admin API; never together with inference


class Principal(Struct, frozen=True):
    """A key that authenticated. `tenant_id` and `project_id` are empty for admin keys. `models` None means all,
    `tiers` None those that are open; `expires_at` is Unix seconds; `weight` is its tenant's."""

    key_id: str
    tenant_id: str
    project_id: str
    scopes: frozenset[Scope]
    models: frozenset[str] | None = None
    expires_at: float | None = None
    tiers: frozenset[str] | None = None
    weight: float = 1.0
    limits: tuple[Limit, ...] = ()  # its own, its project's and its tenant's, in this order
    prices: tuple[Price, ...] = ()  # its tenant's overrides that are in force or will be
