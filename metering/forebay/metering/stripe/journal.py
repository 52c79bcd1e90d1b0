"""What Stripe was told, in Postgres: cells against the ledger, postings and their steps. Both logs only grow, so that
what a process that died was about to do is read from them.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import delete, insert, select, text
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from forebay.metering.stripe import queries
from forebay.metering.stripe.records import CHECKED, Cell, Key, Kind, Posting, State, Unmapped
from forebay.metering.stripe.tables import (
    stripe_notices,
    stripe_open,
    stripe_postings,
    stripe_reports,
    stripe_steps,
)

_LOCK = 0x666F72656261790B  # "forebay", 11: any number that nobody else in the database uses
_CHUNK = 1000


class Journal:
    """All methods raise `sqlalchemy.exc.SQLAlchemyError` or `OSError` while the database is away."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """Whether nobody else is about it, until it is left. It spares work: what keeps two from telling Stripe
        twice is the unique place of a posting in its cell."""
        async with self._engine.connect() as connection:
            taken = bool((await connection.execute(text(f"SELECT pg_try_advisory_lock({_LOCK})"))).scalar())
            await connection.commit()
            try:
                yield taken
            finally:
                if taken:
                    await connection.execute(text(f"SELECT pg_advisory_unlock({_LOCK})"))
                    await connection.commit()

    async def different(self, since: datetime, most: int = 100_000) -> list[Cell]:
        """The oldest cells from an hour on that Stripe does not know as the ledger does, or that are parked."""
        async with self._snapshot() as connection:
            found = (await connection.execute(queries.DIFFERENT, {"since": since, "most": most})).all()
            cells = {Key(row.tenant_id, row.event_name, row.hour.astimezone(UTC)): row for row in found}
            told = await _of_cells(connection, list(cells))
        return [
            Cell(key, row.customer_id, int(row.tokens), tuple(told.get(key, ()))) for key, row in cells.items()
        ]

    async def cells(self, since: datetime, until: datetime) -> dict[Key, int]:
        """The ledger's tokens by cell."""
        async with self._engine.connect() as connection:
            rows = await connection.execute(queries.COUNTED, {"since": since, "until": until})
            return {Key(row.tenant_id, row.event_name, row.hour.astimezone(UTC)): int(row.tokens) for row in rows}

    async def unmapped(self, since: datetime) -> list[Unmapped]:
        async with self._engine.connect() as connection:
            rows = await connection.execute(queries.UNMAPPED, {"since": since})
            return [
                Unmapped(row.missing, row.tenant_id, row.model, row.tier, row.token_class, int(row.tokens),
                         row.first_hour, row.last_hour) for row in rows
            ]  # fmt: skip

    async def unsettled(self, most: int = 10_000) -> list[Posting]:
        """Of which it is not known whether Stripe has them, or has taken them back; oldest first."""
        return await self._postings(queries.UNSETTLED, most=most)

    async def rejected(self) -> list[Posting]:
        return await self._postings(queries.REJECTED)

    async def named(self, identifiers: Iterable[str]) -> list[Posting]:
        return await self._postings(queries.ONE, identifiers=list(identifiers))

    async def billed(
        self, start: datetime, until: datetime, customer: str | None = None, event: str | None = None
    ) -> list[Posting]:
        """What Stripe was told to have happened from `start` to `until`, of everybody or of one customer's meter."""
        if customer is None or event is None:
            return await self._postings(queries.BILLED_ALL, start=start, until=until)
        return await self._postings(queries.BILLED, start=start, until=until, customer=customer, event=event)

    async def of_hours(self, start: datetime, until: datetime) -> list[Posting]:
        """What Stripe was told of usage in these hours of charge."""
        return await self._postings(queries.OF_HOURS, start=start, until=until)

    async def intend(self, postings: Sequence[Posting]) -> int:
        """Write down what will be sent; how many are new. A place in a cell that is taken stays as it is."""
        rows = [
            {"identifier": one.identifier, "tenant_id": one.key.tenant_id, "event_name": one.key.event_name,
             "hour": one.key.hour, "seq": one.seq, "customer_id": one.customer_id, "kind": one.kind.value,
             "value": one.value, "billed_at": one.billed_at, "created_at": one.safe_from}
            for one in postings
        ]  # fmt: skip
        added = 0
        async with self._engine.begin() as connection:
            for start in range(0, len(rows), _CHUNK):
                new = upsert(stripe_postings).values(rows[start : start + _CHUNK]).on_conflict_do_nothing()
                names = (await connection.execute(new.returning(stripe_postings.c.identifier))).scalars().all()
                await _open(connection, names)
                added += len(names)
        return added

    async def delivered(self, identifiers: Sequence[str], at: datetime, code: str, reference: str = "") -> None:
        """`code`: how it is known (accepted, duplicate, summary)."""
        given = {"identifiers": list(identifiers), "at": at, "code": code, "reference": reference}
        async with self._engine.begin() as connection:
            names = (await connection.execute(queries.DELIVERED, given)).scalars().all()
            await connection.execute(delete(stripe_open).where(stripe_open.c.identifier.in_(names)))

    async def step(self, identifiers: Collection[str], step: State, at: datetime, code: str = "") -> None:
        """`State.VOID` is for ever."""
        identifiers = list(identifiers)
        if not identifiers:
            return
        async with self._engine.begin() as connection:
            await connection.execute(insert(stripe_steps), _rows(identifiers, step.value, at, code))
            if step in {State.DELIVERED, State.VOID}:
                await connection.execute(delete(stripe_open).where(stripe_open.c.identifier.in_(identifiers)))
            else:
                await _open(connection, identifiers)

    async def checked(self, identifiers: Collection[str], at: datetime) -> None:
        """Stripe's sums say that these are not there."""
        async with self._engine.begin() as connection:
            await connection.execute(insert(stripe_steps), _rows(identifiers, CHECKED, at, ""))

    async def notice(self, event_id: str, kind: str) -> bool:
        """Keep a webhook's event. False: it was there."""
        row = {"event_id": event_id, "type": kind}
        async with self._engine.begin() as connection:
            result = await connection.execute(upsert(stripe_notices).values(row).on_conflict_do_nothing())
            return result.rowcount > 0

    async def unread(self, most: int = 1000) -> list[tuple[str, str]]:
        """Notices whose report was not read yet: id, type."""
        read = select(stripe_reports.c.event_id).where(stripe_reports.c.event_id == stripe_notices.c.event_id)
        asked = select(stripe_notices.c.event_id, stripe_notices.c.type).where(~read.exists())
        async with self._engine.connect() as connection:
            rows = await connection.execute(asked.order_by(stripe_notices.c.received_at).limit(most))
            return [(row.event_id, row.type) for row in rows]

    async def read(
        self, event_id: str, kind: str, errors: Sequence[tuple[str, int, Sequence[str]]], at: datetime
    ) -> int:
        """Keep a report and park the postings that it names; how many it names. All or nothing, and once."""
        details = [{"code": code, "count": count, "identifiers": list(names)} for code, count, names in errors]
        async with self._engine.begin() as connection:
            named = 0
            for code, _, names in errors:
                rows = (await connection.execute(queries.ONE, {"identifiers": list(names)})).all()
                hit = [row.identifier for row in rows if row.state not in {State.VOID, State.REJECTED}]
                if hit:
                    await connection.execute(insert(stripe_steps), _rows(hit, State.REJECTED.value, at, code))
                    await _open(connection, hit)
                named += len(rows)
            row = {"event_id": event_id, "type": kind, "errors": sum(count for _, count, _ in errors), "named": named,
                   "details": details, "read_at": at}  # fmt: skip
            await connection.execute(upsert(stripe_reports).values(row).on_conflict_do_nothing())
        return named

    async def reports(self, most: int = 20) -> list[dict[str, Any]]:
        """The newest error reports."""
        asked = select(stripe_reports).order_by(stripe_reports.c.read_at.desc()).limit(most)
        async with self._engine.connect() as connection:
            return [dict(row) for row in (await connection.execute(asked)).mappings()]

    async def _postings(self, statement: Any, **given: Any) -> list[Posting]:
        async with self._engine.connect() as connection:
            return [_posting(row) for row in await connection.execute(statement, given)]

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[AsyncConnection]:
        """Every statement sees the same moment."""
        async with self._engine.connect() as connection:
            await connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection


