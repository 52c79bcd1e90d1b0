"""A tenant's data as one JSON document, in pieces: `{"tenant", "projects", "keys", "limits", "usage"}`."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
from sqlalchemy.ext.asyncio import AsyncConnection

from forebay.platform.tenancy import queries
from forebay.platform.tenancy.records import Tenant
from forebay.platform.tenancy.tables import api_keys, projects


async def head(db: AsyncConnection, tenant: Tenant) -> dict[str, Any]:
    """What it has: but for limits, and what it used."""
    mine = projects.c.tenant_id == tenant.id
    all_projects = await db.execute(queries.PROJECTS.where(mine).order_by(projects.c.created_at))
    all_keys = await db.execute(queries.KEYS.where(mine).order_by(api_keys.c.created_at))
    return {
        "tenant": tenant,
        "projects": [queries.project(row) for row in all_projects],
        "keys": [queries.key(row) for row in all_keys],
    }


def owners(head: dict[str, Any]) -> list[str]:
    """Ids of all that may have limits."""
    return [head["tenant"].id, *(one.id for part in ("projects", "keys") for one in head[part])]


async def document(head: dict[str, Any], usage: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    yield msgspec.json.encode(head)[:-1] + b',"usage":['
    separator = b""
    async for record in usage:
        yield separator + msgspec.json.encode(record)
        separator = b","
    yield b"]}"
