"""Metrics of the metering room, on the default registry. None carries a tenant, a key or a request."""

from prometheus_client import Counter, Gauge

spool_commits = Counter("forebay_spool_commits_total", "Transactions committed by the usage spool")
spool_write_errors = Counter("forebay_spool_write_errors_total", "Failed writes of the usage spool, each retried")
spool_second_closes = Counter(
    "forebay_spool_ignored_closes_total", "Terminal records ignored because their attempt was not open"
)
spool_lost_attempts = Counter(
    "forebay_spool_lost_attempts_total", "Attempts left open by a dead front door and closed from their last checkpoint"
)
spool_set_aside = Counter("forebay_spool_set_aside_total", "Damaged spool files that were set aside")
spool_parked = Counter("forebay_spool_parked_total", "Usage records that could not be shipped and were parked")
spool_accepting = Gauge("forebay_spool_accepting", "1 while the usage spool takes new attempts")
spool_bytes = Gauge("forebay_spool_bytes", "Bytes in use in the usage spool")
spool_open = Gauge("forebay_spool_open_attempts", "Attempts dispatched and not yet closed")
spool_unshipped = Gauge("forebay_spool_unshipped_records", "Terminal records not yet in the ledger")

shipped = Counter("forebay_ledger_shipped_records_total", "Terminal records brought to the ledger")
ship_errors = Counter("forebay_ledger_ship_errors_total", "Failed attempts to bring records to the ledger")
ledger_reachable = Gauge("forebay_ledger_reachable", "1 if the last attempt to bring records to the ledger succeeded")
oldest_seconds = Gauge(
    "forebay_ledger_backlog_age_seconds", "Seconds since the spool was last empty: a bound on the oldest record's age"
)
rollup_differs = Gauge(
    "forebay_ledger_rollup_differs_rows", "Rows by which rollup and records differed when last verified"
)
corrections = Counter("forebay_ledger_corrections_total", "Usage records corrected")
