"""`stripe:`: whether and how usage is told to Stripe."""

from typing import Annotated

from msgspec import Meta

from forebay.platform.config.words import Instant, Seconds, Section, Text, Url


class Stripe(Section, frozen=True):
    """Usage told to Stripe as meter events of its customers; needs the extra `stripe`."""

    secret_key: Annotated[
        Text,
        Meta(
            description="File with Stripe's secret or restricted key (sk_…, rk_…) on a line.",
            examples=["/run/secrets/stripe-key"],
            extra={"private": True},
        ),
    ]
    since: Annotated[
        Instant,
        Meta(
            description="Usage before this is none of Stripe's business.",
            examples=["2026-12-01T00:00:00Z"],
        ),
    ]
    webhook_secrets: Annotated[
        Text | None,
        Meta(
            description="File with the signing secrets of Stripe's webhook (whsec_…), one a line. Unset, webhooks are "
            "refused.",
            extra={"private": True},
        ),
    ] = None
    every: Annotated[Seconds, Meta(description="Seconds between two looks at what is to be told.")] = 300.0
    lag: Annotated[
        Seconds, Meta(description="Seconds after an hour's end before it is told, for its last records to arrive.")
    ] = 300.0
    final_after: Annotated[
        float,
        Meta(
            ge=0,
            le=259_200,
            description="Seconds after a month's end when its invoice is final at Stripe: what is used more after that "
            "is billed in the current month, what is less is credited.",
        ),
    ] = 3600.0
    requests_per_second: Annotated[
        float, Meta(gt=0, le=1000, description="Calls of Stripe at most; its limits are in docs/stripe.md.")
    ] = 20.0
    api_base: Annotated[Url | None, Meta(description="Instead of https://api.stripe.com, for tests.")] = None
    meter_events_base: Annotated[
        Url | None, Meta(description="Instead of https://meter-events.stripe.com, for tests.")
    ] = None
