"""What tenants wait for in each tier, and whether that keeps what the tier promises. Of streams: a whole answer does
not tell when its first token came."""

from functools import cache

from prometheus_client import Counter, Histogram

from forebay.platform.tiers import Terms

_FIRST_TOKEN = Histogram(
    "forebay_first_token_seconds",
    "From a request's arrival to the first token of its stream, waits and failovers included",
    ["tier"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300),
)
_OBJECTIVES = Counter(
    "forebay_objectives_total", "Streams by whether their tier's objective was met", ["tier", "objective", "met"]
)


@cache
def _first_token(tier: str) -> Histogram:
    return _FIRST_TOKEN.labels(tier=tier)


@cache
def _judged(tier: str, objective: str, *, met: bool) -> Counter:
    return _OBJECTIVES.labels(tier=tier, objective=objective, met="yes" if met else "no")


def first_token(terms: Terms, seconds: float) -> None:
    """A stream begins, so long after its request came."""
    _first_token(terms.name).observe(seconds)
    if terms.ttft_s is not None:
        _judged(terms.name, "ttft", met=seconds <= terms.ttft_s).inc()


def decoded(terms: Terms, decode_s: float | None, output: int | None) -> None:
    """It is complete: `output` tokens, those after the first in `decode_s` seconds."""
    if terms.tpot_s is not None and decode_s is not None and output is not None and output > 1:
        _judged(terms.name, "tpot", met=decode_s / (output - 1) <= terms.tpot_s).inc()
