"""What is booked on an endpoint (pure): prompts that are still to be computed, and answers that are being generated.

Booked in whole tokens, so that what is given back is exactly what was taken. A booking ends with its attempt and never
by its age: an engine that is slow is not thereby free. What other front doors have booked there counts with ours
(`peers`), since one engine works off all of it.
"""

import numpy as np
from msgspec import Struct

from forebay.router.company import NOTHING_SEEN, Seen
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
    tier: str = ""  # as it is served
    tenant: str = ""
    session: str = ""
    charged: float = 0.0  # tokens, as fairness counts them
    weight: float = 1.0  # of its tenant
    placed_at: float = 0.0
    since: float = 0.0  # when it was first asked for
    predicted_s: float = 0.0  # to its first token, from `placed_at`
    prefill_s: float = 0.0
    counted: float = 0.0  # tokens of it, that its tier was served
    began_grown: float = 0.0  # see `service`
    stoppable: bool = False  # it was asked for in a tier that is shed
    told_at: float | None = None  # when it was to be stopped
    company: Seen = NOTHING_SEEN  # at its endpoint, when it was placed, then when it began


class Share(Struct, frozen=True, array_like=True):
    """What one front door has booked on an endpoint. `booked`: tokens of prefill that it has booked there since it
    started, and `came`: requests, so that what came between two reports is seen although as much has begun."""

    in_flight: int = 0
    output: int = 0
    prefill: int = 0
    silent: int = 0
    booked: int = 0
    came: int = 0

    def since(self, before: "Share") -> int:
        """Requests that came between two reports. Of one that was not heard of before, those that are there."""
        return max(0, min(self.came - before.came, self.in_flight))


NOTHING = Share()


class Load(Struct):
    """Sums over the bookings of one endpoint, other front doors' among them: `peers` is their part, `own` the rest.
    `turn`: the pool's number of placements when it was last chosen. `block`: tokens of a block of its engine's cache,
    where those are more than lie between two keys."""

    endpoint: str
    block: int = GRID
    turn: int = 0
    in_flight: int = 0
    output: int = 0
    waiting: int = 0  # requests of ours that have not begun
    prefill: int = 0  # tokens of requests that have not begun
    silent: int = 0  # of those, tokens of requests that do not say when they begin
    booked: int = 0  # tokens of prefill that we have ever booked
    came: int = 0  # requests that we have ever booked
    peers: Share = NOTHING
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
        self.booked += booking.prefill
        self.came += 1
        if not booking.tells:
            self.silent += booking.prefill

    def begin(self, booking: Booking, now: float | None = None) -> None:
        """Its first token came. Telling it twice changes nothing."""
        if not booking.waiting:
            return
        booking.waiting = False
        self.waiting -= 1
        self.prefill -= booking.prefill
        if not booking.tells:
            self.silent -= booking.prefill
        if now is not None:
            self._work, self._at = float(self.prefill), now

    def end(self, booking: Booking) -> None:
        """The caller sees to it that a booking ends once."""
        self.begin(booking)
        self.in_flight -= 1
        self.output -= booking.output

    @property
    def own(self) -> Share:
        """What we have booked ourselves."""
        peers = self.peers
        return Share(
            self.in_flight - peers.in_flight, self.output - peers.output, self.prefill - peers.prefill,
            self.silent - peers.silent, self.booked, self.came,
        )  # fmt: skip

    def hear(self, before: Share, after: Share, now: float, rate: float) -> None:
        """One peer's part was `before` and is `after`. What it has booked since is behind what was there already."""
        came = min(after.booked - before.booked, after.prefill)
        ahead = self.queued(now, rate) if came > 0 else 0.0
        self._replace(before, after)
        if came > 0:
            self._work = min(ahead + came, float(self.prefill))
            self._at = now

    def forget(self, share: Share) -> None:
        """A peer's part is over."""
        self._replace(share, NOTHING)

    def _replace(self, before: Share, after: Share) -> None:
        in_flight, output = after.in_flight - before.in_flight, after.output - before.output
        prefill, silent = after.prefill - before.prefill, after.silent - before.silent
        self.in_flight += in_flight
        self.output += output
        self.prefill += prefill
        self.silent += silent
        peers = self.peers
        self.peers = Share(
            peers.in_flight + in_flight, peers.output + output, peers.prefill + prefill, peers.silent + silent
        )
