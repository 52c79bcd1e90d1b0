"""The double's HTTP: stripe-python talks to it as it does to Stripe. `python -m tests.doubles.stripe.server` runs one,
with a customer, meters and prices, to try commands on.

Time is virtual: `sleep` is what its clients wait by. Faults are put in with `fail`.
"""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stripe import WebhookSignature

from tests.doubles.stripe.invoicing import Invoicing
from tests.doubles.stripe.metering import Metering, RefusedError, iso
from tests.doubles.stripe.shapes import ShapeError, check, shape, unflattened

KEY = "sk_test_double"
WEBHOOK_SECRET = "whsec_double"
REPORT = "v1.billing.meter.error_report_triggered"
NO_METER = "v1.billing.meter.no_meter_found"
_SAMPLES = 5  # errors that a report names, at most

_ROUTES: list[tuple[str, str, str, str]] = [
    ("POST", r"/v1/customers", "CustomerCreateParams", "create_customer"),
    ("GET", r"/v1/customers/(\w+)", "CustomerRetrieveParams", "get_customer"),
    ("POST", r"/v1/billing/meters", "billing.MeterCreateParams", "create_meter"),
    ("GET", r"/v1/billing/meters", "billing.MeterListParams", "list_meters"),
    ("POST", r"/v1/billing/meters/(\w+)/deactivate", "billing.MeterDeactivateParams", "deactivate_meter"),
    ("GET", r"/v1/billing/meters/(\w+)/event_summaries", "billing.MeterListEventSummariesParams", "list_summaries"),
    ("POST", r"/v1/billing/meter_events", "billing.MeterEventCreateParams", "create_event"),
    ("POST", r"/v2/billing/meter_events", "v2.billing.MeterEventCreateParams", "create_event_v2"),
    ("POST", r"/v1/billing/meter_event_adjustments", "billing.MeterEventAdjustmentCreateParams", "adjust"),
    ("POST", r"/v2/billing/meter_event_adjustments", "v2.billing.MeterEventAdjustmentCreateParams", "adjust"),
    ("POST", r"/v2/billing/meter_event_session", "v2.billing.MeterEventSessionCreateParams", "open_session"),
    ("POST", r"/v2/billing/meter_event_stream", "v2.billing.MeterEventStreamCreateParams", "stream"),
    ("GET", r"/v2/core/events/(\w+)", "v2.core.EventRetrieveParams", "get_event"),
    ("POST", r"/v1/prices", "PriceCreateParams", "create_price"),
    ("GET", r"/v1/prices", "PriceListParams", "list_prices"),
    ("POST", r"/v1/subscriptions", "SubscriptionCreateParams", "subscribe"),
    ("GET", r"/v1/invoices", "InvoiceListParams", "list_invoices"),
    ("GET", r"/v1/invoices/(\w+)/lines", "InvoiceLineItemListParams", "list_lines"),
    ("GET", r"/v1/credit_notes", "CreditNoteListParams", "list_credits"),
    ("GET", r"/v1/credit_notes/preview", "CreditNotePreviewParams", "preview_credit"),
    ("POST", r"/v1/credit_notes", "CreditNoteCreateParams", "credit"),
]


