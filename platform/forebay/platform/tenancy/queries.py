"""Reading tenants, projects and keys: statements, and rows turned into records."""

import os
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Table, func, select, tuple_

from forebay.platform.tenancy import validate
from forebay.platform.tenancy.records import Key, Page, Project, Tenant
from forebay.platform.tenancy.tables import api_keys, projects, tenants

KEYS = select(
    api_keys,
    projects.c.tenant_id,
    (api_keys.c.expires_at <= func.clock_timestamp()).label("expired"),
).select_from(api_keys.outerjoin(projects, projects.c.id == api_keys.c.project_id))


def new_id(start: str) -> str:
    return start + os.urandom(12).hex()


def page(statement: Select[Any], table: Table, wanted: Page) -> Select[Any]:
    """`statement` cut to the page, in order of creation."""
    order = (table.c.created_at, table.c.id)
    if wanted.after is not None:
        validate.identifier(wanted.after, "entry")
        last = select(table.c.created_at).where(table.c.id == wanted.after).scalar_subquery()
        after: ColumnElement[bool] = tuple_(*order) > tuple_(last, wanted.after)
        statement = statement.where(after)
    return statement.order_by(*order).limit(validate.limit(wanted.limit))


def when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def tenant(row: Row[Any]) -> Tenant:
    return Tenant(row.id, row.name, row.status, row.created_at.timestamp(), row.weight)


def project(row: Row[Any]) -> Project:
    models = None if row.models is None else list(row.models)
    tiers = None if row.tiers is None else list(row.tiers)
    return Project(row.id, row.tenant_id, row.name, models, row.created_at.timestamp(), tiers)


def key(row: Row[Any]) -> Key:
    """From a row of KEYS."""
    return Key(
        id=row.id,
        kind=row.kind,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        name=row.name,
        prefix=row.prefix,
        scopes=list(row.scopes),
        status="revoked" if row.revoked_at else "expired" if row.expired else "active",
        created_at=row.created_at.timestamp(),
        expires_at=_seconds(row.expires_at),
        revoked_at=_seconds(row.revoked_at),
        replaced_by=row.replaced_by,
    )


TENANTS = select(tenants)
PROJECTS = select(projects)
