"""Fixtures for everybody: stores from wheels, started once a session and only if some test asks for them."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from sqlalchemy.ext.asyncio import AsyncEngine
from valkey import Valkey

from forebay.platform.stores import embedded
from forebay.platform.stores.database import create_engine
from tests.stores import Databases, state_directory

settings.register_profile("untimed", deadline=None)  # other processes run beside the tests
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def store_directory() -> Iterator[Path]:
    with state_directory() as path:
        yield path


@pytest.fixture(scope="session")
def postgres(store_directory: Path) -> Iterator[Databases]:
    """An embedded Postgres without fsync."""
    with embedded.start_postgres(store_directory, fast=True) as server:
        yield Databases(server)


@pytest.fixture
def database(postgres: Databases) -> Iterator[str]:
    """The URL of a fresh database at the newest schema."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
async def engine(database: str) -> AsyncIterator[AsyncEngine]:
    """A SQLAlchemy engine on `database`."""
    engine = create_engine(database)
    yield engine
    await engine.dispose()


@pytest.fixture(scope="session")
def valkey_server(store_directory: Path) -> Iterator[str]:
    with embedded.start_valkey(store_directory) as server:
        yield server.url


@pytest.fixture
def valkey(valkey_server: str) -> str:
    """The URL of an empty Valkey."""
    Valkey.from_url(valkey_server, single_connection_client=False).flushall()
    return valkey_server
