"""Meters and their events: what Stripe keeps of them, and by which rules.

- An identifier is taken once in 24 hours; what comes again is refused (400, `stripe-should-retry: false`).
- An event is of the last 35 days, and at most 5 minutes ahead.
- The stream looks at what events hold later: who sent them reads errors in a report.
- An event can be cancelled within 24 hours of its arrival.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

DAY = 86_400.0
SESSION_S = 900.0


class RefusedError(Exception):
    """An answer of 4xx."""

    def __init__(self, message: str, *, status: int = 400, code: str = "parameter_invalid", retry: bool | None = None):
        super().__init__(message)
        self.status, self.code, self.retry = status, code, retry


@dataclass
class Event:
    identifier: str
    event_name: str
    payload: dict[str, str]
    timestamp: float
    received: float
    cancelled: bool = False
    counted: bool = False
    value: Decimal = Decimal(0)
    customer: str = ""


@dataclass
class Metering:
    """`after_refusal`: of a stream's request with a duplicate, the others are taken or not. `summaries_lag`: seconds
    until an event is in the summaries."""

    now: Callable[[], float]
    customers: dict[str, dict[str, Any]]
    stream_duplicates: Literal["refused", "others taken", "ignored"] = "refused"
    summaries_lag: float = 0.0
    meters: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    identifiers: dict[str, float] = field(default_factory=dict)
    sessions: dict[str, float] = field(default_factory=dict)
    errors: list[tuple[str, Event, str]] = field(default_factory=list)  # code, event, meter's id

    def create_meter(self, given: dict[str, Any]) -> dict[str, Any]:
        if any(one["event_name"] == given["event_name"] for one in self.meters.values()):
            raise RefusedError("A meter with this event name exists already.", code="resource_already_exists")
        made = {
            "id": f"mtr_{len(self.meters) + 1}", "object": "billing.meter", "status": "active", "livemode": False,
            "customer_mapping": {"event_payload_key": "stripe_customer_id", "type": "by_id"},
            "value_settings": {"event_payload_key": "value"}, "created": int(self.now()), **given,
        }  # fmt: skip
        self.meters[made["id"]] = made
        return made

    def open_session(self) -> dict[str, Any]:
        token = f"token_{len(self.sessions) + 1}"
        self.sessions[token] = self.now() + SESSION_S
        return {
            "id": f"mes_{len(self.sessions)}", "object": "v2.billing.meter_event_session", "livemode": False,
            "authentication_token": token, "created": iso(self.now()), "expires_at": iso(self.sessions[token]),
        }  # fmt: skip

    def admits(self, token: str) -> bool:
        return self.now() < self.sessions.get(token, 0.0)

    def stream(self, given: dict[str, Any]) -> None:
        events = given["events"]
        if len(events) > 100:
            raise RefusedError("At most 100 events can be sent in one request.", code="too_many_events")
        fresh = [one for one in events if not self._taken(one["identifier"])]
        twice = next((one for one in events if self._taken(one["identifier"])), None)
        if twice is None or self.stream_duplicates != "refused":
            for one in fresh:
                self._receive(one, _seconds(one.get("timestamp"), self.now()))
        if twice is not None and self.stream_duplicates != "ignored":
            raise self._duplicate(twice["identifier"])
        self.process()

    def one(self, given: dict[str, Any], timestamp: float) -> dict[str, Any]:
        """Looked at before it is answered."""
        if self._taken(given["identifier"]):
            raise self._duplicate(given["identifier"])
        event = Event(given["identifier"], given["event_name"], given["payload"], timestamp, self.now())
        code, _ = self._fault(event)
        if code:
            raise RefusedError(f"The event cannot be counted: {code}.", code=code)
        event.counted = True
        self.identifiers[event.identifier] = event.received
        self.events.append(event)
        return {
            "object": "billing.meter_event", "identifier": event.identifier, "event_name": event.event_name,
            "payload": event.payload, "timestamp": int(timestamp), "created": int(self.now()), "livemode": False,
        }  # fmt: skip

    def cancel(self, event_name: str, identifier: str) -> dict[str, Any]:
        found = next((one for one in reversed(self.events) if one.identifier == identifier), None)
        if found is None or found.event_name != event_name:
            raise RefusedError(f"No such meter event: {identifier}", status=404, code="resource_missing")
        if self.now() - found.received > DAY:
            raise RefusedError("Events can be cancelled within 24 hours.", code="meter_event_too_old")
        if found.cancelled:
            raise RefusedError("The event is cancelled already.", code="meter_event_already_cancelled")
        found.cancelled = True
        return {"object": "billing.meter_event_adjustment", "status": "pending", "type": "cancel", "livemode": False,
                "event_name": event_name, "cancel": {"identifier": identifier}}  # fmt: skip

    def process(self) -> None:
        """What is done with events after they were taken."""
        for event in self.events:
            if not event.counted and not event.customer:
                code, meter = self._fault(event)
                if code:
                    self.errors.append((code, event, meter))
                    event.customer = "-"
                else:
                    event.counted = True

    def total(self, meter_id: str, customer: str, start: float, end: float) -> Decimal:
        name = self.meters[meter_id]["event_name"]
        return sum(
            (one.value for one in self.events
             if one.counted and not one.cancelled and one.event_name == name and one.customer == customer
             and start <= one.timestamp < end and one.received <= self.now() - self.summaries_lag),
            Decimal(0),
        )  # fmt: skip

    def summaries(self, meter_id: str, given: dict[str, Any]) -> list[dict[str, Any]]:
        start, end, window = given["start_time"], given["end_time"], given.get("value_grouping_window")
        step = {"hour": 3600, "day": 86_400, None: end - start}[window]
        if start % (60 if window is None else step) or end % (60 if window is None else step):
            raise RefusedError("start_time and end_time must be aligned.", code="parameter_invalid")
        found = []
        for at in range(start, end, step):
            value = self.total(meter_id, given["customer"], at, at + step)
            if value or window is None:
                found.append({
                    "id": f"mtrsum_{meter_id}_{given['customer']}_{at}", "object": "billing.meter_event_summary",
                    "aggregated_value": float(value), "start_time": at, "end_time": at + step, "meter": meter_id,
                    "livemode": False,
                })  # fmt: skip
        return found[::-1]

    def _taken(self, identifier: str) -> bool:
        return self.now() - self.identifiers.get(identifier, -DAY) < DAY

    def _duplicate(self, identifier: str) -> RefusedError:
        return RefusedError(
            f"An event already exists with identifier {identifier}.", code="duplicate_meter_event", retry=False
        )

    def _receive(self, one: dict[str, Any], timestamp: float) -> None:
        self.identifiers[one["identifier"]] = self.now()
        self.events.append(Event(one["identifier"], one["event_name"], one["payload"], timestamp, self.now()))

    def _fault(self, event: Event) -> tuple[str, str]:
        """Why it cannot be counted, and of which meter. Fills in customer and value."""
        meter = next((one for one in self.meters.values() if one["event_name"] == event.event_name), None)
        if meter is None:
            return "no_meter", ""
        customer = event.payload.get(meter["customer_mapping"]["event_payload_key"])
        code = ""
        if meter["status"] != "active":
            code = "archived_meter"
        elif customer is None:
            code = "meter_event_no_customer_defined"
        elif customer not in self.customers or self.customers[customer].get("deleted"):
            code = "meter_event_customer_not_found"
        elif event.timestamp < event.received - 35 * DAY:
            code = "timestamp_too_far_in_past"
        elif event.timestamp > event.received + 300:
            code = "timestamp_in_future"
        else:
            code = self._value(event, meter)
            event.customer = "" if code else customer
        return code, meter["id"]

    @staticmethod
    def _value(event: Event, meter: dict[str, Any]) -> str:
        try:
            event.value = Decimal(event.payload[meter["value_settings"]["event_payload_key"]])
        except (KeyError, InvalidOperation):
            return "meter_event_invalid_value"
        return "meter_event_value_too_many_digits" if len(event.value.as_tuple().digits) > 15 else ""


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _seconds(timestamp: str | None, now: float) -> float:
    if timestamp is None:
        return now
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        raise RefusedError(f"Invalid timestamp: {timestamp}", code="invalid_fields") from None
