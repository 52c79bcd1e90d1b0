"""What each tier is served (pure), as it is served: a prompt when it is placed, an answer while it is generated.

The router hears when an answer begins and ends. In between it is taken to grow as answers of the pool did lately; when
it has ended, what was counted is set right. So a request that runs for minutes counts for all of them.
"""

from collections import Counter

from forebay.router.fairness import OUTPUT_WEIGHT, Shares
from forebay.router.loads import Booking
from forebay.router.rates import COLD_DECODE_S

SMOOTHING = 0.05  # weight of the seconds that a token of one more answer took
FASTEST_S, SLOWEST_S = 1e-4, 10.0  # a token: what is told beyond that is not believed


class Service:
    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._answers: Counter[str] = Counter()  # that are being generated, by tier
        self._grown = 0.0  # tokens, that each of them would have if all had begun at the beginning
        self._token_s = COLD_DECODE_S
        self._at = float("inf")

    def __repr__(self) -> str:
        return f"<Service of {self._answers.total()} answers>"

    def passed(self, now: float) -> None:
        tokens = max(0.0, now - self._at) / self._token_s
        self._at = now
        self._grown += tokens
        for tier, answers in self._answers.items():
            if answers:
                self._shares.served(tier, OUTPUT_WEIGHT * tokens * answers, now)

    def placed(self, booking: Booking, uncached: int, now: float) -> None:
        """Of one that does not say when its answer begins, all counts at once."""
        booking.counted = float(uncached) if booking.tells else booking.charged
        self._shares.served(booking.tier, booking.counted, now)

    def begun(self, booking: Booking, now: float) -> None:
        self.passed(now)
        booking.began_grown = self._grown
        self._answers[booking.tier] += 1

    def ended(self, booking: Booking, used: float, now: float, token_s: float | None = None) -> None:
        """`used`: tokens as fairness counts them. `token_s`: seconds that each of its answer's took."""
        self.passed(now)
        if _grows(booking):
            booking.counted += OUTPUT_WEIGHT * (self._grown - booking.began_grown)
        self.lost(booking)
        self._shares.served(booking.tier, used - booking.counted, now)
        if token_s is not None:
            self._token_s += SMOOTHING * (min(max(token_s, FASTEST_S), SLOWEST_S) - self._token_s)

    def lost(self, booking: Booking) -> None:
        """Nothing more comes of it, and nobody knows how much of it there was."""
        if _grows(booking):
            self._answers[booking.tier] -= 1


def _grows(booking: Booking) -> bool:
    return booking.tells and not booking.waiting
