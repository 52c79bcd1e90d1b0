"""`/admin/v1`: tenants, projects and keys, for holders of an admin key.

Each route is one call of `Tenancy`. The guard looks at the key before the body is read, so a stranger cannot make us
buffer or decode anything. Lists are in order of creation: `?limit=` (100, at most 1000), `?after=<id>`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar

from litestar import Controller, Response, delete, get, patch, post
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.exceptions import ImproperlyConfiguredException
from litestar.handlers.base import BaseRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Stream
from msgspec import UNSET, Struct, UnsetType

from forebay.platform.api.admin_body import body_of
from forebay.platform.tenancy.auth import require
from forebay.platform.tenancy.principal import Scope
from forebay.platform.tenancy.records import IssuedKey, Key, Page, Project, Tenant
from forebay.platform.tenancy.service import Tenancy

T = TypeVar("T", Tenant, Project, Key)
Service = NamedDependency[Tenancy]
Id = FromPath[str]
Limit = Annotated[int, QueryParameter(ge=1, le=1000)]
After = Annotated[str | None, QueryParameter(max_length=64)]


class NewTenant(Struct, forbid_unknown_fields=True):
    name: str
    weight: float = 1.0


class TenantChange(Struct, forbid_unknown_fields=True):
    weight: float


class NewProject(Struct, forbid_unknown_fields=True):
    name: str
    models: list[str] | None = None
    tiers: list[str] | None = None


class ProjectChange(Struct, forbid_unknown_fields=True):
    """What is left out stays. `models` null allows every model, `tiers` null those that are open."""

    models: list[str] | UnsetType | None = UNSET
    tiers: list[str] | UnsetType | None = UNSET


class NewKey(Struct, forbid_unknown_fields=True):
    """`scopes` left out: `inference` for project keys, `admin` for admin keys. `expires_at`: Unix seconds."""

    name: str | None = None
    scopes: list[str] | None = None
    expires_at: float | None = None


class Rotation(Struct, forbid_unknown_fields=True):
    """The old key works for `grace_seconds` more. `expires_at` left out: the new key gets the old one's lifetime."""

    grace_seconds: float = 0.0
    expires_at: float | None = None


class Listing(Struct, Generic[T]):
    """A page in OpenAI's shape; pass `last_id` as `after` for the next one while `has_more`."""

    data: list[T]
    has_more: bool
    first_id: str | None
    last_id: str | None
    object: str = "list"


