"""How much of lower tiers an endpoint gets while a higher one misses what it was promised."""

from math import inf

from forebay.router.ceilings import Ceilings
from forebay.router.tiers import Shed, Tier, Tiers

FAST = Tier("fast", 0, ttft_s=2.0, tpot_s=0.05)
PLAIN = Tier("plain", 1, ttft_s=5.0)
SLOW = Tier("slow", 2)
BATCH = Tier("batch", 3, shed=Shed.SHED, share=0.1)
TIERS = Tiers([FAST, PLAIN, SLOW, BATCH], "plain")


def test_a_lower_tier_finds_less_room_while_a_higher_one_misses_its_objective() -> None:
    ceilings = Ceilings(TIERS)
    assert ceilings.opens(BATCH, 0.0, 100, short=False)
    for _ in range(40):
        ceilings.first(FAST, 3.0, 3.0)
        ceilings.breathe([20])
    assert not ceilings.opens(BATCH, 0.0, 20, short=False)
    assert not ceilings.opens(PLAIN, 0.0, 20, short=False)
    assert ceilings.opens(BATCH, 0.0, 20, short=True)  # what it is to get at least, it gets
    assert ceilings.opens(FAST, 0.0, 1_000, short=False)
    for _ in range(1_000):
        ceilings.first(FAST, 0.5, 0.0)
        ceilings.breathe([20])
    assert ceilings.opens(BATCH, 0.0, 20, short=False)


def test_who_misses_its_own_objective_has_nobody_above_it_take_less() -> None:
    ceilings = Ceilings(TIERS)
    for _ in range(40):
        ceilings.first(PLAIN, 30.0, 30.0)
        ceilings.breathe([20])
    assert ceilings.opens(PLAIN, 0.0, 20, short=False)
    assert not ceilings.opens(SLOW, 0.0, 20, short=False)


def test_one_late_request_presses_nobody_and_two_for_a_while_only() -> None:
    ceilings = Ceilings(Tiers([Tier("fast", 0, ttft_s=1.0), Tier("batch", 1)]))
    ceilings.first(ceilings.tiers[0], 5.0, 5.0)
    ceilings.breathe([10])
    assert ceilings.rooms["batch"] == inf
    ceilings.first(ceilings.tiers[0], 5.0, 5.0)
    ceilings.breathe([10])
    assert ceilings.rooms["batch"] < inf
    for _ in range(1_000):
        ceilings.breathe([10])
    assert ceilings.rooms["batch"] == inf


def test_what_would_be_missed_without_lower_tiers_as_well_presses_nobody() -> None:
    """Beside a few that would not: less of lower tiers would not keep the promise."""
    ceilings = Ceilings(TIERS)
    for number in range(1_000):
        ceilings.token(FAST, 0.2, 0.17 if number % 5 == 0 else 0.1)
        ceilings.breathe([20])
    assert ceilings.rooms["batch"] == inf


def test_who_waits_for_others_of_its_own_tier_has_nobody_else_take_less() -> None:
    """An endpoint that did as was predicted when it got the request is not too full."""
    ceilings = Ceilings(TIERS)
    for _ in range(40):
        ceilings.first(FAST, 3.0, 0.1)
        ceilings.breathe([20])
    assert ceilings.opens(BATCH, 0.0, 1_000, short=False)
    for _ in range(40):
        ceilings.first(FAST, 3.0, 1.2)
        ceilings.breathe([20])
    assert not ceilings.opens(BATCH, 0.0, 20, short=False)
