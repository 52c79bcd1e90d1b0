"""What the relay counts. No key, tenant or request is ever a label."""

from functools import cache

from prometheus_client import Counter, Gauge, Histogram

_REQUESTS = Counter(
    "forebay_requests_total", "Inference requests by how they were answered", ["api", "model", "status"]
)
ATTEMPTS_FAILED = Counter("forebay_attempts_failed_total", "Attempts that failed at an endpoint", ["endpoint", "code"])
FAILOVERS = Counter("forebay_failovers_total", "Requests moved to another endpoint before their first byte")
CONTINUATIONS = Counter(
    "forebay_continuations_total",
    "Answers cut after their first byte, by why, and what became of each cut: resumed, or why not",
    ["why", "outcome"],
)
BUDGET_SPENT = Counter("forebay_failover_budget_spent_total", "Failovers not made because there were too many")
INTERRUPTED = Counter("forebay_attempts_interrupted_total", "Attempts that ended by a fault of the front door itself")
CLIENTS_LEFT = Counter("forebay_clients_left_total", "Tenants that closed the connection before their answer was whole")
STALLED = Counter("forebay_clients_stalled_total", "Tenants given up because they had stopped reading")
IN_FLIGHT = Gauge("forebay_requests_in_flight", "Inference requests being answered")
HELD = Gauge("forebay_held_bytes", "Bytes of bodies and whole answers that are held for requests in flight")
BLOCKED = Gauge("forebay_clients_blocked", "Requests whose tenant has left its socket full for over a second")
_FIRST_BYTE = Histogram(
    "forebay_time_to_first_byte_seconds",
    "From dispatch to the engine's first byte",
    ["model"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300),
)
_TOKENS = Counter("forebay_tokens_total", "Billable tokens; cache_read is a part of input", ["model", "kind"])
_UNTOLD = Counter(
    "forebay_usage_untold_total",
    "Billed attempts whose engine did not tell prompt or output, by what was counted here: tokens, words, nothing",
    ["model", "part", "counted"],
)


# Looking up a series costs several times what counting in it does.


@cache
def requests(api: str, model: str, status: str) -> Counter:
    return _REQUESTS.labels(api=api, model=model, status=status)


@cache
def first_byte(model: str) -> Histogram:
    return _FIRST_BYTE.labels(model=model)


@cache
def tokens(model: str, kind: str) -> Counter:
    return _TOKENS.labels(model=model, kind=kind)


@cache
def untold(model: str, part: str, counted: str) -> Counter:
    return _UNTOLD.labels(model=model, part=part, counted=counted)
