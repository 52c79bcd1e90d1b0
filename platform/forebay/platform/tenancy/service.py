"""Tenants, projects and keys in Postgres: what the admin API and the CLI can do.

Every change takes one advisory lock first, the one that the change feed's trigger takes: changes are rare, and this
way they cannot deadlock. Refusals are ApiErrors, and so is a database that is away (503).
"""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Row, Update, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.metering import Ledger
from forebay.platform.errors import ApiError
from forebay.platform.limits.records import LimitRecords, inherit
from forebay.platform.offered import Offered
from forebay.platform.stores.database import reachable
from forebay.platform.tenancy import export, queries, validate
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.keys import Kind, generate, public_part
from forebay.platform.tenancy.records import IssuedKey, Key, Page, Project, Tenant
from forebay.platform.tenancy.tables import api_keys, projects, tenants

_LOCK = text("SELECT pg_advisory_xact_lock(7378413942531512066)")
_NOW = text("SELECT extract(epoch FROM clock_timestamp())::float8")


class Tenancy:
    def __init__(self, engine: AsyncEngine, hasher: Hasher, offered: Offered = Offered()) -> None:  # noqa: B008 - frozen
        self._engine = engine
        self._hasher = hasher
        self.offered = offered
        self._ledger = Ledger(engine)
        self.limits = LimitRecords(engine, offered)

    # Tenants

    async def create_tenant(self, name: str, weight: float = 1.0) -> Tenant:
        values = {
            "id": queries.new_id("ten_"),
            "name": _tenant_name(name),
            "status": "active",
            "weight": validate.weight(weight),
        }
        async with self._change("tenant") as (db, _):
            row = (await db.execute(insert(tenants).values(values).returning(tenants))).one()
        return queries.tenant(row)

    async def tenants(self, page: Page | None = None, *, deleted: bool = False) -> list[Tenant]:
        statement = queries.TENANTS if deleted else queries.TENANTS.where(tenants.c.status != "deleted")
        async with self._read() as db:
            return [queries.tenant(row) for row in await db.execute(queries.page(statement, tenants, page or Page()))]

    async def tenant(self, tenant_id: str) -> Tenant:
        async with self._read() as db:
            return queries.tenant(await _tenant(db, tenant_id))

    async def find_tenant(self, reference: str) -> Tenant:
        """By id, or by name among those not deleted."""
        by = tenants.c.id if reference.startswith("ten_") else tenants.c.name
        if not reference.isprintable():
            raise validate.not_found("tenant", reference)
        async with self._read() as db:
            row = (await db.execute(queries.TENANTS.where(by == reference))).one_or_none()
        if row is None:
            raise validate.not_found("tenant", reference)
        return queries.tenant(row)

    async def set_weight(self, tenant_id: str, weight: float) -> Tenant:
        """How much it is served beside others. In force everywhere within a second."""
        values = {"weight": validate.weight(weight)}
        async with self._change("tenant") as (db, _):
            await _tenant(db, tenant_id, usable=True)
            return await _one_tenant(db, tenant_id, values)

    async def suspend_tenant(self, tenant_id: str) -> Tenant:
        """Its keys are refused with 403 until it is resumed. Suspending twice is suspending once."""
        return await self._set_status(tenant_id, "suspended")

    async def resume_tenant(self, tenant_id: str) -> Tenant:
        return await self._set_status(tenant_id, "active")

    async def delete_tenant(self, tenant_id: str) -> Tenant:
        """Revoke its keys and erase every name. Ids stay, because the ledger refers to them. Not to be undone."""
        owned = select(projects.c.id).where(projects.c.tenant_id == tenant_id)
        async with self._change("tenant") as (db, now):
            row = await _tenant(db, tenant_id)
            if row.status == "deleted":
                return queries.tenant(row)
            moment = queries.when(now)
            its_keys = update(api_keys).where(api_keys.c.project_id.in_(owned))
            await db.execute(its_keys.where(api_keys.c.revoked_at.is_(None)).values(revoked_at=moment))
            await db.execute(its_keys.values(name=None))
            await db.execute(update(projects).where(projects.c.tenant_id == tenant_id).values(name=None))
            return await _one_tenant(db, tenant_id, {"status": "deleted", "name": None, "deleted_at": moment})

    async def export_tenant(self, tenant_id: str) -> AsyncIterator[bytes]:
        """The pieces of one JSON document (see `export`). An unknown id raises at once."""
        async with self._read() as db:
            await db.execution_options(isolation_level="REPEATABLE READ")
            head = await export.head(db, queries.tenant(await _tenant(db, tenant_id)))
        head["limits"] = await self.limits.of(*export.owners(head))
        return export.document(head, self._ledger.records_of(tenant_id))

    async def _set_status(self, tenant_id: str, status: str) -> Tenant:
        async with self._change("tenant") as (db, now):
            row = await _tenant(db, tenant_id, usable=True)
            if row.status == status:
                return queries.tenant(row)
            suspended_at = queries.when(now) if status == "suspended" else None
            return await _one_tenant(db, tenant_id, {"status": status, "suspended_at": suspended_at})

    # Projects

    async def create_project(
        self, tenant_id: str, name: str, models: Iterable[str] | None = None, tiers: Iterable[str] | None = None
    ) -> Project:
        values = {
            "id": queries.new_id("proj_"),
            "tenant_id": tenant_id,
            "name": validate.name(name, "project"),
            "models": self.offered.project_models(models),
            "tiers": self.offered.project_tiers(tiers),
        }
        async with self._change("project") as (db, _):
            await _tenant(db, tenant_id, usable=True)
            row = (await db.execute(insert(projects).values(values).returning(projects))).one()
        return queries.project(row)

    async def projects(self, tenant_id: str, page: Page | None = None) -> list[Project]:
        statement = queries.PROJECTS.where(projects.c.tenant_id == tenant_id)
        async with self._read() as db:
            await _tenant(db, tenant_id)
            rows = await db.execute(queries.page(statement, projects, page or Page()))
            return [queries.project(row) for row in rows]

    async def project(self, project_id: str, tenant_id: str | None = None) -> Project:
        """With `tenant_id`, only if it is that tenant's; somebody else's project does not exist."""
        async with self._read() as db:
            return queries.project(await _project(db, project_id, tenant_id))

    async def find_project(self, reference: str) -> Project:
        """By id, or as `tenant/project` by their names."""
        if reference.startswith("proj_") or "/" not in reference:
            return await self.project(reference)
        tenant_name, _, name = reference.rpartition("/")
        tenant = await self.find_tenant(tenant_name)
        if not name.isprintable():
            raise validate.not_found("project", reference)
        mine = queries.PROJECTS.where(projects.c.tenant_id == tenant.id, projects.c.name == name)
        async with self._read() as db:
            row = (await db.execute(mine)).one_or_none()
        if row is None:
            raise validate.not_found("project", reference)
        return queries.project(row)

    async def set_models(
        self, project_id: str, models: Iterable[str] | None, tenant_id: str | None = None
    ) -> Project:
        """The models that the project may use; None allows all."""
        return await self.change_project(project_id, {"models": models}, tenant_id)

    async def set_tiers(self, project_id: str, tiers: Iterable[str] | None, tenant_id: str | None = None) -> Project:
        """The tiers that the project may use; None allows those that are open. In force everywhere within a second."""
        return await self.change_project(project_id, {"tiers": tiers}, tenant_id)

    async def change_project(
        self, project_id: str, changes: Mapping[str, Iterable[str] | None], tenant_id: str | None = None
    ) -> Project:
        """`changes`: of `models` and `tiers`, those that change, all at once."""
        wanted: dict[str, list[str] | None] = {}
        async with self._change("project") as (db, _):
            row = await _project(db, project_id, tenant_id, usable=True)
            if "models" in changes:
                wanted["models"] = self.offered.project_models(changes["models"], row.models)
            if "tiers" in changes:
                wanted["tiers"] = self.offered.project_tiers(changes["tiers"], row.tiers)
            if wanted:
                statement = update(projects).where(projects.c.id == project_id).values(wanted)
                row = (await db.execute(statement.returning(projects))).one()
            return queries.project(row)

    # Keys

    async def create_key(
        self,
        project_id: str,
        *,
        tenant_id: str | None = None,
        name: str | None = None,
        scopes: Iterable[str] | None = None,
        expires_at: float | None = None,
    ) -> IssuedKey:
        async with self._change("key") as (db, now):
            await _project(db, project_id, tenant_id, usable=True)
            return await self._issue(db, "project", now, project_id=project_id, name=name, scopes=scopes,
                                     expires_at=expires_at)  # fmt: skip

    async def create_admin_key(
        self, *, name: str | None = None, scopes: Iterable[str] | None = None, expires_at: float | None = None
    ) -> IssuedKey:
        async with self._change("key") as (db, now):
            return await self._issue(db, "admin", now, name=name, scopes=scopes, expires_at=expires_at)

    async def keys(self, project_id: str, page: Page | None = None, *, tenant_id: str | None = None) -> list[Key]:
        statement = queries.KEYS.where(api_keys.c.project_id == project_id)
        async with self._read() as db:
            await _project(db, project_id, tenant_id)
            return [queries.key(row) for row in await db.execute(queries.page(statement, api_keys, page or Page()))]

    async def tenant_keys(self, tenant_id: str, page: Page | None = None) -> list[Key]:
        """The keys of all the tenant's projects."""
        statement = queries.KEYS.where(projects.c.tenant_id == tenant_id)
        async with self._read() as db:
            await _tenant(db, tenant_id)
            return [queries.key(row) for row in await db.execute(queries.page(statement, api_keys, page or Page()))]

    async def admin_keys(self, page: Page | None = None) -> list[Key]:
        statement = queries.KEYS.where(api_keys.c.kind == "admin")
        async with self._read() as db:
            return [queries.key(row) for row in await db.execute(queries.page(statement, api_keys, page or Page()))]

    async def key(
        self, key_id: str, *, project_id: str | None = None, tenant_id: str | None = None, kind: Kind | None = None
    ) -> Key:
        async with self._read() as db:
            row = await _key(db, key_id, project_id, tenant_id)
        if kind not in {None, row.kind}:
            raise validate.not_found("key", key_id)
        return queries.key(row)

    async def find_key(self, reference: str) -> Key:
        """By id, or by the public part of its text: what one has of a key that leaked."""
        prefix = public_part(reference)
        if prefix is None:
            return await self.key(reference)
        async with self._read() as db:
            row = (await db.execute(queries.KEYS.where(api_keys.c.prefix == prefix))).one_or_none()
        if row is None:
            raise validate.not_found("key", reference)
        return queries.key(row)

    async def revoke_key(self, key_id: str, *, project_id: str | None = None, tenant_id: str | None = None) -> Key:
        """Refused everywhere within a second. Revoking twice keeps the first time."""
        async with self._change("key") as (db, now):
            row = await _key(db, key_id, project_id, tenant_id)
            if row.revoked_at is None:
                await db.execute(_update_key(key_id).values(revoked_at=queries.when(now)))
            return queries.key(await _key(db, key_id))

    async def rotate_key(
        self,
        key_id: str,
        *,
        grace: float = 0.0,
        expires_at: float | None = None,
        project_id: str | None = None,
        tenant_id: str | None = None,
    ) -> IssuedKey:
        """A new key with the old one's name, scopes and limits. The old one works for `grace` more seconds, never
        longer than it would have. Without `expires_at`, a key that expires is replaced by one of the same lifetime."""
        validate.grace(grace)
        async with self._change("key") as (db, now):
            old = await _key(db, key_id, project_id, tenant_id)
            if old.revoked_at or old.expired:
                raise validate.conflict("key_not_active", "a key that is revoked or expired cannot be rotated")
            if old.replaced_by:
                raise validate.conflict("key_already_rotated", f"this key was already replaced by {old.replaced_by}")
            if old.tenant_id is not None:
                await _tenant(db, old.tenant_id, usable=True)
            if expires_at is None and old.expires_at is not None:
                expires_at = now + (old.expires_at - old.created_at).total_seconds()
            issued = await self._issue(db, old.kind, now, project_id=old.project_id, name=old.name,
                                       scopes=old.scopes, expires_at=expires_at)  # fmt: skip
            end = min(queries.when(now + grace), old.expires_at or queries.when(now + grace))
            retired = {"expires_at": end} if grace else {"revoked_at": end}
            await db.execute(_update_key(key_id).values(replaced_by=issued.key.id, **retired))
            await inherit(db, key_id, issued.key.id)
            return issued

    async def _issue(
        self,
        db: AsyncConnection,
        kind: Kind,
        now: float,
        *,
        project_id: str | None = None,
        name: str | None = None,
        scopes: Iterable[str] | None = None,
        expires_at: float | None = None,
    ) -> IssuedKey:
        secret, prefix = generate(kind)
        pepper_id, digest = self._hasher.hash(secret.encode())
        expiry = validate.expiry(expires_at, now)
        values = {
            "id": queries.new_id("key_"),
            "kind": kind,
            "project_id": project_id,
            "name": None if name is None else validate.name(name, "key"),
            "prefix": prefix,
            "hash": digest,
            "pepper_id": pepper_id,
            "scopes": validate.scopes(kind, scopes),
            "expires_at": None if expiry is None else queries.when(expiry),
        }
        await db.execute(insert(api_keys).values(values))
        return IssuedKey(queries.key(await _key(db, str(values["id"]))), secret)

    @asynccontextmanager
    async def _read(self) -> AsyncIterator[AsyncConnection]:
        with reachable():
            async with self._engine.connect() as db:
                yield db

    @asynccontextmanager
    async def _change(self, what: str) -> AsyncIterator[tuple[AsyncConnection, float]]:
        """A transaction alone in changing tenancy, and the database's time in it."""
        with reachable():
            try:
                async with self._engine.begin() as db:
                    await db.execute(_LOCK)
                    yield db, (await db.execute(_NOW)).scalar_one()
            except IntegrityError as error:
                if "_name" not in str(error.orig):
                    raise
                raise validate.conflict("name_taken", f"another {what} already has this name", param="name") from None


