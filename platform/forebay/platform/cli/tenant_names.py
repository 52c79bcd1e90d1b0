"""Tenants by name in reports: the ledger knows ids alone, and outlives the names."""

from collections.abc import Iterable

import click
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.platform.tenancy.tables import tenants


async def ids_of(engine: AsyncEngine, references: tuple[str, ...]) -> tuple[str, ...]:
    """An id stands for itself, also of a tenant that is gone. Raises `ClickException` for an unknown name."""
    names = [reference for reference in references if not reference.startswith("ten_")]
    if not names:
        return references
    async with engine.connect() as database:
        rows = await database.execute(select(tenants.c.id, tenants.c.name).where(tenants.c.name.in_(names)))
        found = {row.name: row.id for row in rows}
    for name in names:
        if name not in found:
            raise click.ClickException(f"there is no tenant {name!r}")
    return tuple(found.get(reference, reference) for reference in references)


async def names_of(engine: AsyncEngine, ids: Iterable[str]) -> dict[str, str]:
    """By id. A deleted tenant has none any more."""
    wanted = sorted(set(ids))
    if not wanted:
        return {}
    async with engine.connect() as database:
        rows = await database.execute(select(tenants.c.id, tenants.c.name).where(tenants.c.id.in_(wanted)))
        return {row.id: row.name for row in rows if row.name is not None}
