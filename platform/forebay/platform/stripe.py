"""Usage told to Stripe, put together from the configuration: for the front door, and for `forebay stripe`."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import Struct

from forebay.metering.stripe import Api, Caller, Journal, Mappings, Rules, Syncer
from forebay.platform.config import stripe as settings
from forebay.platform.config.secrets import load_lines
from forebay.platform.stores.database import ERRORS, create_engine

log = logging.getLogger(__name__)

STATEMENT_TIMEOUT_S = 120.0  # all that is not told yet is found in one statement
_RECENT = timedelta(days=3)
_FULL = 12  # each so many looks, at older hours as well, for corrections


class Billing(Struct, frozen=True):
    """`webhook_secrets` empty: webhooks are refused."""

    settings: settings.Stripe
    journal: Journal
    mappings: Mappings
    caller: Caller
    syncer: Syncer
    webhook_secrets: list[str]

    async def run(self) -> None:
        """Until cancelled. Of all front doors one does it at a time."""
        number = 0
        while True:
            since = None if number % _FULL == 0 else now() - _RECENT
            try:
                done = await self.syncer.run(since)
                number += not done.busy
            except ERRORS as error:
                log.warning("Stripe is told nothing: Postgres does not answer as it should (%s)", type(error).__name__)
            await asyncio.sleep(self.settings.every)


@asynccontextmanager
async def billing(config: settings.Stripe, postgres_url: str) -> AsyncIterator[Billing]:
    """Raises `SecretsError`, `StripeMissingError`."""
    key = load_lines(Path(config.secret_key), ("sk_", "rk_"))[0]
    hooks = load_lines(Path(config.webhook_secrets), ("whsec_",)) if config.webhook_secrets else []
    api = Api(key, api_base=config.api_base or "", meter_events_base=config.meter_events_base or "")
    engine = create_engine(postgres_url, pool_size=3, statement_timeout=STATEMENT_TIMEOUT_S, name="forebay-stripe")
    try:
        journal, caller = Journal(engine), Caller(api, config.requests_per_second, now)
        rules = Rules(timedelta(seconds=config.lag), timedelta(seconds=config.final_after))
        syncer = Syncer(journal, caller, rules, config.since)
        yield Billing(config, journal, Mappings(engine), caller, syncer, hooks)
    finally:
        await engine.dispose()
        api.close()


def now() -> datetime:
    return datetime.now(UTC)
