"""Who is let in, in which tier, and who waits for an endpoint to come."""

import msgspec
import pytest

from forebay.router.admission import SEEN_S, Gate
from forebay.router.ceilings import Ceilings
from forebay.router.core_line import CoreLine
from forebay.router.dispatch import Dispatch
from forebay.router.line import Ahead, Short
from forebay.router.rates import Rates
from forebay.router.routing import Ask, Outcome, Placed, Refused, Result, Why
from forebay.router.tiers import Shed, Tier, Tiers
from tests.virtual import POOL, Table

FAST = Tier("fast", 0, ttft_s=2.0, tpot_s=0.05, queue_s=10.0)
PLAIN = Tier("plain", 1, ttft_s=5.0, queue_s=20.0, shed=Shed.DOWNGRADE)
SLOW = Tier("slow", 2, queue_s=600.0)
BATCH = Tier("batch", 3, ttft_s=30.0, queue_s=60.0, shed=Shed.SHED, share=0.1, cold_s=30.0)
TIERS = Tiers([FAST, PLAIN, SLOW, BATCH], "plain")
LONG = 20_000  # tokens: 10 s of prefill


def known() -> Rates:
    return Rates(prefills=20)


def table(*endpoints: str, learnt: bool = True) -> Table:
    made = Table(*endpoints, tiers=TIERS)
    if learnt:
        made.pool.rates.prefills = 20
    return made


def line(table: Table) -> CoreLine:
    return table.core.lines[POOL]


def request(table: Table, tier: str, tokens: int, **more: object) -> int:
    return table.core.request(ask(table, tier, tokens, **more), table.now)


def ask(table: Table, tier: str, tokens: int, **more: object) -> Ask:
    asked = table.ask((f"{tier} {tokens} {more}", tokens))
    return msgspec.structs.replace(asked, tier=tier, patience_s=TIERS[tier].queue_s, **more)


def refused(result: Result) -> Refused:
    assert isinstance(result, Refused)
    return result


