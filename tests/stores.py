"""Real stores for tests: one embedded Postgres and Valkey a session, a fresh migrated database a test."""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.platform.stores.daemon import Daemon
from forebay.platform.stores.database import create_engine, parse_url
from forebay.platform.stores.schema import migrate

_TEMPLATE = "template_forebay"


@contextmanager
def state_directory() -> Iterator[Path]:
    """A short path that an unprivileged account may enter, which pytest's own directories are not when run as root."""
    path = Path(tempfile.mkdtemp(prefix="fb-"))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Databases:
    """Makes databases on one server; each is a copy of a template that was migrated once."""

    def __init__(self, server: Daemon) -> None:
        self.server = server
        self._numbers = itertools.count(1)
        self._migrated = False

    def url(self, database: str) -> str:
        return parse_url(self.server.url).set(drivername="postgresql", database=database).render_as_string(False)

    def create(self, *, migrated: bool = True) -> str:
        """The URL of a new database, empty or at the newest revision. Not for use inside an event loop."""
        name = f"test_{next(self._numbers)}"
        asyncio.run(self._create(name, _TEMPLATE if migrated else "template0"))
        return self.url(name)

    def drop(self, url: str) -> None:
        asyncio.run(self._execute(f"DROP DATABASE IF EXISTS {parse_url(url).database} WITH (FORCE)"))

    async def _create(self, name: str, template: str) -> None:
        if template == _TEMPLATE and not self._migrated:
            await self._execute(f"CREATE DATABASE {_TEMPLATE} TEMPLATE template0")
            engine = create_engine(self.url(_TEMPLATE))
            await migrate(engine)
            await engine.dispose()
            self._migrated = True
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")

    async def _execute(self, statement: str) -> None:
        engine: AsyncEngine = create_engine(self.server.url).execution_options(isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
            await connection.execute(text(statement))
        await engine.dispose()
