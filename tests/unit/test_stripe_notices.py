"""Who may tell us that Stripe could not count."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from forebay.metering.stripe import ForgedError, opened
from tests.doubles.stripe.server import WEBHOOK_SECRET, StripeDouble

NOW = datetime(2026, 11, 10, tzinfo=UTC)
BODY = b'{"id":"evt_1","object":"v2.core.event","type":"v1.billing.meter.error_report_triggered","created":"x"}'


def signed(body: bytes = BODY, secret: str = WEBHOOK_SECRET, age: float = 0.0) -> str:
    """By stripe-python itself."""
    return StripeDouble(NOW.timestamp()).signature(body, secret=secret, age=age)


def test_what_stripe_signs_is_opened() -> None:
    notice = opened(BODY, signed(), [WEBHOOK_SECRET], NOW)
    assert (notice.id, notice.type) == ("evt_1", "v1.billing.meter.error_report_triggered")


def test_secrets_can_be_changed() -> None:
    """While one replaces another, Stripe signs with both, and both are known here."""
    old, new = signed(secret="whsec_old"), signed(secret="whsec_new")
    for secrets in (["whsec_old"], ["whsec_new"], ["whsec_new", "whsec_old"]):
        assert opened(BODY, f"{old},{new.partition(',')[2]}", secrets, NOW).id == "evt_1"
    assert opened(BODY, old, ["whsec_new", "whsec_old"], NOW).id == "evt_1"


@pytest.mark.parametrize(("body", "signature", "problem"), [
    (BODY, "", "missing"),
    (BODY, "t=,v1=00", "missing"),
    (BODY, "t=1", "missing"),
    (BODY, "v1=00", "missing"),
    (BODY, "t=" + "9" * 40 + ",v1=00", "missing"),
    (BODY, "t=1,v1=é", "missing"),
    (BODY, f"t={int(NOW.timestamp())},v1={'0' * 64}", "No signature"),
    (BODY, signed(secret="whsec_forged"), "No signature"),
    (BODY, signed().replace("v1=", "v0="), "missing"),
    (BODY + b" ", signed(), "No signature"),
    (BODY, signed(age=301), "more than 300 seconds"),
    (BODY, signed(age=-301), "in the future"),
])  # fmt: skip
def test_what_is_forged_or_replayed_is_refused(body: bytes, signature: str, problem: str) -> None:
    with pytest.raises(ForgedError, match=problem):
        opened(body, signature, [WEBHOOK_SECRET], NOW)


def test_no_secret_opens_nothing() -> None:
    with pytest.raises(ForgedError):
        opened(BODY, signed(secret=""), [], NOW)


def test_a_late_one_is_taken_within_five_minutes() -> None:
    assert opened(BODY, signed(), [WEBHOOK_SECRET], NOW + timedelta(seconds=299)).id == "evt_1"


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"id":"","type":"x","object":"event"}', b'{"id":1,"type":"x"}'])
def test_a_signed_body_that_is_no_event(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        opened(body, signed(body), [WEBHOOK_SECRET], NOW)
