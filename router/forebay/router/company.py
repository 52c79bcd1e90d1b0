"""What lower tiers cost a request at its endpoint (pure): prompts that were computed there while it waited or its answer
was generated, and their part of what other answers beside it took.

An engine computes prompts in steps that it shares with the answers that it generates, so each lengthens the other. What
prompts take is predicted; the rest of the time that a request took longer than alone is put down to the answers beside
it, to each alike.
"""

from msgspec import Struct


class Seen(Struct, frozen=True):
    """What an endpoint has done up to a moment, and of that for lower tiers: seconds of prompts computed, and of answers
    generated, each second as often as there were answers."""

    prefill_s: float = 0.0
    answer_s: float = 0.0
    lower_prefill_s: float = 0.0
    lower_answer_s: float = 0.0


class _OfRank(Struct):
    prefill_s: float = 0.0
    answer_s: float = 0.0
    answers: int = 0  # now


class Company:
    """One endpoint's, by rank of the tiers that it serves."""

    def __init__(self) -> None:
        self._ranks: dict[int, _OfRank] = {}
        self._at = 0.0

    def __repr__(self) -> str:
        return f"<Company {self._ranks}>"

    def begun(self, rank: int, prefill_s: float, now: float) -> None:
        """A prompt was computed, its answer begins."""
        self._pass(now)
        of_rank = self._ranks.setdefault(rank, _OfRank())
        of_rank.prefill_s += prefill_s
        of_rank.answers += 1

    def ended(self, rank: int, now: float) -> None:
        self._pass(now)
        self._ranks[rank].answers -= 1

    def seen(self, rank: int, now: float) -> Seen:
        self._pass(now)
        prefill_s = answer_s = lower_prefill_s = lower_answer_s = 0.0
        for of, one in self._ranks.items():
            prefill_s += one.prefill_s
            answer_s += one.answer_s
            if of > rank:
                lower_prefill_s += one.prefill_s
                lower_answer_s += one.answer_s
        return Seen(prefill_s, answer_s, lower_prefill_s, lower_answer_s)

    def _pass(self, now: float) -> None:
        passed, self._at = max(0.0, now - self._at), now
        for one in self._ranks.values():
            one.answer_s += passed * one.answers


def lower_s(before: Seen, after: Seen, over_s: float, *, own_s: float = 0.0, known: float = 1.0) -> float:
    """Of `over_s`, by which something took longer than alone, what lower tiers cost it. `own_s`: seconds of its own
    answer in between; `known`: which part of what the endpoint does is seen here. The rest is taken to be like it."""
    prefill_s = (after.prefill_s - before.prefill_s) / known
    lower_prefill_s = (after.lower_prefill_s - before.lower_prefill_s) / known
    answer_s = after.answer_s - before.answer_s - own_s
    lower_answer_s = after.lower_answer_s - before.lower_answer_s
    part = min(1.0, lower_answer_s / answer_s) if answer_s > 0 else 0.0
    return min(max(0.0, over_s), lower_prefill_s) + max(0.0, over_s - prefill_s) * part
