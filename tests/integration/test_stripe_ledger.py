"""From usage records to Stripe: what is posted, corrected and comes late in the ledger."""

from forebay.metering import Books, Ledger, Quantities
from tests.integration.told import HOUR, START, serving, stocked, telling
from tests.metered import attempt, record


async def test_records_and_their_corrections_are_told(database: str) -> None:
    with serving(stocked()) as double:
        async with telling(database, double) as told:
            await told.map()
            ledger, books = Ledger(told.engine), Books(told.engine)
            at = START.timestamp()
            some = [
                record(attempt(n, started_at=at + n, price_version=f"v{n % 2}"), Quantities(20, 10, 0, 5, 2))
                for n in range(4)
            ]
            await ledger.insert(some)
            told.to(START + 2 * HOUR)
            assert (await told.sync()).accepted == 3
            assert [told.counted(name) for name in ("input", "cached", "output")] == [80, 40, 20]
            await ledger.insert([*some, record(attempt(9, started_at=at + 60), Quantities(1, 0, 0, 1))])
            await books.correct(some[0].attempt.request_id, 1, {"output": 2}, by="ops", reason="counted twice")
            assert (await told.sync()).cancelled == 1
            assert [told.counted(name) for name in ("input", "cached", "output")] == [81, 40, 18]
            await books.rebuild()
            assert (await told.sync()).accepted == 0
            found = await told.reconciled()
            assert (found.equal, found.ledger) == (True, 139)
