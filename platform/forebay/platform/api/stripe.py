"""`POST /webhooks/stripe`: Stripe's own word that it could not count what it was sent.

Stripe delivers at least once, in any order. What it has signed is kept by its id before it is answered, and read at the
next sync; what comes again changes nothing. What nobody has signed, or long ago, is refused.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
from litestar import Request, Response, post
from litestar.di import NamedDependency

from forebay.metering.stripe import NOTICES, ForgedError, opened
from forebay.metering.stripe.metrics import notices
from forebay.platform.errors import ApiError, invalid
from forebay.platform.service import Service
from forebay.platform.stores.database import reachable

_LARGEST = 256 << 10


@post("/webhooks/stripe", request_max_body_size=_LARGEST, status_code=200)
async def stripe_webhook(
    request: Request[Any, Any, Any], service: NamedDependency[Service]
) -> Response[dict[str, str]]:
    if service.stripe is None or not service.stripe.webhook_secrets:
        text = "Webhooks of Stripe are not configured: see stripe.webhookSecrets."
        raise ApiError(404, "webhook_not_configured", text)
    body, signature = await request.body(), request.headers.get("stripe-signature", "")
    try:
        notice = opened(body, signature, service.stripe.webhook_secrets, datetime.now(UTC))
    except ForgedError as error:
        notices.labels(outcome="forged").inc()
        raise invalid(str(error), code="invalid_signature") from None
    except msgspec.DecodeError:
        raise invalid("The body is signed, and is no event of Stripe.", code="invalid_event") from None
    if notice.type not in NOTICES:
        notices.labels(outcome="ignored").inc()
        return Response({"status": "ignored"})
    with reachable():
        new = await service.stripe.journal.notice(notice.id, notice.type)
    notices.labels(outcome="kept" if new else "repeated").inc()
    return Response({"status": "kept" if new else "known"})