class StripeDouble:
    """`rate`: requests in a second of its own time; more are refused with 429. `requests`: what was asked, in order."""

    def __init__(self, now: float | None = None) -> None:
        self._lock = threading.RLock()
        self._frozen = now
        self.rate = 25
        self.customers: dict[str, dict[str, Any]] = {}
        self.metering = Metering(self.now, self.customers)
        self.invoicing = Invoicing(self.now, self.metering)
        self.notices: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.limited = 0
        self._faults: deque[tuple[str, str]] = deque()
        self._recent: deque[float] = deque()
        self._kept: dict[str, tuple[Any, float, int, Any]] = {}
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def now(self) -> float:
        """Its own time stands still unless it runs by the machine's."""
        return self._frozen if self._frozen is not None else time.time()

    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.now(), UTC)

    def advance(self, seconds: float) -> None:
        assert self._frozen is not None
        self._frozen += seconds

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def fail(self, path: str, how: str, times: int = 1) -> None:
        """The next requests of a path: `429`, `500`, `lost` (done, and never answered), `dropped` (neither)."""
        self._faults.extend([(path, how)] * times)

    # -- webhooks ----------------------------------------------------------------------------------------------------

    def report(self) -> list[str]:
        """Put the errors so far into reports, one of each meter; their ids."""
        by_meter: dict[str, dict[str, list[str]]] = {}
        for code, event, meter in self.metering.errors:
            by_meter.setdefault(meter, {}).setdefault(code, []).append(event.identifier)
        self.metering.errors.clear()
        made = []
        for meter, codes in by_meter.items():
            number = f"evt_{len(self.notices) + 1}"
            kinds = [
                {"code": code, "error_count": len(names), "sample_errors": [
                    {"error_message": code, "request": {"identifier": name}} for name in names[:_SAMPLES]]}
                for code, names in codes.items()
            ]  # fmt: skip
            related = {"id": meter, "type": "billing.meter", "url": f"/v1/billing/meters/{meter}"} if meter else None
            self.notices[number] = {
                "id": number, "object": "v2.core.event", "type": REPORT if meter else NO_METER, "livemode": False,
                "created": iso(self.now()), "related_object": related, "reason": None, "context": None,
                "data": {"developer_message_summary": "events were not counted",
                         "validation_start": iso(self.now()), "validation_end": iso(self.now()),
                         "reason": {"error_count": sum(map(len, codes.values())), "error_types": kinds}},
            }  # fmt: skip
            made.append(number)
        return made

    def notice(self, event_id: str) -> bytes:
        """The body of its webhook, which is thin."""
        return json.dumps({name: value for name, value in self.notices[event_id].items() if name != "data"}).encode()

    def signature(self, body: bytes, *, secret: str = WEBHOOK_SECRET, age: float = 0.0) -> str:
        at = int(self.now() - age)
        made: str = WebhookSignature.generate_signature_header(body.decode(), secret, at)
        return made

    # -- requests ----------------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], Any] | None:
        """None: nothing is answered, and the connection ends."""
        path = urlsplit(target).path
        with self._lock:
            self.requests.append(f"{method} {path}")
            fault = self._fault(path)
            if fault == "dropped":
                return None
            if fault in {"429", "500"} or self._is_too_fast():
                self.limited += fault is None
                status = int(fault or 429)
                return status, {"retry-after": "1"}, _error("rate_limit" if status == 429 else "api_error", "later")
            try:
                status, answer = self._dispatch(method, target, headers, body)
            except RefusedError as error:
                retry = {} if error.retry is None else {"stripe-should-retry": str(error.retry).lower()}
                return error.status, retry, _error(error.code, str(error))
            except ShapeError as error:
                return 400, {}, _error("parameter_invalid", str(error), error.param)
            return None if fault == "lost" else (status, {}, answer)

    def _dispatch(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, Any]:
        parts = urlsplit(target)
        token = headers.get("authorization", "").removeprefix("Bearer ")
        streams = parts.path == "/v2/billing/meter_event_stream"
        if not (self.metering.admits(token) if streams else token == KEY):
            raise RefusedError("The key or token is not valid, or has expired.", status=401, code="token_expired")
        route = next((one for one in _ROUTES if one[0] == method and re.fullmatch(one[1], parts.path)), None)
        if route is None:
            raise RefusedError(f"Unrecognized request URL ({method}: {parts.path}).", status=404, code="unknown_url")
        form = not parts.path.startswith("/v2/") or method == "GET"
        text = parts.query if method == "GET" else body.decode()
        given = unflattened(parse_qsl(text, keep_blank_values=True)) if form else json.loads(text or "{}")
        given = check(given, shape(route[2]), form=form)
        key = headers.get("idempotency-key") if method == "POST" else None
        if key is not None and (kept := self._kept.get(key)) is not None and self.now() - kept[1] < 86_400:
            if kept[0] != (parts.path, given):
                raise RefusedError("Keys for idempotent requests can only be used with the same parameters.",
                              code="idempotency_key_in_use")  # fmt: skip
            return kept[2], kept[3]
        found = re.fullmatch(route[1], parts.path)
        assert found is not None
        answer = getattr(self, f"_{route[3]}")(given, *found.groups())
        if key is not None:
            self._kept[key] = ((parts.path, given), self.now(), 200, answer)
        return 200, answer

    def _fault(self, path: str) -> str | None:
        for fault in self._faults:
            if path.startswith(fault[0]):
                self._faults.remove(fault)
                return fault[1]
        return None

    def _is_too_fast(self) -> bool:
        now = self.now()
        while self._recent and self._recent[0] <= now - 1.0:
            self._recent.popleft()
        if len(self._recent) >= self.rate:
            return True
        self._recent.append(now)
        return False

    # -- what is asked -----------------------------------------------------------------------------------------------

    def _create_customer(self, given: dict[str, Any]) -> Any:
        made = {"id": f"cus_{len(self.customers) + 1}", "object": "customer", "livemode": False, **given}
        self.customers[made["id"]] = made
        return made

    def _get_customer(self, _: dict[str, Any], name: str) -> Any:
        if name not in self.customers:
            raise RefusedError(f"No such customer: '{name}'", status=404, code="resource_missing")
        return self.customers[name]

    def _create_meter(self, given: dict[str, Any]) -> Any:
        return self.metering.create_meter(given)

    def _list_meters(self, given: dict[str, Any]) -> Any:
        return _page(list(self.metering.meters.values()), given, "/v1/billing/meters")

    def _deactivate_meter(self, _: dict[str, Any], name: str) -> Any:
        self.metering.meters[name]["status"] = "inactive"
        return self.metering.meters[name]

    def _list_summaries(self, given: dict[str, Any], name: str) -> Any:
        if name not in self.metering.meters:
            raise RefusedError(f"No such meter: {name}", status=404, code="resource_missing")
        self._get_customer({}, given["customer"])
        return _page(self.metering.summaries(name, given), given, f"/v1/billing/meters/{name}/event_summaries")

    def _create_event(self, given: dict[str, Any]) -> Any:
        named = {"identifier": f"auto_{len(self.metering.events)}", **given}
        return self.metering.one(named, float(given.get("timestamp", self.now())))

    def _create_event_v2(self, given: dict[str, Any]) -> Any:
        at = given.get("timestamp")
        when = self.now() if at is None else datetime.fromisoformat(at).timestamp()
        return self.metering.one({"identifier": f"auto_{len(self.metering.events)}", **given}, when)

    def _adjust(self, given: dict[str, Any]) -> Any:
        return self.metering.cancel(given["event_name"], given["cancel"]["identifier"])

    def _open_session(self, _: dict[str, Any]) -> Any:
        return self.metering.open_session()

    def _stream(self, given: dict[str, Any]) -> Any:
        self.metering.stream(given)
        return {}

    def _get_event(self, _: dict[str, Any], name: str) -> Any:
        if name not in self.notices:
            raise RefusedError(f"No such event: {name}", status=404, code="not_found")
        return self.notices[name]

    def _create_price(self, given: dict[str, Any]) -> Any:
        return self.invoicing.create_price(given)

    def _list_prices(self, given: dict[str, Any]) -> Any:
        meter = given.get("recurring", {}).get("meter")
        prices = [one for one in self.invoicing.prices.values() if meter in {None, one["recurring"].get("meter")}]
        return _page(prices, given, "/v1/prices")

    def _subscribe(self, given: dict[str, Any]) -> Any:
        return self.invoicing.subscribe(given)

    def _list_invoices(self, given: dict[str, Any]) -> Any:
        since = given.get("created", {}).get("gte", 0)
        found = [one for one in self.invoicing.invoices.values()
                 if given.get("customer") in {None, one["customer"]} and one["created"] >= since]  # fmt: skip
        return _page([_shown(one) for one in found], given, "/v1/invoices")

    def _list_lines(self, given: dict[str, Any], name: str) -> Any:
        return _page(self.invoicing.invoices[name]["lines_"], given, f"/v1/invoices/{name}/lines")

    def _list_credits(self, given: dict[str, Any]) -> Any:
        found = [one for one in self.invoicing.credit_notes.values() if given.get("invoice") in {None, one["invoice"]}]
        return _page([_shown(one) for one in found], given, "/v1/credit_notes")

    def _preview_credit(self, given: dict[str, Any]) -> Any:
        return _shown(self.invoicing.credit(given, preview=True))

    def _credit(self, given: dict[str, Any]) -> Any:
        return _shown(self.invoicing.credit(given))


