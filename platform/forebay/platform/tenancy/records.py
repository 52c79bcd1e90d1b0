"""What the admin API and the CLI show of tenants, projects and keys. Times are Unix seconds."""

from typing import Any, Literal

from msgspec import Struct

from forebay.platform.tenancy.keys import Kind
from forebay.platform.tenancy.principal import Scope


class Tenant(Struct, frozen=True):
    """`name` is null once the tenant is deleted; its id stays, for the ledger. `weight`: how much it is served beside
    others where engines are short."""

    id: str
    name: str | None
    status: Literal["active", "suspended", "deleted"]
    created_at: float
    weight: float = 1.0


class Project(Struct, frozen=True):
    """`models` null allows the whole catalogue, an empty list nothing. `tiers` null allows those that are open."""

    id: str
    tenant_id: str
    name: str | None
    models: list[str] | None
    created_at: float
    tiers: list[str] | None = None


class Key(Struct, frozen=True):
    """A key's metadata. `prefix` is the public part of its text. Admin keys have no tenant and project."""

    id: str
    kind: Kind
    tenant_id: str | None
    project_id: str | None
    name: str | None
    prefix: str
    scopes: list[Scope]
    status: Literal["active", "expired", "revoked"]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    replaced_by: str | None


class IssuedKey(Struct, frozen=True):
    """A key's only appearance: `secret` is its whole text, shown once and kept nowhere, not even in a repr."""

    key: Key
    secret: str

    def __repr__(self) -> str:
        return f"IssuedKey({self.key.id}, {self.key.prefix}-…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("key", self.key)]


class Page(Struct, frozen=True):
    """How much of a list to show: `limit` entries after the one with id `after`, oldest first."""

    limit: int = 100
    after: str | None = None
