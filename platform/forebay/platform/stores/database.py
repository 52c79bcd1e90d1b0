"""Postgres through SQLAlchemy and asyncpg: one bounded pool, and a deadline on every step."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from forebay.platform.errors import unavailable
from forebay.platform.stores.daemon import StoreError

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT = 2.0
POOL_TIMEOUT = 2.0
STATEMENT_TIMEOUT = 10.0
# What a query may raise when Postgres is away, slow or broken.
ERRORS = (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
_DRIVER = "postgresql+asyncpg"


def create_engine(
    url: str, *, pool_size: int = 8, statement_timeout: float = STATEMENT_TIMEOUT, name: str = "forebay"
) -> AsyncEngine:
    """An engine for `postgresql://…`. `pool_size` is a hard bound; waiting for a connection longer than 2 s raises
    sqlalchemy.exc.TimeoutError. Nothing connects until first use."""
    return create_async_engine(
        parse_url(url),
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT,
        pool_pre_ping=True,  # a restarted server costs a round trip, not a failed request
        pool_recycle=1800,
        hide_parameters=True,  # values stay out of exceptions and logs
        connect_args={
            "timeout": CONNECT_TIMEOUT,
            "command_timeout": statement_timeout + 1.0,  # where the network, not the server, has gone
            "server_settings": {
                "application_name": name,
                "statement_timeout": str(round(statement_timeout * 1000)),
                "idle_in_transaction_session_timeout": "30000",
            },
        },
    )


def parse_url(url: str) -> URL:
    """SQLAlchemy's URL for a Postgres URL as libpq writes it. Raises StoreError."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError("stores.postgres is not a URL; expected postgresql://user:password@host/database") from None
    if parsed.get_backend_name() not in {"postgresql", "postgres"}:
        raise StoreError(f"stores.postgres: {parsed.drivername}:// is not Postgres; expected postgresql://…")
    query = dict(parsed.query)
    if "sslmode" in query:
        query["ssl"] = query.pop("sslmode")  # asyncpg's name for it
    return parsed.set(drivername=_DRIVER, query=query)


async def ping(engine: AsyncEngine, timeout: float = CONNECT_TIMEOUT) -> None:
    """Return if Postgres answers within `timeout` seconds, else raise what went wrong."""
    async with asyncio.timeout(timeout), engine.connect() as connection:
        await connection.execute(text("SELECT 1"))


@contextmanager
def reachable() -> Iterator[None]:
    """Queries of a request, which is answered by ApiError 503 where Postgres is away, slow or broken."""
    try:
        yield
    except ERRORS as error:
        logger.warning("Postgres: %s", type(error).__name__, exc_info=None if isinstance(error, OSError) else error)
        raise unavailable("database_unavailable", "Postgres does not answer as it should.", retry_after=1.0) from None
