"""Metrics of what is told to Stripe, on the default registry. None carries a tenant."""

from prometheus_client import Counter, Gauge

postings = Counter("forebay_stripe_postings_total", "Postings to Stripe by how they ended", ["outcome"])
failures = Counter("forebay_stripe_failures_total", "Calls of Stripe that failed, by kind", ["kind"])
notices = Counter("forebay_stripe_webhooks_total", "Webhooks of Stripe by what became of them", ["outcome"])
held = Gauge("forebay_stripe_held_tokens", "Tokens that Stripe is not told, by why, at the last sync", ["reason"])
synced_at = Gauge("forebay_stripe_synced_timestamp_seconds", "When the last sync ended that could do all it wanted")
