"""One pass: reports are read, what is on its way is settled, and what the ledger has more or less is told.

At any point the process may die. A posting is written down before Stripe is told, and its outcome after; the next pass
finds out about those between. Within the dedupe window it sends them again, beyond it Stripe's own sums decide.
"""

import logging
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct, field

from forebay.metering.stripe import metrics, plan
from forebay.metering.stripe.client import MeterEvent, RefusedError, StripeError
from forebay.metering.stripe.crediting import Crediting
from forebay.metering.stripe.journal import Journal
from forebay.metering.stripe.plan import HOUR, Cancel, GiveUp, Hold, Post, Rules
from forebay.metering.stripe.records import Cell, Kind, Meter, Posting, State, Unmapped, delivered
from forebay.metering.stripe.stream import Caller, Stream

log = logging.getLogger(__name__)

ERROR_REPORT = "v1.billing.meter.error_report_triggered"
NO_METER = "v1.billing.meter.no_meter_found"
NOTICES = frozenset({ERROR_REPORT, NO_METER})  # types of events that are kept and read
_ROUNDS = 20  # an event that is cancelled is replaced in the next round
_MOST = 10_000  # of a round


class Held(Struct, frozen=True):
    """A cell that Stripe is not told of now."""

    cell: Cell
    hold: Hold


class Pass(Struct):
    """What a pass did."""

    accepted: int = 0
    duplicates: int = 0
    reconciled: int = 0
    cancelled: int = 0
    credited: int = 0
    refused: int = 0
    reports: int = 0
    busy: bool = False  # somebody else was about it, and nothing was done
    error: str = ""  # what kept it from ending
    held: list[Held] = field(default_factory=list)
    unmapped: list[Unmapped] = field(default_factory=list)  # of a pass over everything


