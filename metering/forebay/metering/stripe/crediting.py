"""Credit notes: what was billed on an invoice that is final and turned out to be less.

A cent is the least that Stripe credits, so what belongs to one line of one invoice goes into one note. The note names
its postings in its metadata: whoever comes after a crash reads there which are credited already.
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from forebay.metering.stripe import metrics, plan
from forebay.metering.stripe.client import Line, RefusedError
from forebay.metering.stripe.journal import Journal
from forebay.metering.stripe.records import Meter, Posting, State
from forebay.metering.stripe.stream import Caller

_NAMES = "forebay_postings_"  # of metadata: at most 50 with 500 characters each
_IN_ONE, _CHUNK = 400, 10


class Crediting:
    def __init__(self, journal: Journal, caller: Caller) -> None:
        self._journal = journal
        self._caller = caller

    async def settle(self, postings: Sequence[Posting], meters: dict[str, Meter]) -> tuple[int, set[str]]:
        """How many were credited, and which are known not to be: they wait for the invoice to be final, or to be worth
        a cent."""
        groups: dict[tuple[str, str, datetime], list[Posting]] = {}
        for one in postings:
            groups.setdefault((one.customer_id, one.key.event_name, plan.month_of(one.billed_at)), []).append(one)
        done, waiting = 0, set[str]()
        for (customer, event, _), some in groups.items():
            if event in meters:
                with suppress(RefusedError):  # that Stripe does not know a customer any more concerns no other
                    credited, without = await self._credit(customer, meters[event], some[:_IN_ONE])
                    done, waiting = done + credited, waiting | without
        return done, waiting

    async def _credit(self, customer: str, meter: Meter, some: Sequence[Posting]) -> tuple[int, set[str]]:
        api = self._caller.api
        lines = await self._caller.call(api.final_lines, customer, meter.id, some[0].billed_at)
        if not lines:
            return 0, {one.identifier for one in some}
        line: Line = max(lines, key=lambda one: one.quantity)
        names = {one.identifier: one for one in some}
        done = 0
        for note, metadata in await self._caller.call(api.credits, line.invoice):
            there = [name for name in _named(metadata) if names.pop(name, None) is not None]
            done += await self._credited(there, note)
        if not names:
            return done, set()
        metadata = _metadata(sorted(names))
        key = f"credit-{hashlib.sha256('|'.join(sorted(names)).encode()).hexdigest()[:40]}"
        quantity = -sum(one.value for one in names.values())
        try:
            made = await self._caller.call(api.credit, line, quantity, metadata, key)
        except RefusedError as error:
            await self._journal.step(names, State.REJECTED, self._caller.now(), error.code)
            metrics.postings.labels(outcome="refused").inc(len(names))
            return done, set()
        if made is None:
            return done, set(names)
        return done + await self._credited(sorted(names), made), set()

    async def _credited(self, names: Sequence[str], note: str) -> int:
        if names:
            await self._journal.delivered(names, self._caller.now(), "credited", note)
            metrics.postings.labels(outcome="credited").inc(len(names))
        return len(names)


def _metadata(names: Sequence[str]) -> dict[str, str]:
    return {
        f"{_NAMES}{start // _CHUNK}": ",".join(names[start : start + _CHUNK]) for start in range(0, len(names), _CHUNK)
    }


def _named(metadata: dict[str, str]) -> list[str]:
    return [name for key, value in metadata.items() if key.startswith(_NAMES) for name in value.split(",")]