def _shown(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "lines_"}


def _page(items: list[dict[str, Any]], given: dict[str, Any], url: str) -> dict[str, Any]:
    """One of a list, after a cursor."""
    after, limit = given.get("starting_after"), given.get("limit", 10)
    start = next((i + 1 for i, one in enumerate(items) if one["id"] == after), 0) if after else 0
    return {"object": "list", "url": url, "data": items[start : start + limit], "has_more": len(items) > start + limit}


def _error(code: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {"error": {"type": "invalid_request_error", "code": code, "message": message, "param": param}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    double: StripeDouble

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        found = self.double.answer(self.command, self.path, self.headers, body)
        if found is None:
            self.close_connection = True
            return
        status, headers, answer = found
        text = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**headers, "content-type": "application/json", "content-length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = _handle  # noqa: N815

    def log_message(self, *_: Any) -> None:
        return


@contextmanager
def serving(double: StripeDouble, port: int = 0) -> Iterator[StripeDouble]:
    handler = type("Handler", (_Handler,), {"double": double})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    double.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def main() -> None:
    double = StripeDouble()
    customer = double._create_customer({"name": "Acme"})["id"]
    for name in ("input", "cached", "output"):
        meter = double.metering.create_meter(
            {"display_name": name, "event_name": f"{name}_tokens", "default_aggregation": {"formula": "sum"}}
        )
        price = {"currency": "usd", "unit_amount_decimal": "0.0001", "recurring": {"interval": "month",
                 "usage_type": "metered", "meter": meter["id"]}}  # fmt: skip
        double._subscribe({"customer": customer, "items": [{"price": double._create_price(price)["id"]}]})
    with serving(double, 12111):
        print(f"{double.url}: key {KEY}, customer {customer}, meters input_tokens, cached_tokens, output_tokens")
        threading.Event().wait()


if __name__ == "__main__":
    main()
