"""What the version before has recorded is carried over."""

import asyncio

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, text

from forebay.metering import Books
from forebay.platform.stores import schema
from forebay.platform.stores.database import create_engine
from tests.integration.test_books import OLD, OLD_RECORD
from tests.stores import Databases


def _before(connection: Connection) -> None:
    config = Config()
    config.set_main_option("script_location", str(schema._MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "0006")


def test_rows_of_the_version_before_are_kept_and_rolled_up(postgres: Databases) -> None:
    url = postgres.create(migrated=False)

    async def run() -> None:
        engine = create_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(_before)
            await connection.execute(text(OLD), {"records": OLD_RECORD})
        await schema.migrate(engine)
        async with engine.connect() as connection:
            row = (await connection.execute(text(
                "SELECT tableoid::regclass::text AS at, period::text, billable_output, entry FROM usage_records"
            ))).one()  # fmt: skip
            assert tuple(row) == ("usage_records_2026_12", "2026-12-01", 5, 0)
            assert (await connection.execute(text("SELECT attempts FROM usage_hourly"))).scalar_one() == 1
        assert (await Books(engine).verify()).rows == 0
        async with engine.begin() as connection:
            assert (await connection.execute(text(OLD), {"records": OLD_RECORD})).rowcount == 0
        await engine.dispose()

    asyncio.run(run())
    postgres.drop(url)
