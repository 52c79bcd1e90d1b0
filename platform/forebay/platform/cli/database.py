"""Commands that work on the configured database directly."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import click

from forebay.platform.config.load import ConfigError, load_config
from forebay.platform.config.model import Config
from forebay.platform.errors import ApiError
from forebay.platform.stores import embedded
from forebay.platform.stores.daemon import StoreError
from forebay.platform.stores.database import ERRORS
from forebay.platform.tenancy.opened import opened
from forebay.platform.tenancy.service import Tenancy

T = TypeVar("T")


def on_database(path: Path | None, act: Callable[[Config, str], Coroutine[Any, Any, T]]) -> T:
    """`act` with the configuration and its Postgres's URL. An embedded one that does not run is started for as long as
    this takes. Faults end the command with one line and status 1."""
    try:
        config = load_config(path)
        url = config.stores.postgres
        with ExitStack() as stack:
            if url == "embedded":
                url = stack.enter_context(embedded.start_postgres(Path(config.stores.state_dir))).url
            return asyncio.run(act(config, url))
    except ApiError as error:
        raise click.ClickException(error.message) from None
    except (ConfigError, StoreError) as error:
        raise click.ClickException(str(error)) from None
    except ERRORS as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise click.ClickException(f"Postgres cannot be used: {reason[0]}") from None


def tell_unchecked(tenancy: Tenancy, *, models: Iterable[str] = (), tiers: Iterable[str] = ()) -> None:
    """On stderr, where the configuration says nothing of what is named."""
    for what, names, known in (("models", models, tenancy.offered.models), ("tiers", tiers, tenancy.offered.tiers)):
        if not known and (named := ", ".join(names)):
            click.echo(f"not checked, since the configuration has no {what}: {named}", err=True)


def on_tenancy(path: Path | None, action: Callable[[Tenancy], Awaitable[T]]) -> T:
    async def act(config: Config, url: str) -> T:
        async with opened(config, url) as tenancy:
            return await action(tenancy)

    return on_database(path, act)
