"""What one endpoint does, by rank of the tiers that it serves (pure)."""

from msgspec import Struct


class Seen(Struct, frozen=True):
    """What an endpoint has done, and of that for lower tiers: seconds of prompts computed, and of answers generated,
    each second as often as there were answers."""

    prefill_s: float = 0.0
    answer_s: float = 0.0
    lower_prefill_s: float = 0.0
    lower_answer_s: float = 0.0

    def since(self, before: "Seen", known: float) -> "Seen":
        """`known`: which part of what the endpoint does is seen here. The rest is taken to be like it."""
        return Seen(
            (self.prefill_s - before.prefill_s) / known,
            (self.answer_s - before.answer_s) / known,
            (self.lower_prefill_s - before.lower_prefill_s) / known,
            (self.lower_answer_s - before.lower_answer_s) / known,
        )


NOTHING_SEEN = Seen()


class _OfRank(Struct):
    prefill_s: float = 0.0
    answer_s: float = 0.0
    answers: int = 0  # now


class Company:
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
        """Until now, as one of `rank` sees it."""
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
        passed, self._at = max(0.0, now - self._at), max(self._at, now)
        for one in self._ranks.values():
            one.answer_s += passed * one.answers
