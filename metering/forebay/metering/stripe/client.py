"""Stripe's API as far as it is used here, through stripe-python: calls that block, and end within a bound.

The library is imported when a client is made: it is in the extra `stripe`. What a call may raise is one of the errors
below; none of them holds a key, nor a text of Stripe's that could quote one.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from forebay.metering.stripe.records import Meter

TIMEOUTS = (5.0, 15.0)  # seconds to connect, to be answered
BATCH = 100  # events that Stripe takes in one request
_PAGES = 100  # of a list, at most
_FINAL = {"open", "paid", "uncollectible"}  # statuses of an invoice that cannot change any more


class StripeMissingError(RuntimeError):
    """The library is not installed."""

    def __init__(self) -> None:
        super().__init__("stripe-python is not installed; install forebay[stripe], or pip install 'stripe>=16.1'")


class StripeError(Exception):
    """A call that did not succeed. `code` is Stripe's, or what kind of failure it was."""

    def __init__(self, code: str, status: int | None = None) -> None:
        super().__init__(code if status is None else f"{code} ({status})")
        self.code = code
        self.status = status


class DuplicateError(StripeError):
    """Stripe has an event of that identifier already."""


class RefusedError(StripeError):
    """As it stands, the request can never succeed."""


class RejectedKeyError(StripeError):
    """Stripe does not take the key, or the session's token."""


class AwayError(StripeError):
    """Stripe did not answer, or told to come back: it may or may not have done what was asked. `after`: seconds."""

    def __init__(self, code: str, status: int | None = None, after: float | None = None) -> None:
        super().__init__(code, status)
        self.after = after


class MeterEvent(Struct, frozen=True):
    event_name: str
    identifier: str
    at: datetime
    payload: dict[str, str]


class Session(Struct, frozen=True):
    token: str
    expires_at: datetime


class ReportedError(Struct, frozen=True):
    """Of an error report: how many events failed with a code, and the identifiers of some."""

    code: str
    count: int
    identifiers: tuple[str, ...]


class Line(Struct, frozen=True):
    """A line of an invoice that cannot change any more."""

    invoice: str
    paid: bool
    id: str
    quantity: int