def test_who_would_wait_longer_than_it_may_hears_so_at_once_and_when_to_come_back() -> None:
    there = table("a")
    there.place(("running", 100))
    there.place(("long", LONG))
    for _ in range(5):
        request(there, "fast", LONG // 5)  # 2 s each
    told = there.settled()
    number = request(there, "fast", LONG)
    result = refused(there.settled()[number])
    assert told == {}
    assert (result.why, result.tier) == (Why.DEADLINE, "fast")
    assert 0 < result.retry_s < 60


def test_nobody_is_refused_for_a_prediction_before_anything_is_learnt() -> None:
    there = table("a", learnt=False)
    there.place(("long", LONG))
    for _ in range(20):
        request(there, "fast", LONG)
    assert there.settled() == {}


def test_one_that_was_let_in_once_is_not_refused_when_it_goes_on_elsewhere() -> None:
    there = table("a")
    there.place(("long", LONG))
    for _ in range(8):
        request(there, "fast", LONG // 5)
    there.settled()
    request(there, "fast", LONG, promised=True)
    assert there.settled() == {}
    kept = request(there, "fast", LONG, exclude=("b",))  # from a suspect, at its first attempt
    assert isinstance(there.settled()[kept], Refused)


def test_one_whose_objective_would_be_missed_is_served_in_a_lower_tier_and_told_so() -> None:
    there = table("a")
    there.place(("long", LONG))
    for tenant in ("a", "b"):
        request(there, "plain", LONG // 6, tenant=tenant)  # 1.7 s
    told = Dispatch(there.core, lambda: there.now).explain(ask(there, "plain", 1_000))
    assert (told.tier, told.refused) == ("slow", None)
    number = request(there, "plain", 1_000)
    assert there.settled() == {}
    for placed in list(there.core._bookings.values()):
        there.core.ended(placed.id, Outcome(), there.now)
    placed_as = {}
    for _ in range(8):
        there.now += 0.1
        there.pump()
        for settled, result in there.settled().items():
            assert isinstance(result, Placed)
            placed_as[settled] = result.tier
            there.core.ended(result.booking, Outcome(), there.now)
    assert placed_as[number] == "slow"


def test_higher_tiers_that_take_what_there_is_are_why_a_lower_one_is_refused() -> None:
    there = table("a")
    there.place(("long", LONG))
    for number in range(6):
        request(there, "slow", LONG // 2, tenant=f"{number}")
    there.settled()
    line(there).shares.served("batch", 1e6, there.now)  # it has had its share
    number = request(there, "batch", 500)
    result = refused(there.settled()[number])
    assert result.why is Why.CAPACITY
    assert result.tier == "batch"


def test_a_tier_that_is_short_of_its_share_is_let_in_whatever_is_before_it_but_not_behind_more_of_its_own() -> None:
    there = table("a")
    there.place(("long", LONG))
    line(there).shares.served("slow", 1e6, there.now)
    for number in range(6):
        request(there, "slow", LONG // 2, tenant=f"{number}")
    there.settled()
    results: dict[int, Result] = {}
    for _ in range(12):
        request(there, "batch", 3_000)  # 1.5 s each, of a tenth of what there is
        results |= there.settled()
    assert line(there).line.tiers["batch"] == 4
    assert {refused(result).why for result in results.values()} == {Why.DEADLINE}


def test_who_is_told_to_come_again_is_not_kept_away_for_longer_than_he_may_wait_nor_all_until_one_moment() -> None:
    there = table("a")
    there.place(("long", LONG))
    line(there).shares.served("batch", 1e6, there.now)
    for number in range(40):
        request(there, "slow", LONG // 2, tenant=f"{number}")  # 200 s
    there.settled()
    numbers = [request(there, "batch", 500) for _ in range(20)]
    results = there.settled()
    told = [refused(results[number]).retry_s for number in numbers]
    assert all(BATCH.queue_s <= one <= 1.25 * BATCH.queue_s for one in told)
    assert len({round(one) for one in told}) > 10


def test_one_that_is_downgraded_may_wait_as_long_as_those_of_the_tier_that_takes_it() -> None:
    quick = Tier("quick", 0, ttft_s=1.0, queue_s=2.0, shed=Shed.DOWNGRADE)
    plain = Tier("plain", 1, ttft_s=60.0, queue_s=60.0)
    there = Table("a", tiers=Tiers([quick, plain], "plain"))
    there.pool.rates.prefills = 20
    there.place(("long", LONG // 2))
    for number in range(2):
        there.core.request(msgspec.structs.replace(there.ask((f"{number}", 5_000)), tier="plain"), there.now)
    asked = msgspec.structs.replace(there.ask(("mine", 8_000)), tier="quick", patience_s=2.0)
    there.core.request(asked, there.now)  # nothing is before it in its own tier
    number = there.core.request(asked, there.now)
    short = there.core.request(msgspec.structs.replace(asked, left_s=2.0), there.now)
    results = there.settled()
    assert isinstance(results.get(short), Refused)
    assert number not in results
    assert line(there).line.tiers == {"plain": 3, "quick": 1}
    assert there.core.within_s(number, there.now) > 50


def test_what_goes_away_unserved_is_not_counted_as_coming() -> None:
    there = table("a")
    there.place(("long", LONG))
    for number in range(4):
        request(there, "fast", 4_000, tenant=f"{number}")
    coming = line(there).gate._coming["fast"]
    assert coming.rate(there.now) > 0
    there.now += FAST.queue_s
    there.core.tick(there.now)
    assert Why.LATE in {refused(one).why for one in there.settled().values()}
    assert coming.rate(there.now) == pytest.approx(0.0, abs=1e-9)


def test_peers_neither_take_less_for_each_other_nor_wait_for_what_comes_of_each_other() -> None:
    one, other, low = Tier("one", 1, ttft_s=2.0), Tier("other", 1, ttft_s=9.0), Tier("low", 2)
    tiers = Tiers([one, other, low])
    gate, ceilings = Gate(tiers, known), Ceilings(tiers)
    for tenth in range(400):
        gate.came(one, 0.09, tenth / 10)
        ceilings.first(one, 3.0, 2.0)
        ceilings.breathe([20])
    ahead = Ahead(own_s=1.0)
    assert gate.wait_s(other, ahead, 1, 40.0) == gate.wait_s(one, ahead, 1, 40.0) < gate.wait_s(low, ahead, 1, 40.0)
    assert ceilings.opens(other, 0.0, 1_000, short=False)
    assert not ceilings.opens(low, 0.0, 20, short=False)


def test_what_comes_of_higher_tiers_lengthens_a_wait_but_for_a_tier_s_share() -> None:
    gate = Gate(TIERS, known)
    for tenth in range(400):
        gate.pace.passed(tenth / 10, waits=True)
        gate.pace.worked += 0.1  # one second of prefill a second
        gate.came(FAST, 0.09, tenth / 10)
    ahead = Ahead(own_s=1.0)
    assert gate.wait_s(FAST, ahead, 1, 40.0) < 1.2
    assert gate.wait_s(SLOW, ahead, 1, 40.0) > 5
    assert gate.wait_s(BATCH, ahead, 1, 40.0) < 12  # a tenth is its


def test_a_cold_pool_is_waited_for_as_long_as_the_tier_may() -> None:
    there = table()
    plain, batch = request(there, "plain", 500), request(there, "batch", 500)
    assert there.settled() == {plain: None}
    there.now += 29
    there.pump()
    assert there.settled() == {}
    there.core.add(POOL, "a")
    there.pump()
    assert isinstance(there.settled()[batch], Placed)
    there.core.remove(POOL, "a")
    late = request(there, "batch", 500)
    there.now += 30.1
    there.pump()
    assert there.settled() == {late: None}


def test_what_was_withdrawn_at_once_is_not_waited_for() -> None:
    tiers = Tiers([Tier("fast", 0), Tier("batch", 1)])
    gate, (fast, batch) = Gate(tiers, known), tuple(tiers)
    before = gate.wait_s(batch, Ahead(own_s=10.0), 4, 0.0)
    gate.came(fast, 30.0, 0.0)
    assert gate.wait_s(batch, Ahead(own_s=10.0), 4, 0.1) > 2 * before
    gate.uncame(fast, 30.0, 0.0, 0.1)
    assert gate.wait_s(batch, Ahead(own_s=10.0), 4, 0.1) == pytest.approx(before)


def test_a_lower_tier_s_backlog_is_before_a_higher_one_only_as_far_as_its_share_lets_it() -> None:
    there = table("a")
    there.place(("long", LONG))
    for number in range(20):
        request(there, "batch", LONG, tenant=f"{number}")  # 10 s each
    assert there.core.lines[POOL].shares.short("batch")
    there.now += 1.5
    number = request(there, "fast", 500)
    assert there.settled().get(number) is None  # it is let in, and waits


def test_what_a_share_lets_go_first_is_counted_within_the_wait() -> None:
    gate = Gate(TIERS, known)
    for tenth in range(400):
        gate.pace.passed(tenth / 10, waits=True)
        gate.pace.worked += 0.1  # one second of prefill a second

    def wait_s(seconds: float, lacking_s: float = 0.0) -> float:
        return gate.wait_s(FAST, Ahead(own_s=9.0, shorts=(Short(0.1, lacking_s, seconds, 5),)), 1, 40.0)

    assert wait_s(0.0) == pytest.approx(9.0, rel=0.01)
    assert wait_s(0.5) == pytest.approx(9.5, rel=0.01)  # all of it
    assert wait_s(500.0) == pytest.approx(10.0, rel=0.01)  # a tenth of the time
    assert wait_s(500.0, lacking_s=1.8) == pytest.approx(12.0, rel=0.01)  # and what it was not given before


@pytest.mark.parametrize("earlier", ["nowhere", "cached", "waiting"])
def test_a_conversation_that_goes_on_is_let_in_before_one_that_begins(earlier: str) -> None:
    there = table("a")
    turn, more = ("a conversation", 2_000), ("its next turn", 200)
    if earlier == "cached":
        there.serve(turn)
    there.place(("long", LONG))
    for number in range(9):
        request(there, "slow", LONG // 2, tenant=f"{number}")  # 5 s each: more than is for new ones
    if earlier == "waiting":
        there.core.request(msgspec.structs.replace(there.ask(turn), tier="slow"), there.now)
    there.settled()
    there.now += 60
    asked = msgspec.structs.replace(there.ask(turn, more), tier="slow", patience_s=56.0, tenant="t")
    number = there.core.request(asked, there.now)
    result = there.settled().get(number)
    assert isinstance(result, Refused) == (earlier == "nowhere")


def test_a_pool_that_is_full_from_its_first_request_refuses_early_as_well() -> None:
    there = table("a", learnt=False)
    first = there.place(("long", 400))
    for number in range(60):
        request(there, "fast", 400, tenant=f"{number}")  # two a second begin, whatever the rates say
    placed, begun = [first], there.now
    while there.now < begun + SEEN_S + 1:
        there.now += 0.5
        there.begin(*placed)
        there.end(*placed)
        there.pump()
        placed = [one for one in there.settled().values() if isinstance(one, Placed)]
    assert there.pool.rates.prefills == 0
    late = request(there, "fast", 400, tenant="late")
    result = refused(there.settled()[late])
    assert result.why is Why.DEADLINE
    assert result.retry_s > 5
