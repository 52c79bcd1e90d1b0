"""What is booked on an endpoint (pure): prompts that are still to be computed, and answers that are being generated.

Booked in whole tokens, so that what is given back is exactly what was taken. A booking ends with its attempt and never
by its age: an engine that is slow is not thereby free.
"""

import numpy as np
from msgspec import Struct

from forebay.router.prefix.keys import GRID, Keys

NO_KEYS: Keys = np.empty(0, np.uint64)
LEAST_SHARE = 0.25  # of its weight that a queue keeps however long it has stood: work is not done because it is due


class Booking(Struct):
    """One attempt's hold on an endpoint. `prefill`: tokens that stand in others' way until its first token;
    `output`: tokens expected of its answer; `tells`: it will say when its first token comes."""

    id: int
    owner: int
    pool: str
    endpoint: str
    prefill: int
    output: int
    tells: bool
    tokens: int  # of the prompt
    cached: int  # of those, taken to be cached
    keys: Keys = NO_KEYS
    exact: bool = True  # KV events may tell of the keys
    guessed_from: int = 0  # the number of its first key that was written to the index as a guess
    turn: int = 0  # the pool's number of placements, itself included
    alone: bool = False
    waiting: bool = True
    undisturbed: bool = False  # nobody came to the endpoint before its first token
    first: bool = False  # nothing else waited there for its first token
    context: int = 0  # the number of its conversation
    slow: int = 0  # of what is cached, tokens in a slower tier


class Load(Struct):
    """Sums over the bookings of one endpoint. `turn`: the pool's number of placements when it was last chosen.
    `block`: tokens of a block of its engine's cache, where those are more than lie between two keys."""

    endpoint: str
    block: int = GRID
    turn: int = 0
    in_flight: int = 0
    output: int = 0
    waiting: int = 0  # requests that have not begun
    prefill: int = 0  # their tokens
    silent: int = 0  # of those, tokens of requests that do not say when they begin
    _work: float = 0.0  # tokens left at `_at`, if the engine has worked all the time since
    _at: float = 0.0

    def queued(self, now: float, rate: float) -> float:
        """Tokens of prefill ahead of a newcomer. An engine that has work does it, at `rate` seconds a token, so the
        queue shrinks with time, but not below a share of what has not said that it began."""
        if not self.prefill:
            return 0.0
        least = LEAST_SHARE * (self.prefill - self.silent)
        return min(float(self.prefill), max(least, self._work - (now - self._at) / rate))

    def ahead(self, now: float, rate: float) -> float:
        """As `queued`, of requests that say when they begin: others cannot be waited for."""
        if self.prefill == self.silent:
            return 0.0
        return min(float(self.prefill - self.silent), self.queued(now, rate))

    def book(self, booking: Booking, now: float, rate: float) -> None:
        self._work = self.queued(now, rate) + booking.prefill
        self._at = now
        self.in_flight += 1
        self.output += booking.output
        self.waiting += 1
        self.prefill += booking.prefill
        if not booking.tells:
            self.silent += booking.prefill

    def begin(self, booking: Booking) -> None:
        """Its first token came. Telling it twice changes nothing."""
        if not booking.waiting:
            return
        booking.waiting = False
        self.waiting -= 1
        self.prefill -= booking.prefill
        if not booking.tells:
            self.silent -= booking.prefill

    def end(self, booking: Booking) -> None:
        """The caller sees to it that a booking ends once."""
        self.begin(booking)
        self.in_flight -= 1
        self.output -= booking.output
