"""How long an endpoint takes, learnt from requests that had it to themselves (pure).

Time to a first token is a fixed part (the wire, one step of the engine) plus so much for each token that was computed.
An observation moves each part by a power of seen / expected that grows with the part's share of what was expected: of a
long prompt it teaches the rate, of one that was nearly all cached the fixed part, so that agents with warm contexts do
not spoil the rate. Means are geometric, which a few odd times move little.
"""

from msgspec import Struct

COLD_FIXED_S = 0.01
COLD_PREFILL_S = 1 / 2_000  # seconds a prompt token, until a rate is learnt
COLD_DECODE_S = 1 / 50  # seconds an output token, until a rate is learnt
SMOOTHING = 0.05  # weight of a new observation; the first few weigh more
BOUND = 4.0  # an observation counts as at most this many times what was expected, or as this part of it
POOLED = 20  # observations' worth of trust in the pool's rates: like replicas differ by noise, which must not decide


class Rates(Struct):
    fixed_s: float = COLD_FIXED_S
    prefill_s: float = COLD_PREFILL_S
    decode_s: float = COLD_DECODE_S
    prefills: int = 0  # observations
    decodes: int = 0

    def first_token_s(self, tokens: float) -> float:
        """Seconds to the first token of a request that waits for nobody and computes `tokens` of its prompt."""
        return self.fixed_s + tokens * self.prefill_s

    def learn_prefill(self, tokens: float, seconds: float) -> None:
        if tokens <= 0 or seconds <= 0:
            return
        expected = self.first_token_s(tokens)
        share = tokens * self.prefill_s / expected
        moved = _moved(seconds / expected, self.prefills)
        self.prefill_s *= moved**share
        self.fixed_s *= moved ** (1 - share)
        self.prefills += 1

    def learn_decode(self, tokens: int, seconds: float) -> None:
        """`tokens` that followed the first within `seconds`."""
        if tokens <= 0 or seconds <= 0:
            return
        self.decode_s *= _moved(seconds / tokens / self.decode_s, self.decodes)
        self.decodes += 1


def begin_like(own: Rates, pool: Rates) -> None:
    """Before an endpoint's first observation it is taken to be like the others."""
    if not own.prefills:
        own.fixed_s, own.prefill_s = pool.fixed_s, pool.prefill_s
    if not own.decodes:
        own.decode_s = pool.decode_s


def blended(own: Rates, pool: Rates) -> Rates:
    """What to reckon with: the pool's rates, and the endpoint's own as far as they were observed."""
    prefill = own.prefills / (own.prefills + POOLED)
    decode = own.decodes / (own.decodes + POOLED)
    return Rates(
        pool.fixed_s + prefill * (own.fixed_s - pool.fixed_s),
        pool.prefill_s + prefill * (own.prefill_s - pool.prefill_s),
        pool.decode_s + decode * (own.decode_s - pool.decode_s),
        own.prefills,
        own.decodes,
    )


def _moved(ratio: float, observations: int) -> float:
    """The factor by which one more observation, so many times what was expected, moves a mean of so many."""
    return float(min(max(ratio, 1 / BOUND), BOUND) ** max(SMOOTHING, 1 / (observations + 2)))
