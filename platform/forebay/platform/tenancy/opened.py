"""Tenancy without a front door, for commands and demonstrations."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forebay.platform.config.model import Config
from forebay.platform.config.secrets import secrets_of
from forebay.platform.offered import offered_of
from forebay.platform.stores.database import create_engine
from forebay.platform.stores.schema import migrate
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.service import Tenancy


@asynccontextmanager
async def opened(config: Config, postgres_url: str) -> AsyncIterator[Tenancy]:
    """On a database whose schema is brought up to date first."""
    engine = create_engine(postgres_url)
    try:
        await migrate(engine)
        yield Tenancy(engine, Hasher(secrets_of(config, "key-hash")), offered_of(config))
    finally:
        await engine.dispose()