async def _of_cells(connection: AsyncConnection, keys: Sequence[Key]) -> dict[Key, list[Posting]]:
    told: dict[Key, list[Posting]] = {}
    for start in range(0, len(keys), _CHUNK):
        chunk = keys[start : start + _CHUNK]
        given = {
            "tenants": [key.tenant_id for key in chunk], "events": [key.event_name for key in chunk],
            "hours": [key.hour for key in chunk],
        }  # fmt: skip
        for row in await connection.execute(queries.OF_CELLS, given):
            posting = _posting(row)
            told.setdefault(posting.key, []).append(posting)
    return told


async def _open(connection: AsyncConnection, identifiers: Collection[str]) -> None:
    if identifiers:
        rows = [{"identifier": one} for one in identifiers]
        await connection.execute(upsert(stripe_open).values(rows).on_conflict_do_nothing())


def _rows(identifiers: Iterable[str], step: str, at: datetime, code: str) -> list[dict[str, Any]]:
    return [{"identifier": one, "step": step, "at": at, "code": code} for one in identifiers]


def _posting(row: Any) -> Posting:
    return Posting(
        identifier=row.identifier,
        key=Key(row.tenant_id, row.event_name, row.hour.astimezone(UTC)),
        customer_id=row.customer_id,
        seq=row.seq,
        kind=Kind(row.kind),
        value=row.value,
        billed_at=row.billed_at.astimezone(UTC),
        safe_from=row.safe_from.astimezone(UTC),
        state=State(row.state),
        changed_at=row.changed_at,
        code=row.code,
        reference=row.reference,
    )
