"""Which endpoint answers: the one with the least predicted work ahead, booked in the same step (pure).

Work is in seconds: uncached prefill plus decode at rates learnt from what streams show. With equal work ahead the same
conversation goes to the same endpoint (rendezvous hashing on its affinity key), so an idle pool keeps its caches warm,
and different conversations spread evenly. The request's own seconds are left out: rates of like replicas differ by
noise, and that noise would decide instead of the affinity.
"""

from collections.abc import Iterable
from hashlib import blake2b

from msgspec import Struct

COLD_PREFILL_S = 1 / 2_000  # seconds a prompt token, until a rate is learnt
COLD_DECODE_S = 1 / 50  # seconds an output token, until a rate is learnt
SMOOTHING = 0.2  # weight of a new observation
BOUND = 8.0  # an observation moves a rate by at most this factor's worth, so one outlier does not misplace a minute


class Work(Struct, frozen=True):
    """A request's size as far as placement may guess it: prompt tokens to compute, output tokens expected."""

    prompt_tokens: int
    output_tokens: int


class Load(Struct):
    """What is booked on one endpoint, and what its seconds are worth."""

    prefill_s: float = COLD_PREFILL_S
    decode_s: float = COLD_DECODE_S
    booked_s: float = 0.0
    in_flight: int = 0

    def seconds(self, work: Work) -> float:
        return work.prompt_tokens * self.prefill_s + work.output_tokens * self.decode_s

    def learn_prefill(self, tokens: int, seconds: float) -> None:
        if tokens > 0 and seconds > 0:
            self.prefill_s = _smooth(self.prefill_s, seconds / tokens)

    def learn_decode(self, tokens: int, seconds: float) -> None:
        if tokens > 0 and seconds > 0:
            self.decode_s = _smooth(self.decode_s, seconds / tokens)


class Booking:
    """Load held on an endpoint from the pick until the attempt ends; releasing twice changes nothing."""

    __slots__ = ("_load", "_seconds")

    def __init__(self, load: Load, seconds: float) -> None:
        self._load: Load | None = load
        self._seconds = seconds
        load.booked_s += seconds
        load.in_flight += 1

    def release(self) -> None:
        load, self._load = self._load, None
        if load is not None:
            load.in_flight -= 1
            load.booked_s = load.booked_s - self._seconds if load.in_flight else 0.0


def pick(loads: Iterable[tuple[str, Load]], affinity: bytes) -> str | None:
    """The name of the endpoint with the fewest predicted seconds of work ahead; None when there is no candidate."""
    best: tuple[float, bytes, str] | None = None
    for name, load in loads:
        key = (round(load.booked_s, 3), blake2b(affinity + name.encode(), digest_size=8).digest(), name)
        if best is None or key < best:
            best = key
    return None if best is None else best[2]


def _smooth(old: float, observed: float) -> float:
    observed = min(max(observed, old / BOUND), old * BOUND)
    return old + SMOOTHING * (observed - old)
