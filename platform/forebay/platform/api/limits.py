"""`…/limits` of a tenant, a project or a key, under `/admin/v1`: what they may use, and of which model.

A PUT is in place of what there was for that model (`?model=`; without it, for all models together). A change reaches
every front door within a second.
"""

from typing import Annotated, Any

from litestar import Controller, delete, get, put
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers.base import BaseRouteHandler
from litestar.params import QueryParameter
from msgspec import Struct

from forebay.platform.api.admin import Id, Service, admins_only
from forebay.platform.api.admin_body import body_of
from forebay.platform.errors import invalid
from forebay.platform.limits.rules import ALL_MODELS, Level, Limit, Limits
from forebay.platform.tenancy import validate
from forebay.platform.tenancy.service import Tenancy

Model = Annotated[str, QueryParameter(max_length=128)]
Cleared = Annotated[str | None, QueryParameter(max_length=128)]


class Shown(Struct, frozen=True):
    """`model` null: all models together. A limit that is null is none."""

    level: Level
    id: str
    model: str | None
    limits: Limits


class All(Struct, frozen=True):
    data: list[Shown]
    object: str = "list"


async def one_model(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """A misspelt `model` would change what holds for all of them."""
    names = [name for name, _ in connection.query_params.multi_items()]
    reads = connection.scope.get("method") == "GET"
    if names and (reads or names != ["model"]):
        takes = "This takes none." if reads else "This takes one, model, and once."
        problem = f"Unknown parameters: {', '.join(names)[:64]}. {takes}"
        raise invalid(problem, param=names[-1][:64], code="unknown_parameter")


class TenantLimits(Controller):
    path = "/admin/v1/tenants/{tenant_id:str}/limits"
    guards = (admins_only, one_model)

    @get("/", operation_id="getTenantLimits")
    async def show(self, tenancy: Service, tenant_id: Id) -> All:
        return await _all(tenancy, await _tenant(tenancy, tenant_id))

    @put("/", operation_id="setTenantLimits", dependencies=body_of(Limits))
    async def change(
        self, tenancy: Service, tenant_id: Id, given: NamedDependency[Limits], model: Model = ALL_MODELS
    ) -> Shown:
        owner = await _tenant(tenancy, tenant_id, usable=True)
        return shown(await tenancy.limits.set(Level.TENANT, owner, given, model))

    @delete("/", operation_id="clearTenantLimits", status_code=200)
    async def clear(self, tenancy: Service, tenant_id: Id, model: Cleared = None) -> All:
        return await _cleared(tenancy, await _tenant(tenancy, tenant_id), model)


class ProjectLimits(Controller):
    path = "/admin/v1/tenants/{tenant_id:str}/projects/{project_id:str}/limits"
    guards = (admins_only, one_model)

    @get("/", operation_id="getProjectLimits")
    async def show(self, tenancy: Service, tenant_id: Id, project_id: Id) -> All:
        return await _all(tenancy, (await tenancy.project(project_id, tenant_id)).id)

    @put("/", operation_id="setProjectLimits", dependencies=body_of(Limits))
    async def change(
        self, tenancy: Service, tenant_id: Id, project_id: Id, given: NamedDependency[Limits], model: Model = ALL_MODELS
    ) -> Shown:
        await _tenant(tenancy, tenant_id, usable=True)
        owner = (await tenancy.project(project_id, tenant_id)).id
        return shown(await tenancy.limits.set(Level.PROJECT, owner, given, model))

    @delete("/", operation_id="clearProjectLimits", status_code=200)
    async def clear(self, tenancy: Service, tenant_id: Id, project_id: Id, model: Cleared = None) -> All:
        return await _cleared(tenancy, (await tenancy.project(project_id, tenant_id)).id, model)


class KeyLimits(Controller):
    path = "/admin/v1/tenants/{tenant_id:str}/projects/{project_id:str}/keys/{key_id:str}/limits"
    guards = (admins_only, one_model)

    @get("/", operation_id="getKeyLimits")
    async def show(self, tenancy: Service, tenant_id: Id, project_id: Id, key_id: Id) -> All:
        return await _all(tenancy, await _key(tenancy, tenant_id, project_id, key_id))

    @put("/", operation_id="setKeyLimits", dependencies=body_of(Limits))
    async def change(
        self,
        tenancy: Service,
        tenant_id: Id,
        project_id: Id,
        key_id: Id,
        *,
        given: NamedDependency[Limits],
        model: Model = ALL_MODELS,
    ) -> Shown:
        await _tenant(tenancy, tenant_id, usable=True)
        owner = await _key(tenancy, tenant_id, project_id, key_id)
        return shown(await tenancy.limits.set(Level.KEY, owner, given, model))

    @delete("/", operation_id="clearKeyLimits", status_code=200)
    async def clear(
        self, tenancy: Service, tenant_id: Id, project_id: Id, key_id: Id, model: Cleared = None
    ) -> All:
        return await _cleared(tenancy, await _key(tenancy, tenant_id, project_id, key_id), model)


LIMIT_CONTROLLERS = (TenantLimits, ProjectLimits, KeyLimits)


def shown(one: Limit) -> Shown:
    return Shown(one.level, one.owner, one.model or None, one.limits)


async def _all(tenancy: Tenancy, owner: str) -> All:
    return All([shown(one) for one in await tenancy.limits.of(owner)])


async def _cleared(tenancy: Tenancy, owner: str, model: str | None) -> All:
    """What is left."""
    await tenancy.limits.clear(owner, model)
    return await _all(tenancy, owner)


async def _tenant(tenancy: Tenancy, tenant_id: str, *, usable: bool = False) -> str:
    found = await tenancy.tenant(tenant_id)
    if usable and found.status == "deleted":
        raise validate.conflict("tenant_deleted", f"tenant {tenant_id!r} was deleted")
    return found.id


async def _key(tenancy: Tenancy, tenant_id: str, project_id: str, key_id: str) -> str:
    return (await tenancy.key(key_id, project_id=project_id, tenant_id=tenant_id)).id
