"""The partitions of the usage records, a month each, made before rows need them.

None is made for a month that is far from the database's own clock: those rows lie among the others, as all would where
this program may not make tables. None is lost for want of a partition.
"""

import logging
from collections.abc import Iterable
from datetime import date

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

logger = logging.getLogger(__name__)

_AHEAD = 2
_MOST_KNOWN = 1000
_MAKE = text("""
    SELECT forebay_usage_partition(CAST(:month AS date))
    WHERE CAST(:month AS date) BETWEEN now() - interval '25 months' AND now() + interval '3 months'
""")
_NEXT = text("""
    SELECT (date_trunc('month', now() AT TIME ZONE 'UTC') + ahead * interval '1 month')::date AS month
    FROM generate_series(0, :ahead) AS ahead
""")


class Partitions:
    """Each month is looked after once. Errors of the connection are raised."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._known: set[date] = set()

    async def ahead(self) -> None:
        """This month's and the next ones'."""
        async with self._engine.connect() as connection:
            months = (await connection.execute(_NEXT, {"ahead": _AHEAD})).scalars().all()
        await self.ensure(months)

    async def ensure(self, months: Iterable[date]) -> None:
        for month in sorted(set(months) - self._known):
            try:
                async with self._engine.begin() as connection:
                    if (await connection.execute(_MAKE, {"month": month})).scalar():
                        logger.info("usage records of %s have a partition of their own", month.strftime("%Y-%m"))
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
                logger.warning("no partition for usage records of %s: %s", month.strftime("%Y-%m"), error.orig)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known.add(month)
