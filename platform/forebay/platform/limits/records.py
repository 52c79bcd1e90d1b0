"""Limits in Postgres: what the admin API and the CLI read and set. Refusals are ApiErrors."""

from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import BigInteger, Column, MetaData, Row, Table, Text, delete, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.platform.errors import invalid
from forebay.platform.limits.rules import ALL_MODELS, MOST, Kind, Level, Limit, Limits
from forebay.platform.offered import Offered
from forebay.platform.stores.database import reachable

MOST_ENTRIES = 256  # of one key, project or tenant: each request of it carries them

_limits = Table(
    "limits",
    MetaData(),
    Column("owner", Text, primary_key=True),
    Column("level", Text),
    Column("model", Text, primary_key=True),
    *(Column(kind.value, BigInteger) for kind in Kind),
)
_LOCK = text("SELECT pg_advisory_xact_lock(7378413942531512066)")  # as in all changes to tenancy: they cannot deadlock


class LimitRecords:
    """Whether a key, project or tenant exists is asked of `Tenancy` before."""

    def __init__(self, engine: AsyncEngine, offered: Offered) -> None:
        self._engine = engine
        self._offered = offered

    async def of(self, *owners: str) -> list[Limit]:
        statement = select(_limits).where(_limits.c.owner.in_(owners)).order_by(_limits.c.level, _limits.c.model)
        with reachable():
            async with self._engine.connect() as db:
                return [_limit(row) for row in await db.execute(statement)]

    async def set(self, level: Level, owner: str, limits: Limits, model: str = ALL_MODELS) -> Limit:
        """In place of what it had for that model. Limits that are all None are none."""
        named = self.named(model)
        if not limits:
            await self.clear(owner, model)
            return Limit(level, owner, named, limits)
        values = msgspec.to_builtins(limits)
        for name, value in values.items():
            if value is not None and not 0 <= value <= MOST:
                raise invalid(f"{name} is between 0 and {MOST}, or null for unlimited", param=name)
        statement = insert(_limits).values(owner=owner, level=level.value, model=named, **values)
        with reachable():
            async with self._engine.begin() as db:
                await db.execute(_LOCK)
                standing = (await db.scalars(select(_limits.c.model).where(_limits.c.owner == owner))).all()
                if model != ALL_MODELS:
                    self._offered.model(model, standing)
                await db.execute(statement.on_conflict_do_update(index_elements=["owner", "model"], set_=values))
                if len({*standing, named}) > MOST_ENTRIES:
                    raise invalid(f"limits for more than {MOST_ENTRIES} models", param="model")
        return Limit(level, owner, named, limits)

    async def clear(self, owner: str, model: str | None = None) -> None:
        """Of one model, or with None of all."""
        statement = delete(_limits).where(_limits.c.owner == owner)
        if model is not None:
            statement = statement.where(_limits.c.model == self.named(model))
        with reachable():
            async with self._engine.begin() as db:
                await db.execute(_LOCK)
                await db.execute(statement)

    def named(self, model: str) -> str:
        """By the catalogue's name: limits for an alias would hold for nothing."""
        return self._offered.called(model)


async def inherit(db: AsyncConnection, old: str, new: str) -> None:
    """The key that replaces another has its limits."""
    others = [_limits.c.level, _limits.c.model, *(_limits.c[kind.value] for kind in Kind)]
    rows = await db.execute(select(*others).where(_limits.c.owner == old))
    values = [{**row, "owner": new} for row in rows.mappings()]
    if values:
        await db.execute(insert(_limits), values)


def parsed(rows: str | None) -> tuple[Limit, ...]:
    """From an array of rows in JSON."""
    if rows is None:
        return ()
    return tuple(_limit(one) for one in _decode(rows))


class _Kept(Struct, frozen=True):
    """A row as JSON. A newer program's columns are passed over."""

    level: Level
    owner: str
    model: str
    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    queued_requests: int | None = None


_decode = msgspec.json.Decoder(list[_Kept]).decode


def _limit(row: Row[Any] | _Kept) -> Limit:
    numbers = {kind.value: getattr(row, kind.value) for kind in Kind}
    return Limit(Level(row.level), row.owner, row.model, Limits(**numbers))
