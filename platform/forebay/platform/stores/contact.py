"""The first contact with Postgres: waited for while it may still come, refused at once where waiting cannot help."""

import asyncio
import logging

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.platform.stores.daemon import StoreError
from forebay.platform.stores.database import ping

logger = logging.getLogger(__name__)

WAIT_S = 60.0
_SAY_EVERY = 5  # attempts, one a second
_HOPELESS = ("28", "3D")  # SQLSTATE classes: the account or its password is refused; there is no such database


async def first_contact(engine: AsyncEngine, *, wait: float = WAIT_S) -> None:
    """Returns when Postgres answers. Raises StoreError when it has not for `wait` seconds, or will not."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait
    attempt = 0
    while True:
        try:
            return await ping(engine)
        except Exception as error:
            reason = _reason(error)
            if _hopeless(error):
                raise StoreError(f"stores.postgres: {reason}") from error
            if loop.time() > deadline:
                raise StoreError(f"stores.postgres: no answer within {wait:g} s: {reason}") from error
        if attempt % _SAY_EVERY == 0:
            logger.warning("waiting for Postgres: %s", reason)
        attempt += 1
        await asyncio.sleep(1.0)


def _hopeless(error: Exception) -> bool:
    return isinstance(error, DBAPIError) and str(getattr(error.orig, "sqlstate", None))[:2] in _HOPELESS


def _reason(error: Exception) -> str:
    """Postgres names accounts and databases in its errors, never passwords."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return str(cause) or type(cause).__name__