class Api:
    """For one caller at a time. Raises `StripeMissingError` when made without the library."""

    def __init__(self, key: str, *, api_base: str = "", meter_events_base: str = "") -> None:
        try:
            self._stripe = importlib.import_module("stripe")
            self._http = importlib.import_module("requests").Session()
        except ImportError:
            raise StripeMissingError from None
        bases = {"api": api_base, "meter_events": meter_events_base}
        self._client = self._stripe.StripeClient(
            key,
            base_addresses={name: base for name, base in bases.items() if base},
            max_network_retries=0,  # whoever calls knows what a repeat may do
            http_client=self._stripe.RequestsClient(timeout=TIMEOUTS, session=self._http),
        )

    def __repr__(self) -> str:
        return "<Api>"

    def close(self) -> None:
        self._http.close()

    def meters(self) -> dict[str, Meter]:
        """By event name."""
        with self._translated():
            found = self._client.v1.billing.meters.list({"limit": 100})
            return {one.event_name: _meter(one) for one in _bounded(found.auto_paging_iter())}

    def has_customer(self, customer_id: str) -> bool:
        try:
            with self._translated():
                return not getattr(self._client.v1.customers.retrieve(customer_id), "deleted", False)
        except RefusedError:
            return False

    def open_session(self) -> Session:
        with self._translated():
            made = self._client.v2.billing.meter_event_session.create()
            return Session(made.authentication_token, datetime.fromisoformat(made.expires_at))

    def send(self, session: Session, events: Sequence[MeterEvent]) -> None:
        """At most `BATCH`. Stripe looks at what they hold later, and reports errors by webhook."""
        given = [
            {"event_name": one.event_name, "identifier": one.identifier, "payload": one.payload,
             "timestamp": one.at.astimezone(UTC).isoformat().replace("+00:00", "Z")}
            for one in events
        ]  # fmt: skip
        with self._translated():
            self._client.v2.billing.meter_event_stream.create({"events": given}, {"api_key": session.token})

    def cancel(self, event_name: str, identifier: str) -> None:
        asked = {"type": "cancel", "event_name": event_name, "cancel": {"identifier": identifier}}
        with self._translated():
            self._client.v1.billing.meter_event_adjustments.create(asked, {"idempotency_key": f"cancel-{identifier}"})

    def summaries(self, meter_id: str, customer_id: str, start: datetime, end: datetime) -> dict[datetime, int]:
        """What Stripe counted in each hour from `start` to `end` (whole hours); hours of nothing may be absent."""
        asked = {
            "customer": customer_id, "start_time": int(start.timestamp()), "end_time": int(end.timestamp()),
            "value_grouping_window": "hour", "limit": 100,
        }  # fmt: skip
        with self._translated():
            found = self._client.v1.billing.meters.event_summaries.list(meter_id, asked)
            return {
                datetime.fromtimestamp(one.start_time, UTC): round(one.aggregated_value)
                for one in _bounded(found.auto_paging_iter())
            }

    def reported(self, event_id: str) -> list[ReportedError]:
        """What an error report says, fetched by the id that its notice gave."""
        with self._translated():
            reason = self._client.v2.core.events.retrieve(event_id).data.reason
            return [
                ReportedError(
                    str(kind.code), int(kind.error_count),
                    tuple(sample.request.identifier for sample in kind.sample_errors),
                )
                for kind in reason.error_types
            ]  # fmt: skip

    def final_lines(self, customer_id: str, meter_id: str, at: datetime) -> list[Line]:
        """The lines of final invoices that bill what this meter counted at a time."""
        with self._translated():
            prices = {
                one.id
                for one in _bounded(self._client.v1.prices.list({"recurring": {"meter": meter_id}}).auto_paging_iter())
            }
            asked = {"customer": customer_id, "created": {"gte": int(at.timestamp())}, "limit": 100}
            invoices = self._client.v1.invoices.list(asked).auto_paging_iter()
            return [
                Line(invoice.id, invoice.status == "paid", line.id, int(line.quantity or 0))
                for invoice in _bounded(invoices) if invoice.status in _FINAL
                for line in _bounded(self._client.v1.invoices.line_items.list(invoice.id).auto_paging_iter())
                if line.period.start <= at.timestamp() < line.period.end and _price_of(line) in prices
            ]  # fmt: skip

    def credits(self, invoice: str) -> list[tuple[str, dict[str, str]]]:
        """An invoice's credit notes: id, metadata."""
        with self._translated():
            found = self._client.v1.credit_notes.list({"invoice": invoice, "limit": 100})
            return [
                (one.id, one.metadata.to_dict() if one.metadata else {}) for one in _bounded(found.auto_paging_iter())
            ]

    def credit(self, line: Line, quantity: int, metadata: Mapping[str, str], key: str) -> str | None:
        """A credit note over so many of a line's tokens; its id. None: they are worth less than can be credited."""
        given: dict[str, Any] = {
            "invoice": line.invoice,
            "lines": [{"type": "invoice_line_item", "invoice_line_item": line.id, "quantity": quantity}],
        }
        with self._translated():
            worth = int(self._client.v1.credit_notes.preview(given).total)
            if worth <= 0:
                return None
            if line.paid:  # goes to the customer's balance, which the next invoice uses
                given["credit_amount"] = worth
            given |= {"metadata": dict(metadata), "memo": "Usage corrected after the invoice"}
            return str(self._client.v1.credit_notes.create(given, {"idempotency_key": key}).id)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of the library as ours."""
        try:
            yield
        except self._stripe.StripeError as error:
            raise translated(error) from None


def translated(error: Any) -> StripeError:
    """By status, and by what Stripe says of retrying."""
    status, headers = error.http_status, {name.lower(): value for name, value in (error.headers or {}).items()}
    code = str(error.code or ("unreachable" if status is None else type(error).__name__))
    if status in {401, 403}:
        return RejectedKeyError(code, status)
    if status is None or status in {409, 429} or status >= 500:
        return AwayError(code, status, _seconds(headers.get("retry-after")))
    if "already exists with identifier" in str(error.user_message or ""):
        return DuplicateError(code, status)
    return RefusedError(code, status)


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() else None


def _bounded(items: Iterator[Any]) -> Iterator[Any]:
    for number, item in enumerate(items):
        if number >= 100 * _PAGES:
            raise RefusedError("list_too_long")
        yield item


def _meter(one: Any) -> Meter:
    return Meter(
        one.id, one.event_name, str(one.default_aggregation.formula), one.status == "active",
        one.customer_mapping.event_payload_key, one.value_settings.event_payload_key,
    )  # fmt: skip


def _price_of(line: Any) -> str | None:
    details = getattr(getattr(line, "pricing", None), "price_details", None)
    price = getattr(details, "price", None)
    return price if price is None or isinstance(price, str) else str(price.id)
