"""For how much of what a request took lower tiers are to blame (pure): those that were at its endpoint meanwhile.

An engine computes prompts in steps that it shares with the answers that it generates, so each lengthens the other:

    seconds of an answer = tokens · alone + seconds of prompts meanwhile · prompt + of answers beside it · answer

The three costs are fitted together (fit.py), over a pool. A first token waits for prompts as long as they were
predicted to take; what it waited longer is put down to the answers there, to each alike.
"""

from forebay.router.company import Seen
from forebay.router.fit import Fit
from forebay.router.loads import Booking
from forebay.router.member import Member
from forebay.router.rates import COLD_DECODE_S
from forebay.router.tiers import Tiers

COLD_PREFILL, COLD_ANSWER = 0.9, 0.01  # of their seconds, that a prompt and another answer add to an answer


class Blame:
    """Of one pool. With tiers of one rank there is nobody to blame, and nothing is kept."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers
        self._several = len({tier.rank for tier in tiers}) > 1
        self._fit = Fit((COLD_DECODE_S, COLD_PREFILL, COLD_ANSWER), anchored=True)

    def __repr__(self) -> str:
        return f"<Blame {self._fit.costs}>"

    def placed(self, booking: Booking, member: Member, now: float) -> None:
        """Of one that does not say when its answer begins, it does when it is placed."""
        if self._several and booking.tells:
            booking.company = member.company.seen(self._tiers[booking.tier].rank, now)
        elif self._several:
            self._begins(booking, member, now)

    def begun(self, booking: Booking, member: Member, now: float) -> float:
        """Seconds by which the first token of one that says so would have come earlier without lower tiers."""
        if not self._several:
            return 0.0
        company, over_s = self._since(booking, member, now), max(0.0, now - booking.placed_at - booking.prefill_s)
        self._begins(booking, member, now)
        part = company.lower_answer_s / company.answer_s if company.answer_s > 0 else 0.0
        return min(over_s, company.lower_prefill_s) + max(0.0, over_s - company.prefill_s) * part

    def answered(self, booking: Booking, member: Member, tokens: int, seconds: float, now: float) -> float:
        """The same of an answer, of which `tokens` followed the first within `seconds`. To be called before `ended`. A
        shorter answer meets less of its own tier as well."""
        if not self._several or not booking.tells:
            return 0.0
        company = self._since(booking, member, now)
        beside_s = max(0.0, company.answer_s - seconds)
        _, prefill, answer = self._fit.costs
        lower_s = prefill * company.lower_prefill_s + answer * company.lower_answer_s
        others_s = prefill * company.prefill_s + answer * beside_s - lower_s
        self._fit.learn((tokens, company.prefill_s, beside_s), seconds)
        return seconds * lower_s / max(seconds - others_s, lower_s) if lower_s > 0 else 0.0

    def ended(self, booking: Booking, member: Member, now: float) -> None:
        if self._several and not (booking.tells and booking.waiting):
            member.company.ended(self._tiers[booking.tier].rank, now)

    def _begins(self, booking: Booking, member: Member, now: float) -> None:
        rank = self._tiers[booking.tier].rank
        member.company.begun(rank, booking.prefill_s, now)
        booking.company = member.company.seen(rank, now)

    def _since(self, booking: Booking, member: Member, now: float) -> Seen:
        """What its endpoint did since it was placed, or began."""
        load, seen = member.load, member.company.seen(self._tiers[booking.tier].rank, now)
        return seen.since(booking.company, (load.in_flight - load.peers.in_flight) / load.in_flight)
