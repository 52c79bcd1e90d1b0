"""Stripe's API through stripe-python, against the double: what is sent has its types, and errors are told apart."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import stripe

from forebay.metering.stripe.client import (
    Api,
    AwayError,
    DuplicateError,
    MeterEvent,
    RefusedError,
    RejectedKeyError,
    Session,
)
from tests.doubles.stripe.server import KEY, StripeDouble, serving

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def double() -> Iterator[StripeDouble]:
    with serving(StripeDouble(NOW.timestamp())) as double:
        double.rate = 1000
        yield double


@pytest.fixture
def api(double: StripeDouble) -> Iterator[Api]:
    api = Api(KEY, api_base=double.url, meter_events_base=double.url)
    yield api
    api.close()


def library(double: StripeDouble) -> stripe.StripeClient:
    return stripe.StripeClient(
        KEY, base_addresses={"api": double.url, "meter_events": double.url}, max_network_retries=0
    )


def meter(double: StripeDouble, name: str = "tokens") -> str:
    given = {"display_name": name, "event_name": name, "default_aggregation": {"formula": "sum"}}
    return str(double.metering.create_meter(given)["id"])


def event(name: str = "one", *, value: str = "5", at: datetime = NOW - HOUR) -> MeterEvent:
    return MeterEvent("tokens", name, at, {"stripe_customer_id": "cus_1", "value": value})


def test_events_are_counted_by_the_hour_they_are_of(double: StripeDouble, api: Api) -> None:
    number = meter(double)
    double._create_customer({})
    session = api.open_session()
    api.send(session, [event(), event("two", value="7"), event("early", at=NOW - 3 * HOUR), event("less", value="-2")])
    assert api.summaries(number, "cus_1", NOW - 4 * HOUR, NOW) == {NOW - HOUR: 10, NOW - 3 * HOUR: 5}
    api.cancel("tokens", "two")
    assert api.summaries(number, "cus_1", NOW - HOUR, NOW) == {NOW - HOUR: 3}


def test_more_hours_than_fit_a_page(double: StripeDouble, api: Api) -> None:
    number = meter(double)
    double._create_customer({})
    session = api.open_session()
    hours = [NOW - n * HOUR for n in range(1, 251)]
    for start in range(0, 250, 100):
        api.send(session, [event(str(at), at=at) for at in hours[start : start + 100]])
    assert api.summaries(number, "cus_1", NOW - 300 * HOUR, NOW) == dict.fromkeys(hours, 5)


def test_what_comes_twice_is_a_duplicate(double: StripeDouble, api: Api) -> None:
    meter(double)
    double._create_customer({})
    session = api.open_session()
    api.send(session, [event()])
    with pytest.raises(DuplicateError):
        api.send(session, [event()])
    double.advance(86_400)
    api.send(api.open_session(), [event(at=NOW)])  # Stripe has forgotten the identifier
    assert len(double.metering.events) == 2


def test_a_token_ends_after_fifteen_minutes(double: StripeDouble, api: Api) -> None:
    session = api.open_session()
    assert session.expires_at == NOW + timedelta(minutes=15)
    double.advance(901)
    with pytest.raises(RejectedKeyError):
        api.send(session, [event()])


def test_too_many_events_at_once(double: StripeDouble, api: Api) -> None:
    with pytest.raises(RefusedError, match="too_many_events"):
        api.send(api.open_session(), [event(str(n)) for n in range(101)])


@pytest.mark.parametrize(("how", "status"), [("429", 429), ("500", 500), ("lost", None), ("dropped", None)])
def test_stripe_away(double: StripeDouble, api: Api, how: str, status: int | None) -> None:
    double.fail("/v1/billing/meters", how)
    with pytest.raises(AwayError) as told:
        api.meters()
    assert told.value.status == status
    assert told.value.after == (1.0 if status else None)


def test_too_many_requests_in_a_second(double: StripeDouble, api: Api) -> None:
    double.rate = 3
    for _ in range(3):
        api.meters()
    with pytest.raises(AwayError) as told:
        api.meters()
    assert told.value.status == 429
    double.advance(1.0)
    api.meters()


def test_another_key_is_refused_and_not_told(double: StripeDouble) -> None:
    api = Api("sk_test_other_secret", api_base=double.url)
    with pytest.raises(RejectedKeyError) as told:
        api.meters()
    assert "secret" not in str(told.value)
    assert "secret" not in repr(api)
    api.close()


def test_customers(double: StripeDouble, api: Api) -> None:
    double._create_customer({"name": "Acme"})
    assert api.has_customer("cus_1")
    assert not api.has_customer("cus_2")


def test_meters_as_they_are_configured(double: StripeDouble, api: Api) -> None:
    library(double).v1.billing.meters.create({
        "display_name": "Output", "event_name": "out", "default_aggregation": {"formula": "last"},
        "customer_mapping": {"type": "by_id", "event_payload_key": "who"},
        "value_settings": {"event_payload_key": "tokens"},
    })  # fmt: skip
    found = api.meters()["out"]
    assert (found.formula, found.customer_key, found.value_key, found.active) == ("last", "who", "tokens", True)


def test_errors_are_reported_later(double: StripeDouble, api: Api) -> None:
    meter(double)
    api.send(api.open_session(), [event(), event("bad", value="many"), event("old", at=NOW - timedelta(days=36))])
    (report,) = double.report()
    assert {one.code: (one.count, one.identifiers) for one in api.reported(report)} == {
        "meter_event_customer_not_found": (3, ("one", "bad", "old"))
    }
    double._create_customer({})
    api.send(Session(next(reversed(double.metering.sessions)), NOW), [
        event("bad2", value="many"), event("old2", at=NOW - timedelta(days=36)),
        event("ahead", at=NOW + timedelta(minutes=6)), event("long", value="1" * 16),
    ])  # fmt: skip
    (report,) = double.report()
    assert {one.code for one in api.reported(report)} == {
        "meter_event_invalid_value", "timestamp_too_far_in_past", "timestamp_in_future",
        "meter_event_value_too_many_digits",
    }  # fmt: skip


@pytest.mark.parametrize(("path", "given", "message"), [
    ("/v1/billing/meters", {"event_name": "x", "default_aggregation": {"formula": "sum"}}, "Missing required param"),
    ("/v1/billing/meters", {"display_name": "x", "event_name": "x", "default_aggregation": "sum"}, "must be a hash"),
    ("/v1/customers", {"nam": "x"}, "unknown parameter: nam"),
    ("/v1/billing/meter_events", {"event_name": "x", "payload": {"value": "1"}, "timestamp": "soon"}, "Invalid int"),
])  # fmt: skip
def test_the_double_takes_no_request_that_the_types_do_not_allow(
    double: StripeDouble, path: str, given: dict[str, object], message: str
) -> None:
    with pytest.raises(stripe.InvalidRequestError, match=message):
        library(double).raw_request("post", path, **given)


def test_the_double_answers_a_repeat_with_its_key_as_before(double: StripeDouble) -> None:
    client = library(double)
    made = [client.v1.customers.create({"name": "a"}, {"idempotency_key": "k"}).id for _ in range(2)]
    assert made[0] == made[1]
    with pytest.raises(stripe.StripeError, match="same parameters"):
        client.v1.customers.create({"name": "b"}, {"idempotency_key": "k"})
