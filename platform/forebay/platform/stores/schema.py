"""Bring the database's schema to the version this program knows.

Migrations only ever add, so a program also runs on a schema one version newer than its own: it leaves it alone. All
steps of one upgrade are one transaction under an advisory lock; replicas that start together take turns.
"""

import logging
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.platform.stores.daemon import StoreError

logger = logging.getLogger(__name__)
_LOCK = 0x666F726562617901  # "forebay", 1: any number that nobody else in the database uses
_MIGRATIONS = Path(__file__).parent / "migrations"


class SchemaError(StoreError):
    """The schema is older than the program and may not be, or could not be, upgraded."""


async def migrate(engine: AsyncEngine, *, upgrade: bool = True) -> str:
    """Upgrade to head if need be and return the schema's revision. With `upgrade` false an older schema raises
    SchemaError instead; a newer one is accepted either way."""
    try:
        async with engine.begin() as connection:
            # For the upgrade only: the engine's own statement timeout is meant for queries.
            await connection.execute(text("SET LOCAL statement_timeout = '300s'"))
            await connection.execute(text("SET LOCAL lock_timeout = '60s'"))
            await connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            await connection.execute(text("SET LOCAL lock_timeout = '5s'"))
            return await connection.run_sync(_migrate, upgrade)
    except DBAPIError as error:
        raise SchemaError(f"the schema could not be upgraded: {error.orig}") from error


def _migrate(connection: Connection, upgrade: bool) -> str:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    head = scripts.get_current_head()
    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if current == head and current is not None:
        return current
    if current is not None and current not in known:
        logger.info("the database's schema %s is newer than this program's %s", current, head)
        return current
    if not upgrade:
        raise SchemaError(f"the database's schema is at {current or 'nothing'}, this program needs {head}; "
                          "start one `forebay serve` that may migrate, then the others")  # fmt: skip
    logger.info("upgrading the database's schema from %s to %s", current or "nothing", head)
    command.upgrade(config, "head")
    return str(head)
