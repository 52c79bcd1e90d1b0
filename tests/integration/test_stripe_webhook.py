"""Stripe's webhooks at a front door, which tells Stripe as well."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx import Response

from tests.doubles.engine.server import EngineDouble
from tests.doubles.stripe.server import KEY, WEBHOOK_SECRET, StripeDouble, serving
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import Door
from tests.integration.told import stocked

BODY = b'{"id":"evt_1","object":"v2.core.event","type":"v1.billing.meter.error_report_triggered"}'


@pytest.fixture
def double() -> Iterator[StripeDouble]:
    double = stocked()
    double._frozen = None
    with serving(double):
        yield double


@pytest.fixture
def section(double: StripeDouble, tmp_path: Path) -> dict[str, Any]:
    for name, text in (("key", KEY), ("hooks", f"# of the endpoint\n{WEBHOOK_SECRET}\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    return {
        "secretKey": str(tmp_path / "key"), "webhookSecrets": str(tmp_path / "hooks"), "since": "2026-01-01T00:00:00Z",
        "every": 0.2, "apiBase": double.url, "meterEventsBase": double.url,
    }  # fmt: skip


async def send(door: Door, body: bytes, signature: str) -> Response:
    return await door.http.post("/webhooks/stripe", content=body, headers={"stripe-signature": signature})


async def test_what_stripe_signed_is_kept_once_and_read(
    open_door: OpenDoor, double: StripeDouble, section: dict[str, Any]
) -> None:
    double.metering.stream({"events": [{"event_name": "output", "identifier": "x", "payload": {}}]})
    (report,) = double.report()
    body = double.notice(report)
    async with EngineDouble() as engine, open_door(engine, stripe=section) as door:
        first = await send(door, body, double.signature(body))
        again = await send(door, body, double.signature(body, age=-1))
        assert (first.status_code, first.json(), again.json()) == (200, {"status": "kept"}, {"status": "known"})
        assert door.service.stripe is not None

        async def read() -> list[dict[str, Any]]:
            assert door.service.stripe is not None
            return await door.service.stripe.journal.reports()

        (known,) = await eventually(read, 10.0)
        assert (known["event_id"], known["errors"], known["named"]) == (report, 1, 0)
        assert known["details"][0]["code"] == "meter_event_no_customer_defined"

        async def synced() -> bool:
            metrics = (await door.http.get("/metrics")).text
            assert 'forebay_stripe_webhooks_total{outcome="kept"}' in metrics
            line = next(one for one in metrics.splitlines() if one.startswith("forebay_stripe_synced_timestamp"))
            return float(line.split()[1]) > time.time() - 60

        assert await eventually(synced, 10.0)


async def test_what_nobody_signed_is_refused_and_leaves_nothing(
    open_door: OpenDoor, double: StripeDouble, section: dict[str, Any]
) -> None:
    async with EngineDouble() as engine, open_door(engine, stripe=section) as door:
        forged, late = double.signature(BODY, secret="whsec_other"), double.signature(BODY, age=600)
        for signature in ("", "t=1,v1=00", forged, late):
            refused = await send(door, BODY, signature)
            assert refused.status_code == 400
            assert refused.json()["error"]["code"] == "invalid_signature"
        large = await send(door, BODY + b" " * (300 << 10), double.signature(BODY))
        assert large.status_code == 413
        assert door.service.stripe is not None
        assert await door.service.stripe.journal.unread() == []
        other = b'{"id":"evt_2","object":"event","type":"invoice.paid"}'
        assert (await send(door, other, double.signature(other))).json() == {"status": "ignored"}
        assert (await send(door, b"{}", double.signature(b"{}"))).json()["error"]["code"] == "invalid_event"


async def test_without_secrets_there_is_no_webhook(open_door: OpenDoor, double: StripeDouble) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        refused = await send(door, BODY, double.signature(BODY))
        assert refused.status_code == 404
        assert "stripe.webhookSecrets" in refused.json()["error"]["message"]
