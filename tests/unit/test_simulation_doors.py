"""Several front doors before simulated engines: they place as one, and one that is killed takes nothing with it."""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forebay.router.peers import LASTING_S
from forebay.router.simulation.arriving import Arrival
from forebay.router.simulation.doors import Doors
from forebay.router.simulation.engine import EngineSpec
from forebay.router.simulation.fleet import Fleet, Run
from forebay.router.simulation.live import TICK_S, Forebay
from tests.unit.test_simulation_fleet import once, turn

SPEC = EngineSpec(prefill=1000.0, capacity=100_000, block=10, chunk=100, step_s=0.05)


def fleet(make: Callable[..., Any], engines: int = 4) -> Fleet:
    return Fleet([SPEC] * engines, make, seed=1)


def coming(conversations: int, turns: int = 1, *, apart_s: float = 0.1) -> list[Arrival]:
    """Conversations of prompts that grow, with an answer of 2.5 s each."""
    return [
        once(
            *(turn(1000 * (number + 1), 50, pause_s=2.0 * (number > 0)) for number in range(turns)),
            at=1.0 + apart_s * one, name=str(one), offset=100_000 * one,
        )
        for one in range(conversations)
    ]  # fmt: skip


def play(fleet: Fleet, arriving: Sequence[Arrival]) -> Run:
    return fleet.run(arriving, measure_from=0.0, until=1e6)


def crowded(run: Run) -> int:
    """Requests that were sent to an engine that was busy, while another one was idle."""
    found = 0
    for one in run.requests:
        busy = {other.engine for other in run.requests if other.sent_at < one.sent_at < other.began_at}
        found += one.engine in busy and len(busy) < 4
    return found


def test_two_front_doors_that_share_their_load_send_nobody_to_a_busy_engine() -> None:
    arriving = coming(40, apart_s=0.3)
    shared, alone = (play(fleet(functools.partial(Doors, shares=shares)), arriving) for shares in (True, False))
    assert len(shared.requests) == len(alone.requests) == 40
    assert crowded(shared) == 0
    assert crowded(alone) >= 3  # so the test can tell


def test_one_door_of_several_is_the_front_door_that_it_is_alone() -> None:
    arriving = coming(12, 3)
    one, other = (play(fleet(make), arriving) for make in (Forebay, functools.partial(Doors, count=1)))
    assert [(r.conversation, r.engine, r.began_at) for r in one.served] == [
        (r.conversation, r.engine, r.began_at) for r in other.served
    ]


@pytest.mark.parametrize("at", [1.05, 3.0, 9.7, 14.2])
def test_a_front_door_that_is_killed_takes_no_request_with_it(at: float) -> None:
    made: list[Doors] = []

    def make(*arguments: Any) -> Doors:
        made.append(Doors(*arguments))
        return made[0]

    some = fleet(make, engines=2)
    again = []
    some.at(at, lambda: again.extend(some.lose(made[0].kill(0), 1.0)))
    run = play(some, coming(12, 3))
    assert again or at < 1.2
    assert not run.unbegun_s
    ended = Counter((one.conversation, one.turn.tokens) for one in run.served if one.ended_at and not one.stopped)
    assert ended == {(str(number), tokens): 1 for number in range(12) for tokens in (1000, 2000, 3000)}
    assert all(one.asked_at >= at + 1 or one.began_at > at + 1 for one in again)
    assert all(engine.in_flight == engine.cache.pinned == engine.cache.reserved == 0 for engine in some.engines)
    (left,) = made[0].doors
    assert left.core.bookings == 0


def test_what_a_killed_one_had_booked_is_forgotten_after_a_while() -> None:
    made: list[Doors] = []

    def make(*arguments: Any) -> Doors:
        made.append(Doors(*arguments))
        return made[0]

    some = fleet(make, engines=1)
    seen: dict[float, int] = {}

    def look() -> None:
        (member,) = made[0].doors[0].core.pools["simulated"].members.values()
        seen[some.now] = member.load.peers.in_flight

    some.at(3.0, lambda: made[0].kill(0))  # its requests are asked by nobody again
    for when in (3.1, 3.0 + LASTING_S - 1.1, 3.0 + LASTING_S + TICK_S + 0.1):
        some.at(when, look)
    some.at(20.0, look)
    some.run([once(turn(100, 10_000), at=1.0 + one / 10, name=str(one), offset=1000 * one) for one in range(8)],
             measure_from=0.0, until=21.0)  # fmt: skip
    assert [number > 0 for number in seen.values()] == [True, True, False, False]
