"""How long an endpoint takes, learnt from requests that waited for nobody there (pure).

    seconds to a first token = fixed + tokens · prefill · (1 + context · tokens before each, on average)

The fixed part is the wire and a step of the engine; `context` says by how much attention over what stands before a
token lengthens its computing. All three are fitted together (fit.py): long prompts teach the rate, warm agents the
fixed part, and neither spoils the other. Times between tokens are geometric means, which a few odd times move little.
"""

import math

from msgspec import Struct

from forebay.router.fit import Fit

COLD_FIXED_S = 0.01
COLD_PREFILL_S = 1 / 2_000  # seconds a prompt token, until a rate is learnt
COLD_CONTEXT = 1 / 500_000  # of a token's time, for each token before it, where learning begins
COLD_DECODE_S = 1 / 50  # seconds an output token, until a rate is learnt
SMOOTHING = 0.05  # weight of a new observation; the first few weigh more
BOUND = 4.0  # an observation counts as at most this many times what was expected, or as this part of it
SAME = 0.01  # costs that differ by no more are the same
POOLED = 20  # observations' worth of trust in the pool's rates: like replicas differ by noise, which must not decide


class Rates(Struct):
    """`prefill_s`: seconds for a token at a context's beginning. `context`: see above, per token."""

    fixed_s: float = COLD_FIXED_S
    prefill_s: float = COLD_PREFILL_S
    decode_s: float = COLD_DECODE_S
    prefills: int = 0  # observations
    decodes: int = 0
    context: float = 0.0
    fit: Fit | None = None

    def effective(self, tokens: float, cached: float) -> int:
        """Tokens at a context's beginning that take as long to compute as `tokens` behind `cached` ones."""
        return round(tokens * (1 + (cached + tokens / 2) * self.context))

    def first_token_s(self, tokens: float, cached: float = 0.0) -> float:
        """Seconds to the first token of a request that waits for nobody and computes `tokens` of its prompt."""
        return self.fixed_s + self.effective(tokens, cached) * self.prefill_s

    def learn_prefill(self, tokens: float, seconds: float, cached: float = 0.0) -> None:
        if tokens <= 0 or seconds <= 0:
            return
        if self.fit is None:
            self.fit = Fit((self.fixed_s, self.prefill_s, self.prefill_s * (self.context or COLD_CONTEXT)))
        self.fit.learn((1.0, tokens, tokens * (cached + tokens / 2)), seconds)
        self.fixed_s, self.prefill_s, behind = self.fit.costs
        self.context = behind / self.prefill_s
        self.prefills += 1

    def learn_decode(self, tokens: int, seconds: float) -> None:
        """`tokens` that followed the first within `seconds`."""
        if tokens <= 0 or seconds <= 0:
            return
        self.decode_s *= _moved(seconds / tokens / self.decode_s, self.decodes)
        self.decodes += 1


class Learnt(Struct, frozen=True):
    """What is to be remembered of one endpoint's rates beyond the end of this process; of the whole pool's, where
    `endpoint` is empty."""

    pool: str
    endpoint: str
    fixed_s: float
    prefill_s: float
    context: float
    decode_s: float
    prefills: int
    decodes: int


def learnt(pool: str, endpoint: str, rates: Rates) -> Learnt:
    return Learnt(
        pool, endpoint, rates.fixed_s, rates.prefill_s, rates.context, rates.decode_s, rates.prefills, rates.decodes
    )


def remembered(known: Learnt) -> Rates | None:
    """Rates to go on from, trusted as much as a few observations. None for numbers that cannot be."""
    costs = known.fixed_s, known.prefill_s, known.decode_s
    if not all(0 < cost < math.inf for cost in costs) or not 0 <= known.context < math.inf:
        return None
    rates = Rates(*costs, context=known.context)
    rates.prefills = min(max(0, known.prefills), POOLED)
    rates.decodes = min(max(0, known.decodes), POOLED)
    return rates


def alike(one: Rates, other: Rates) -> bool:
    """Whether it makes no difference which of the two is reckoned with."""
    pairs = (one.fixed_s, other.fixed_s), (one.prefill_s, other.prefill_s), (one.decode_s, other.decode_s)
    return all(abs(a - b) <= SAME * b for a, b in pairs) and abs(one.context - other.context) <= SAME * COLD_CONTEXT


def begin_like(own: Rates, pool: Rates) -> None:
    """Before an endpoint's first observation it is taken to be like the others."""
    if not own.prefills:
        own.fixed_s, own.prefill_s, own.context = pool.fixed_s, pool.prefill_s, pool.context
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
        pool.context + prefill * (own.context - pool.context),
    )


def _moved(ratio: float, observations: int) -> float:
    """The factor by which one more observation, so many times what was expected, moves a mean of so many."""
    return float(min(max(ratio, 1 / BOUND), BOUND) ** max(SMOOTHING, 1 / (observations + 2)))