async def admins_only(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Resolve the application's `principal` dependency now rather than after the body."""
    provide = handler.resolve_dependencies().get("principal")
    if provide is None:
        raise ImproperlyConfiguredException("the admin API needs the dependency 'principal'")
    require(await provide(request=connection), Scope.ADMIN)


class TenantController(Controller):
    path = "/admin/v1/tenants"
    guards = (admins_only,)

    @post("/", operation_id="createTenant", dependencies=body_of(NewTenant))
    async def create(self, tenancy: Service, given: NamedDependency[NewTenant]) -> Tenant:
        return await tenancy.create_tenant(given.name, given.weight)

    @get("/", operation_id="listTenants")
    async def index(
        self, tenancy: Service, limit: Limit = 100, after: After = None, deleted: FromQuery[bool] = False
    ) -> Listing[Tenant]:
        return _page(await tenancy.tenants(Page(limit + 1, after), deleted=deleted), limit)

    @get("/{tenant_id:str}", operation_id="getTenant")
    async def show(self, tenancy: Service, tenant_id: Id) -> Tenant:
        return await tenancy.tenant(tenant_id)

    @patch("/{tenant_id:str}", operation_id="changeTenant", dependencies=body_of(TenantChange))
    async def change(self, tenancy: Service, tenant_id: Id, given: NamedDependency[TenantChange]) -> Tenant:
        return await tenancy.set_weight(tenant_id, given.weight)

    @delete("/{tenant_id:str}", operation_id="deleteTenant", status_code=200)
    async def remove(self, tenancy: Service, tenant_id: Id) -> Tenant:
        return await tenancy.delete_tenant(tenant_id)

    @post("/{tenant_id:str}/suspend", operation_id="suspendTenant", status_code=200)
    async def suspend(self, tenancy: Service, tenant_id: Id) -> Tenant:
        return await tenancy.suspend_tenant(tenant_id)

    @post("/{tenant_id:str}/resume", operation_id="resumeTenant", status_code=200)
    async def resume(self, tenancy: Service, tenant_id: Id) -> Tenant:
        return await tenancy.resume_tenant(tenant_id)

    @get("/{tenant_id:str}/export", operation_id="exportTenant")
    async def export(self, tenancy: Service, tenant_id: Id) -> Stream:
        headers = {"content-disposition": f'attachment; filename="{tenant_id}.json"'}
        document = await tenancy.export_tenant(tenant_id)
        return Stream(document, media_type="application/json", headers=headers)


class ProjectController(Controller):
    path = "/admin/v1/tenants/{tenant_id:str}/projects"
    guards = (admins_only,)

    @post("/", operation_id="createProject", dependencies=body_of(NewProject))
    async def create(self, tenancy: Service, tenant_id: Id, given: NamedDependency[NewProject]) -> Project:
        return await tenancy.create_project(tenant_id, given.name, given.models, given.tiers)

    @get("/", operation_id="listProjects")
    async def index(
        self, tenancy: Service, tenant_id: Id, limit: Limit = 100, after: After = None
    ) -> Listing[Project]:
        return _page(await tenancy.projects(tenant_id, Page(limit + 1, after)), limit)

    @get("/{project_id:str}", operation_id="getProject")
    async def show(self, tenancy: Service, tenant_id: Id, project_id: Id) -> Project:
        return await tenancy.project(project_id, tenant_id)

    @patch("/{project_id:str}", operation_id="changeProject", dependencies=body_of(ProjectChange))
    async def change(
        self, tenancy: Service, tenant_id: Id, project_id: Id, given: NamedDependency[ProjectChange]
    ) -> Project:
        asked = {"models": given.models, "tiers": given.tiers}
        changes = {name: value for name, value in asked.items() if value is not UNSET}
        return await tenancy.change_project(project_id, changes, tenant_id)


class KeyController(Controller):
    """Keys of a project. The answer to create and rotate is the only place where a key's text appears."""

    path = "/admin/v1/tenants/{tenant_id:str}/projects/{project_id:str}/keys"
    guards = (admins_only,)

    @post("/", operation_id="createKey", dependencies=body_of(NewKey))
    async def create(
        self, tenancy: Service, tenant_id: Id, project_id: Id, given: NamedDependency[NewKey]
    ) -> Response[IssuedKey]:
        return _once(
            await tenancy.create_key(
                project_id, tenant_id=tenant_id, name=given.name, scopes=given.scopes, expires_at=given.expires_at
            )
        )

    @get("/", operation_id="listKeys")
    async def index(
        self, tenancy: Service, tenant_id: Id, project_id: Id, limit: Limit = 100, after: After = None
    ) -> Listing[Key]:
        return _page(await tenancy.keys(project_id, Page(limit + 1, after), tenant_id=tenant_id), limit)

    @get("/{key_id:str}", operation_id="getKey")
    async def show(self, tenancy: Service, tenant_id: Id, project_id: Id, key_id: Id) -> Key:
        return await tenancy.key(key_id, project_id=project_id, tenant_id=tenant_id)

    @delete("/{key_id:str}", operation_id="revokeKey", status_code=200)
    async def revoke(self, tenancy: Service, tenant_id: Id, project_id: Id, key_id: Id) -> Key:
        return await tenancy.revoke_key(key_id, project_id=project_id, tenant_id=tenant_id)

    @post("/{key_id:str}/rotate", operation_id="rotateKey", dependencies=body_of(Rotation))
    async def rotate(
        self, tenancy: Service, tenant_id: Id, project_id: Id, key_id: Id, given: NamedDependency[Rotation]
    ) -> Response[IssuedKey]:
        return _once(
            await tenancy.rotate_key(
                key_id,
                grace=given.grace_seconds,
                expires_at=given.expires_at,
                project_id=project_id,
                tenant_id=tenant_id,
            )
        )


class AdminKeyController(Controller):
    """Keys for this API."""

    path = "/admin/v1/admin_keys"
    guards = (admins_only,)

    @post("/", operation_id="createAdminKey", dependencies=body_of(NewKey))
    async def create(self, tenancy: Service, given: NamedDependency[NewKey]) -> Response[IssuedKey]:
        return _once(
            await tenancy.create_admin_key(name=given.name, scopes=given.scopes, expires_at=given.expires_at)
        )

    @get("/", operation_id="listAdminKeys")
    async def index(self, tenancy: Service, limit: Limit = 100, after: After = None) -> Listing[Key]:
        return _page(await tenancy.admin_keys(Page(limit + 1, after)), limit)

    @delete("/{key_id:str}", operation_id="revokeAdminKey", status_code=200)
    async def revoke(self, tenancy: Service, key_id: Id) -> Key:
        return await tenancy.revoke_key(await _admin_key(tenancy, key_id))

    @post("/{key_id:str}/rotate", operation_id="rotateAdminKey", dependencies=body_of(Rotation))
    async def rotate(self, tenancy: Service, key_id: Id, given: NamedDependency[Rotation]) -> Response[IssuedKey]:
        admin_key = await _admin_key(tenancy, key_id)
        return _once(await tenancy.rotate_key(admin_key, grace=given.grace_seconds, expires_at=given.expires_at))


ADMIN_CONTROLLERS = (TenantController, ProjectController, KeyController, AdminKeyController)


async def _admin_key(tenancy: Tenancy, key_id: str) -> str:
    """`key_id` if it is an admin key's: projects' keys are reached through their project only."""
    return (await tenancy.key(key_id, kind="admin")).id


def _page(found: Sequence[T], limit: int) -> Listing[T]:
    """`found` was asked for one more than `limit`, to see whether there are more."""
    shown = list(found[:limit])
    return Listing(shown, len(found) > limit, shown[0].id if shown else None, shown[-1].id if shown else None)


def _once(issued: IssuedKey) -> Response[IssuedKey]:
    """Answer with a key's text, and ask whoever is in between not to keep it."""
    return Response(issued, headers={"cache-control": "no-store"})
