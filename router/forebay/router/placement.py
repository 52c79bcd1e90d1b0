"""Which endpoint answers: the one whose answer is predicted to cost the fewest seconds (pure).

    seconds = prefill queued ahead + prefill of what is not cached + what other answers there add to this one
              + prefill of what it pushes out of a full cache, by the chance that it is wanted again
              + wait of those who come to this endpoint while it is busy with this prompt

A cached prefix counts for the seconds that it saves and no more, so a popular one draws requests only until the queue
at its holder is worth more than to compute it elsewhere. A copy made to save a wait is paid for by whoever's context it
pushes out; that price is what keeps conversations where they are.
"""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec import Struct

from forebay.router.loads import Load
from forebay.router.prefix.index import Match
from forebay.router.rates import Rates
from forebay.router.routing import Ask

SLOW_SHARE = 0.1  # of a token's prefill: to load it from host memory (25 GB/s, 128 KiB a token: 200,000 a second)
FULL_BATCH = 256  # answers at once (vLLM's --max-num-seqs) at which each is taken to be generated at half the speed
DELAYED_SHARE = 0.5  # of the waits that a prefill would cause if nobody was let pass (found by simulation)
TIE_S = 0.002  # predictions closer than this, or than this share, are equal
TIE_SHARE = 0.05


class Option(Struct):
    """One endpoint for one request, at one moment."""

    name: str
    cached: int  # tokens
    slow: int  # of those, in a slower tier than the accelerator's memory
    prefill: int  # tokens to compute; those to load count by their share
    queued_s: float
    prefill_s: float
    interference_s: float
    in_flight: int
    output: int  # tokens that are expected to be generated there
    turn: int  # when it was last chosen
    seconds: float
    displaced_s: float = 0.0
    delayed_s: float = 0.0

    @property
    def predicted_s(self) -> float:
        """Seconds to the first token."""
        return self.queued_s + self.prefill_s


class Others(Struct, frozen=True):
    """Who else there is at an endpoint. `displace`: tokens that are to be stored → seconds of prefill that those will
    pay who come back to what is pushed out; None where there is room. `coming`: requests a second that come for what is
    cached there. `moving_s`: what it costs one of them to go elsewhere."""

    displace: Callable[[int], float] | None = None
    coming: float = 0.0
    moving_s: float = 0.0

    def delayed_s(self, prefill_s: float) -> float:
        """Seconds that those wait who come while an engine is busy with a prefill of so many seconds. Each waits for
        the rest of it, or goes elsewhere once that costs less."""
        short = min(prefill_s, self.moving_s)
        return DELAYED_SHARE * self.coming * (short * short / 2 + self.moving_s * (prefill_s - short))


def weigh(ask: Ask, load: Load, rates: Rates, held: Match, now: float) -> Option:
    """An endpoint by its load, its rates, and what it holds of the prompt: what the request itself waits for."""
    # An engine uses whole blocks of its cache, and always computes the last token.
    cached = min(held.tokens, ask.tokens - 1) // load.block * load.block if held.tokens else 0
    slow = max(0, cached - held.fast)
    fresh = ask.tokens - cached
    prefill = max(1, rates.effective(fresh, cached) + (round(slow * SLOW_SHARE) if slow else 0))
    queued_s = load.queued(now, rates.prefill_s) * rates.prefill_s if load.prefill else 0.0
    prefill_s = rates.fixed_s + prefill * rates.prefill_s
    interference_s = ask.output * rates.decode_s * load.in_flight / FULL_BATCH
    return Option(
        load.endpoint, cached, slow, prefill, queued_s, prefill_s, interference_s, load.in_flight, load.output,
        load.turn, queued_s + prefill_s + interference_s,
    )  # fmt: skip


def add_others(options: Sequence[Option], ask: Ask, others: Callable[[str], Others]) -> None:
    """Add what it costs others, as far as it can matter: it is never less than nothing, so an endpoint where the
    request alone waits longer than all of it costs elsewhere stays as it is, and so does the only one."""
    if len(options) == 1:
        return
    best = math.inf
    for option in sorted(options, key=_seconds):
        if option.seconds > _near(best):
            return
        there = others(option.name)
        if there.displace is not None:
            option.displaced_s = there.displace(ask.tokens - option.cached + ask.output)
        option.delayed_s = there.delayed_s(option.prefill_s)
        option.seconds += option.displaced_s + option.delayed_s
        best = min(best, option.seconds)


_seconds = attrgetter("seconds")


def _near(seconds: float) -> float:
    return seconds + max(TIE_S, TIE_SHARE * seconds)


def choose(options: Sequence[Option]) -> Option:
    """The least seconds; of near ties the one with the fewest requests, then the least to generate, then one that has
    most of the prompt (a short conversation on a fast engine stays together), then the one that was not chosen for
    longest. Raises `ValueError` without an option."""
    if len(options) == 1:
        return options[0]
    limit = _near(min([option.seconds for option in options]))
    near = [option for option in options if option.seconds <= limit]
    if len(near) == 1:
        return near[0]
    return min(near, key=lambda one: (one.in_flight, one.output, one.cached < one.prefill, one.turn))
