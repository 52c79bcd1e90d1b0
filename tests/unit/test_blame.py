"""For how much of what a request took lower tiers at its endpoint are to blame."""

import random

import pytest

from forebay.router.blame import Blame
from forebay.router.loads import Booking
from forebay.router.member import Member
from forebay.router.tiers import Tier, Tiers

FAST, SLOW = Tier("fast", 0, ttft_s=2.0, tpot_s=0.05), Tier("slow", 1)
TIERS = Tiers([FAST, SLOW])
ALONE_S, PROMPT, ANSWER = 0.02, 0.7, 0.012  # what the engine of these tests does


class There:
    """One endpoint."""

    def __init__(self, tiers: Tiers = TIERS) -> None:
        self.member, self.blame = Member("a"), Blame(tiers)

    def place(self, tier: str, prefill_s: float, now: float, *, tells: bool = True) -> Booking:
        booking = Booking(1, 0, "main", "a", 100, 10, tells, 100, 0, tier=tier, placed_at=now, prefill_s=prefill_s)
        self.member.load.book(booking, now, 0.001)
        self.blame.placed(booking, self.member, now)
        return booking

    def begin(self, booking: Booking, now: float) -> float:
        lower_s = self.blame.begun(booking, self.member, now)
        self.member.load.begin(booking, now)
        return lower_s

    def end(self, booking: Booking, now: float) -> None:
        self.blame.ended(booking, self.member, now)
        self.member.load.end(booking)

    def answer(self, tier: str, tokens: int, now: float, *, prompts: dict[str, float], beside: int = 0) -> float:
        """One whose first token comes `now`, beside prompts that take so long and answers of the lower tier."""
        others = [self.place("slow", 0.0, now) for _ in range(beside)]
        for one in others:
            self.begin(one, now)
        booking = self.place(tier, 0.1, now)
        self.begin(booking, now)
        seconds = (tokens * ALONE_S + PROMPT * sum(prompts.values())) / (1 - ANSWER * beside)
        for name, prefill_s in prompts.items():
            one = self.place(name, prefill_s, now)
            self.begin(one, now + seconds)
            self.end(one, now + seconds)
        lower_s = self.blame.answered(booking, self.member, tokens, seconds, now + seconds)
        for one in (booking, *others):
            self.end(one, now + seconds)
        return lower_s


def learnt() -> There:
    there, chance = There(), random.Random(7)
    for number in range(600):
        prompts = {"slow": chance.expovariate(1.0), "fast": chance.expovariate(2.0)}
        there.answer("fast", chance.randint(5, 300), 100.0 * number, prompts=prompts, beside=chance.randint(0, 9))
    return there


def test_of_an_answer_lower_tiers_cost_what_it_would_be_shorter_without_them() -> None:
    there = learnt()
    assert there.answer("fast", 100, 1e6, prompts={"slow": 2.0}) == pytest.approx(PROMPT * 2.0, rel=0.05)
    assert there.answer("fast", 100, 2e6, prompts={}, beside=8) == pytest.approx(2.0 / (1 - 8 * ANSWER) - 2.0, rel=0.15)
    assert there.answer("fast", 100, 3e6, prompts={"fast": 2.0}) == 0.0
    assert there.answer("slow", 100, 4e6, prompts={"slow": 2.0}, beside=8) == 0.0


def test_an_answer_that_is_slow_by_itself_is_nobodys_fault() -> None:
    there = learnt()
    seconds = 200 * ALONE_S + PROMPT * 0.5
    lower_s = there.answer("fast", 200, 1e6, prompts={"slow": 0.5})
    assert seconds - lower_s == pytest.approx(200 * ALONE_S, rel=0.05)


def test_of_a_first_token_lower_tiers_cost_the_prompts_before_it_and_their_part_of_what_else_it_waited() -> None:
    there = There()
    before = there.place("slow", 1.5, 0.0)
    booking = there.place("fast", 0.5, 0.5)
    there.begin(before, 1.5)
    assert there.begin(booking, 2.0) == pytest.approx(1.0)  # it was late by a second, and no more is anybody's fault
    late = there.place("fast", 0.5, 2.0)
    assert there.begin(late, 4.5) == pytest.approx(1.0)  # two seconds too late, beside an answer of each


def test_a_first_token_that_waits_for_its_own_tier_blames_nobody() -> None:
    there = There()
    before, booking = there.place("fast", 1.5, 0.0), there.place("fast", 0.5, 0.0)
    there.begin(before, 1.5)
    assert there.begin(booking, 2.0) == 0.0


def test_one_that_does_not_say_when_it_begins_counts_from_when_it_is_placed() -> None:
    there = There()
    booking = there.place("fast", 0.5, 0.0)
    there.place("slow", 3.0, 0.0, tells=False)
    assert there.begin(booking, 2.0) == pytest.approx(1.5)


def test_what_other_front_doors_have_there_is_taken_to_be_like_ours() -> None:
    there = There()
    booking = there.place("fast", 0.5, 0.0)
    lower = there.place("slow", 0.5, 0.0)
    there.member.load.in_flight += 2
    there.member.load.peers = type(there.member.load.peers)(in_flight=2)
    there.begin(lower, 1.0)
    assert there.begin(booking, 3.0) == pytest.approx(1.0 + 1.5)


def test_with_tiers_of_one_rank_nothing_is_kept() -> None:
    there = There(Tiers([FAST]))
    booking = there.place("fast", 0.5, 0.0)
    assert there.begin(booking, 9.0) == 0.0
    assert there.blame.answered(booking, there.member, 10, 9.0, 18.0) == 0.0
    there.end(booking, 18.0)
    assert not there.member.company.seen(0, 18.0).prefill_s
