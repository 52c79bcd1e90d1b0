"""What the commands of `forebay stripe` share."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from forebay.metering.stripe import MappingError, StripeError, StripeMissingError
from forebay.platform.cli import tenant_names
from forebay.platform.cli.database import on_database
from forebay.platform.config.model import Config
from forebay.platform.stores.database import create_engine
from forebay.platform.stores.schema import migrate
from forebay.platform.stripe import billing

T = TypeVar("T")
_FILE = click.Path(dir_okay=False, path_type=Path)


def common(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    return click.option("--config", "path", type=_FILE, help="Default: ./forebay.yaml.")(command)


def on_stripe(path: Path | None, act: Callable[..., Awaitable[T]], *tenants: str) -> T:
    """`act` with what the configuration says of Stripe, and the ids of tenants."""

    async def run(config: Config, url: str) -> T:
        if config.stripe is None:
            raise click.ClickException("the configuration has no stripe: section; docs/stripe.md says what it holds")
        engine = create_engine(url, pool_size=1)
        try:
            await migrate(engine)
            ids = await tenant_names.ids_of(engine, tenants)
        finally:
            await engine.dispose()
        async with billing(config.stripe, url) as its:
            return await (act(its, ids) if tenants else act(its))

    try:
        return on_database(path, run)
    except StripeError as error:
        raise click.ClickException(f"Stripe: {error}") from None
    except (MappingError, StripeMissingError) as error:
        raise click.ClickException(str(error)) from None


