"""Simulated engines and fleets: times by hand, and what holds whatever is asked."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.router.simulation.arriving import Arrival, arrivals
from forebay.router.simulation.blocks import Blocks, Change
from forebay.router.simulation.engine import Engine, EngineSpec, Request
from forebay.router.simulation.fleet import Fleet, Run
from forebay.router.simulation.policies import OTHERS, LeastRequests
from forebay.router.simulation.trial import POLICIES
from forebay.router.simulation.workload import PRIVATE, Call, Conversation, Instance, Turn, Workload

BLOCK = 10
PLAIN = EngineSpec(
    prefill=100.0, capacity=1000, block=BLOCK, chunk=100, step_s=0.1, answer_s=0.0, fixed_s=0.0, attention=1e18
)


def blocks(count: int, first: int = PRIVATE) -> Blocks:
    return first + np.arange(count, dtype=np.int64)


def turn(tokens: int, output: int = 1, *, first: int = PRIVATE, **more: object) -> Turn:
    return Turn(blocks(tokens // BLOCK, first), tokens, output, **more)  # type: ignore[arg-type]


def once(*turns: Turn, at: float = 0.0, name: str = "c", offset: int = 0) -> Arrival:
    return Arrival(at, Instance(name, Conversation(name, list(turns), names=1000), offset))


def play(arriving: Sequence[Arrival], spec: EngineSpec = PLAIN, engines: int = 1, policy: str = "round-robin") -> Run:
    return Fleet([spec] * engines, POLICIES[policy], seed=1).run(arriving, measure_from=0.0, until=1e6)


def test_two_prompts_at_one_engine_are_computed_one_after_the_other() -> None:
    run = play([once(turn(200), name="a"), once(turn(100), at=0.5, name="b", offset=1000)])
    times = [at for one in run.requests for at in (one.began_at, one.ended_at)]
    assert times == pytest.approx([2.0, 2.0, 3.0, 3.0])


def test_an_answer_takes_a_step_a_token_and_longer_steps_while_a_prompt_is_computed() -> None:
    # 11 tokens: the first at 1 s. A chunk of 100 tokens takes 1 s, so from 1.2 s to 3.2 s it gets two tokens.
    run = play([once(turn(100, 11), name="a"), once(turn(200), at=1.2, name="b", offset=1000)])
    first = next(one for one in run.requests if one.conversation == "a")
    assert first.began_at == pytest.approx(1.0)
    assert first.ended_at == pytest.approx(1.2 + 2.0 + 6 * 0.1)


def test_answers_lengthen_the_prefill_of_others() -> None:
    slow = EngineSpec(prefill=100.0, capacity=1000, block=BLOCK, chunk=100, step_s=0.1, answer_s=0.5, fixed_s=0.0,
                      attention=1e18)  # fmt: skip
    run = play([once(turn(100, 500), name="a"), once(turn(100), at=1.0, name="b", offset=1000)], slow)
    second = next(one for one in run.requests if one.conversation == "b")
    assert second.began_at == pytest.approx(1.0 + 1.5)  # a chunk of 1 s, and half a second for the answer beside it


def test_the_next_turn_finds_its_prompt_and_the_answer_before_it() -> None:
    later = turn(150, pause_s=5.0)
    run = play([once(turn(100, 20, kept=blocks(12)), later)])
    assert [one.cached for one in run.requests] == [0, 120]
    assert run.requests[1].asked_at == pytest.approx(run.requests[0].ended_at + 5.0)


def test_a_prompt_that_is_cached_whole_still_computes_a_token() -> None:
    run = play([once(turn(100), turn(100))])
    assert run.requests[1].cached == 99


def test_two_who_hold_the_same_recorded_conversation_share_nothing_of_their_own() -> None:
    shared = np.concatenate((np.arange(4, dtype=np.int64), blocks(6)))
    conversation = Conversation("c", [Turn(shared, 100, 1)], names=10)
    run = play([Arrival(at, Instance(f"c#{at}", conversation, at * 10)) for at in range(2)])
    assert [one.cached for one in run.requests] == [0, 40]


def test_sub_agents_begin_when_they_are_called_and_are_waited_for() -> None:
    calls = [Call(after, Conversation(f"s{after}", [turn(100, first=PRIVATE + 100 * after)])) for after in (1, 2)]
    run = play([once(turn(100, calls=calls), turn(100, pause_s=3.0, first=PRIVATE + 500))], engines=3)
    asked = {one.conversation: one.asked_at for one in run.requests}
    assert asked["c/s1"] == pytest.approx(2.0)
    assert asked["c/s2"] == pytest.approx(3.0)
    assert asked["c"] == pytest.approx(max(one.ended_at for one in run.requests[:3]) + 3.0)
    assert len(run.requests) == 4


def test_a_prompt_larger_than_the_cache_is_computed_alone_and_holds_nobody_up_for_ever() -> None:
    small = EngineSpec(prefill=100.0, capacity=50, block=BLOCK, chunk=100)
    run = play([once(turn(size), at=number * 0.1, name=str(number), offset=1000 * number)
                for number, size in enumerate((40, 200, 30))], small)  # fmt: skip
    assert len(run.requests) == 3
    assert not run.unbegun_s


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_serves_prompts_that_no_cache_can_hold(policy: str) -> None:
    tiny = EngineSpec(prefill=100.0, capacity=1, block=BLOCK)
    run = play([once(turn(50), turn(60), at=number, name=str(number), offset=1000 * number) for number in range(6)],
               tiny, engines=2, policy=policy)  # fmt: skip
    assert len(run.requests) == 12


turns = st.builds(
    lambda tokens, output, pause: turn(tokens, output, pause_s=pause),
    st.integers(1, 400), st.integers(1, 60), st.floats(0, 20),
)  # fmt: skip
comings = st.lists(st.tuples(st.floats(0, 30), st.lists(turns, min_size=1, max_size=4)), min_size=1, max_size=10)


class Watched(Engine):
    """Checks itself whenever it moves."""

    def advance(self, now: float) -> tuple[list[Request], list[Request]]:
        assert now >= self._now
        assert now <= self.next_at() + 1e-6
        found = super().advance(now)
        running = self.cache.pinned + self.cache.reserved
        assert self.cache.size + self.cache.reserved <= max(self.cache.capacity, running)
        assert self.computing is not None or not self.waiting or self._answers  # it does not idle beside work
        return found


@settings(max_examples=60, deadline=None)
@given(comings, st.sampled_from(sorted(OTHERS)), st.sampled_from((30, 200, 1000)))
def test_whatever_is_asked_begins_and_ends_once_and_no_work_is_lost(
    coming: list[tuple[float, list[Turn]]], policy: str, capacity: int
) -> None:
    spec = EngineSpec(prefill=100.0, capacity=capacity, block=BLOCK, chunk=50)
    fleet = Fleet([spec] * 2, OTHERS[policy], seed=3)
    fleet.engines[:] = [Watched(spec) for _ in fleet.engines]
    fleet.policy = OTHERS[policy](fleet.engines, fleet._send, 3)
    run = fleet.run(
        [once(*turns, at=at, name=str(number), offset=1000 * number) for number, (at, turns) in enumerate(coming)],
        measure_from=0.0, until=1e6,
    )  # fmt: skip
    assert sorted(one.number for one in run.requests) == list(range(sum(len(turns) for _, turns in coming)))
    assert all(one.asked_at <= one.sent_at <= one.began_at <= one.ended_at for one in run.requests)
    assert sum(engine.computed for engine in fleet.engines) == sum(one.turn.tokens - one.cached for one in run.requests)
    assert all(engine.in_flight == engine.cache.pinned == engine.cache.reserved == 0 for engine in fleet.engines)
    assert [one.began_at for one in run.served] == sorted(one.began_at for one in run.served)


class Hears(LeastRequests):
    """Keeps what it is told of caches."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.heard: list[tuple[float, int, bool]] = []

    def news(self, engine: int, changes: Sequence[Change], now: float) -> None:
        self.heard += [(now, len(blocks), stored) for blocks, _, stored in changes]