def _tenant_name(name: str) -> str:
    if name.startswith("ten_"):
        raise ApiError(400, "invalid_request", "a tenant's name may not look like an id (ten_…)", param="name")
    return validate.name(name, "tenant")


def _update_key(key_id: str) -> Update:
    return update(api_keys).where(api_keys.c.id == key_id)


async def _tenant(db: AsyncConnection, tenant_id: str, *, usable: bool = False) -> Row[Any]:
    validate.identifier(tenant_id, "tenant")
    row = (await db.execute(queries.TENANTS.where(tenants.c.id == tenant_id))).one_or_none()
    if row is None:
        raise validate.not_found("tenant", tenant_id)
    if usable and row.status == "deleted":
        raise validate.conflict("tenant_deleted", f"tenant {tenant_id!r} was deleted")
    return row


async def _one_tenant(db: AsyncConnection, tenant_id: str, values: dict[str, Any]) -> Tenant:
    statement = update(tenants).where(tenants.c.id == tenant_id).values(values).returning(tenants)
    return queries.tenant((await db.execute(statement)).one())


async def _project(
    db: AsyncConnection, project_id: str, tenant_id: str | None = None, *, usable: bool = False
) -> Row[Any]:
    validate.identifier(project_id, "project")
    row = (await db.execute(queries.PROJECTS.where(projects.c.id == project_id))).one_or_none()
    if row is None or tenant_id not in {None, row.tenant_id}:
        raise validate.not_found("project", project_id)
    if usable:
        await _tenant(db, row.tenant_id, usable=True)
    return row


async def _key(
    db: AsyncConnection, key_id: str, project_id: str | None = None, tenant_id: str | None = None
) -> Row[Any]:
    validate.identifier(key_id, "key")
    row = (await db.execute(queries.KEYS.where(api_keys.c.id == key_id))).one_or_none()
    if row is None or project_id not in {None, row.project_id} or tenant_id not in {None, row.tenant_id}:
        raise validate.not_found("key", key_id)
    return row