class Syncer:
    """Raises what the database raises; that Stripe is away is told in the answer."""

    def __init__(self, journal: Journal, caller: Caller, rules: Rules, since: datetime) -> None:
        """Usage before `since` is none of Stripe's business."""
        self._journal = journal
        self._caller = caller
        self._stream = Stream(caller)
        self._crediting = Crediting(journal, caller)
        self._rules = rules
        self._since = since
        self._waiting: set[str] = set()  # credits that are known not to be made

    async def run(self, since: datetime | None = None) -> Pass:
        """`since`: look at cells from then on alone."""
        done = Pass()
        async with self._journal.alone() as alone:
            if not alone:
                return Pass(busy=True)
            try:
                await self._run(done, max(since or self._since, self._since))
            except StripeError as error:
                done.error = str(error)
                log.warning("Stripe: %s; what was not told is told later", error)
            else:
                metrics.synced_at.set(self._caller.now().timestamp())
        return done

    async def _run(self, done: Pass, since: datetime) -> None:
        api = self._caller.api
        meters = await self._caller.call(api.meters)
        await self._read_reports(done)
        for _ in range(_ROUNDS):
            await self._settle(done, meters)
            done.held = []
            if not await self._tell(done, since, meters):
                break
        if since == self._since:
            done.unmapped = await self._journal.unmapped(since)
            _show(done)

    async def _read_reports(self, done: Pass) -> None:
        for event_id, kind in await self._journal.unread():
            try:
                found = await self._caller.call(self._caller.api.reported, event_id)
            except RefusedError as error:  # gone: Stripe keeps them 30 days
                found, kind = [], f"{kind}: {error.code}"  # noqa: PLW2901
            errors = [(one.code, one.count, one.identifiers) for one in found]
            named = await self._journal.read(event_id, kind, errors, self._caller.now())
            done.reports += 1
            metrics.postings.labels(outcome="reported").inc(named)
            log.warning("Stripe reports %d meter events that it did not count; %d are known",
                        sum(one.count for one in found), named)  # fmt: skip

    async def _settle(self, done: Pass, meters: dict[str, Meter]) -> None:
        """What is on its way."""
        unsettled = await self._journal.unsettled(_MOST)
        ready = await self._still_missing(done, [one for one in unsettled if one.state is State.INTENDED], meters)
        events = [
            _event(one, meters[one.key.event_name])
            for one in ready if one.kind is Kind.EVENT and _usable(meters, one.key.event_name)
        ]  # fmt: skip

        async def accepted(identifiers: Sequence[str], how: str) -> None:
            await self._delivered(done, identifiers, how)

        async def refused(identifiers: Sequence[str], code: str) -> None:
            await self._journal.step(identifiers, State.REJECTED, self._caller.now(), code)
            done.refused += len(identifiers)
            metrics.postings.labels(outcome="refused").inc(len(identifiers))

        await self._stream.send(events, accepted, refused)
        for one in unsettled:
            if one.state is State.CANCELLING and _usable(meters, one.key.event_name):
                await self._cancel(done, one, meters)
        less = [one for one in ready if one.kind is Kind.CREDIT_NOTE]
        credited, self._waiting = await self._crediting.settle(less, meters)
        done.credited += credited

    async def _still_missing(
        self, done: Pass, postings: Sequence[Posting], meters: dict[str, Meter]
    ) -> list[Posting]:
        """Those that may be sent: by Stripe's promise, or because its sums say that they are not there. What is not
        there and whose invoice is final by now would never be billed: it is given up, and told anew."""
        now = self._caller.now()
        ready, asked = plan.sorted_out(postings, now, self._rules)
        for (customer, event, at), some in asked.items():
            if not _usable(meters, event):
                continue
            there, expected = await self._sums(meters[event], customer, at, at + HOUR)
            names = [one.identifier for one in some]
            if there == expected + sum(one.value for one in some):
                await self._delivered(done, names, "summary")
            elif there == expected and plan.is_final(at, now, self._rules):
                await self._journal.step(names, State.VOID, now, "too_late")
            elif there == expected:
                await self._journal.checked(names, now)
                ready += some
        return ready

    async def _cancel(self, done: Pass, posting: Posting, meters: dict[str, Meter]) -> None:
        """On an invoice that is final it would change nothing. Where it was refused it may be too late, or done before
        a crash, or the event is still on its way inside Stripe: its sums tell, in time."""
        now = self._caller.now()
        if plan.is_final(posting.billed_at, now, self._rules) or not await self._was_cancelled(posting):
            if posting.changed_at is None or now - posting.changed_at < plan.SETTLES:
                return
            at = plan.hour_of(posting.billed_at)
            there, expected = await self._sums(meters[posting.key.event_name], posting.customer_id, at, at + HOUR)
            if there == expected:
                await self._journal.delivered([posting.identifier], now, plan.NOT_CANCELLED)
                return
            if there != expected - posting.value:
                return
        await self._journal.step([posting.identifier], State.VOID, now, "cancelled")
        done.cancelled += 1
        metrics.postings.labels(outcome="cancelled").inc()

    async def _was_cancelled(self, posting: Posting) -> bool:
        try:
            await self._caller.call(self._caller.api.cancel, posting.key.event_name, posting.identifier)
        except RefusedError:
            return False
        return True

    async def _tell(self, done: Pass, since: datetime, meters: dict[str, Meter]) -> bool:
        """Write down what is to be told next. Whether there is anything."""
        now = self._caller.now()
        posts: list[Post] = []
        cancels: list[str] = []
        given_up: list[str] = []
        agrees: dict[tuple[str, str], bool] = {}  # of a customer's meter, since its oldest cell here
        for cell in await self._journal.different(since):
            decision = plan.decide(cell, now, self._rules)
            if isinstance(decision, Post | Cancel) and not _usable(meters, cell.key.event_name):
                decision = Hold("meter_inactive", cell.total - cell.told)
            match decision:
                case Hold():
                    done.held.append(Held(cell, decision))
                case Cancel():
                    cancels.append(decision.posting.identifier)
                case GiveUp() if decision.posting.identifier in self._waiting:
                    given_up.append(decision.posting.identifier)
                case Post() if decision.verify and not await self._agrees(decision.posting, now, meters, agrees):
                    done.held.append(Held(cell, Hold("differs", decision.posting.value)))
                case Post():
                    posts.append(decision)
            if len(posts) + len(cancels) >= _MOST:
                break
        await self._journal.step(cancels, State.CANCELLING, now)
        await self._journal.step(given_up, State.VOID, now, "another amount")
        new = await self._journal.intend([one.posting for one in posts])
        return bool(new or cancels or given_up)

    async def _agrees(
        self, posting: Posting, now: datetime, meters: dict[str, Meter], known: dict[tuple[str, str], bool]
    ) -> bool:
        """Whether Stripe counted what we know of since the posting's hour, and nothing else. Cells come in the order of
        their hours, so that the first answer holds for the others."""
        place = (posting.customer_id, posting.key.event_name)
        if place not in known:
            start, end = min(posting.key.hour, posting.billed_at), plan.hour_of(now) + HOUR
            there, expected = await self._sums(meters[place[1]], place[0], start, end)
            known[place] = there == expected
        return known[place]

    async def _sums(self, meter: Meter, customer: str, start: datetime, end: datetime) -> tuple[int | None, int]:
        """What Stripe counted, and what it should have of postings that are known to be there. None: it does not know
        the customer any more, which is no reason not to tell it of others."""
        start = plan.hour_of(start)
        told = await self._journal.billed(start, end, customer, meter.event_name)
        try:
            found = await self._caller.call(self._caller.api.summaries, meter.id, customer, start, end)
        except RefusedError:
            return None, delivered(told)
        return sum(found.values()), delivered(told)

    async def _delivered(self, done: Pass, identifiers: Sequence[str], how: str) -> None:
        await self._journal.delivered(identifiers, self._caller.now(), how)
        number = len(identifiers)
        done.accepted += number if how == "accepted" else 0
        done.duplicates += number if how == "duplicate" else 0
        done.reconciled += number if how == "summary" else 0
        metrics.postings.labels(outcome=how).inc(number)


def _usable(meters: dict[str, Meter], event_name: str) -> bool:
    return event_name in meters and meters[event_name].active


def _event(posting: Posting, meter: Meter) -> MeterEvent:
    payload = {meter.customer_key: posting.customer_id, meter.value_key: str(posting.value)}
    return MeterEvent(posting.key.event_name, posting.identifier, posting.billed_at, payload)


def _show(done: Pass) -> None:
    tokens = dict.fromkeys(plan.REASONS, 0)
    for one in done.held:
        tokens[one.hold.reason] += abs(one.hold.tokens)
    for missing in ("meter", "customer"):
        tokens[f"no_{missing}"] = sum(abs(one.tokens) for one in done.unmapped if one.missing == missing)
    for reason, number in tokens.items():
        metrics.held.labels(reason=reason).set(number)