def test_a_policy_hears_of_blocks_when_they_are_computed_and_of_room_made_at_once() -> None:
    small = EngineSpec(prefill=100.0, capacity=120, block=BLOCK, fixed_s=0.0, attention=1e18)
    fleet = Fleet([small], Hears, seed=1, event_delay_s=0.5)
    asked = [once(turn(100), at=number * 10.0, name=str(number), offset=1000 * number) for number in range(2)]
    last = once(turn(10), at=20.0, name="last", offset=2000)  # so that all before it is heard
    fleet.run([*asked, last], measure_from=0.0, until=100.0)
    assert isinstance(fleet.policy, Hears)
    assert [(round(at, 3), count) for at, count, stored in fleet.policy.heard if stored] == [(1.5, 10), (11.5, 10)]
    given_up = [(at, count) for at, count, stored in fleet.policy.heard if not stored]
    assert sum(count for _, count in given_up) == 9  # ten blocks and one of answer, of twelve
    assert all(at == pytest.approx(10.5) for at, _ in given_up)


def test_as_many_conversations_are_under_way_as_were_asked_for() -> None:
    workload = Workload("w", BLOCK, [Conversation("c", [turn(100, 100, pause_s=10.0) for _ in range(20)], names=10)])
    for seed in range(3):
        found = arrivals(workload, live=50, until=4000.0, seed=seed)
        duration = 20 * (10.0 + 1.0 + 3.0)
        under_way = sum(one.at <= 2000.0 < one.at - 10.0 + duration for one in found)
        assert 25 <= under_way <= 80
        assert any(one.first for one in found)  # some are met in their middle
        offsets = [one.instance.offset for one in found]
        assert len(set(offsets)) == len(offsets)


def test_what_had_not_begun_when_all_was_over_counts_with_what_it_had_waited() -> None:
    never = EngineSpec(prefill=0.01, capacity=1000, block=BLOCK)
    fleet = Fleet([never], LeastRequests, seed=1)
    run = fleet.run([once(turn(100), at=1.0), once(turn(10), at=700.0, name="later")], measure_from=0.0, until=50.0)
    assert not run.requests
    assert len(run.first_token_s()) == 1
