"""Commands that work on the database directly: a Tenancy for as long as a command runs."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from forebay.platform.config.load import ConfigError, load_config
from forebay.platform.config.model import Config
from forebay.platform.config.secrets import SecretsError, secrets_of
from forebay.platform.errors import ApiError
from forebay.platform.stores import embedded
from forebay.platform.stores.daemon import StoreError
from forebay.platform.stores.database import ERRORS, create_engine
from forebay.platform.stores.schema import migrate
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.service import Tenancy

T = TypeVar("T")
Action = Callable[[Tenancy], Awaitable[T]]


def run(path: Path | None, action: Action[T]) -> T:
    """`action` on the configured database. An embedded one that does not run is started for as long as this takes.
    Faults end the command with one line and status 1."""
    try:
        config = load_config(path)
        if config.stores.postgres != "embedded":
            return asyncio.run(_act(config, config.stores.postgres, action))
        with embedded.start_postgres(Path(config.stores.state_dir)) as server:
            return asyncio.run(_act(config, server.url, action))
    except ApiError as error:
        raise click.ClickException(error.message) from None
    except (ConfigError, SecretsError, StoreError) as error:
        raise click.ClickException(str(error)) from None
    except ERRORS as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise click.ClickException(f"Postgres cannot be used: {reason[0]}") from None


async def _act(config: Config, url: str, action: Action[T]) -> T:
    engine = create_engine(url)
    try:
        await migrate(engine)
        return await action(Tenancy(engine, Hasher(secrets_of(config, "key-hash"))))
    finally:
        await engine.dispose()
