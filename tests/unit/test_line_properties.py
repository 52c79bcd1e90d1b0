"""Whatever comes, waits, leaves, fails and is lost, in any order: every request is settled once and in time."""

from collections import Counter
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.router.health import OUT, Card, Failed, Misfit, Well
from forebay.router.loads import NOTHING, Share
from forebay.router.peers import LASTING_S, Entry, Report
from forebay.router.prefix.blocks import Removed
from forebay.router.routing import Ask, Following, Group, Outcome, Placed, Refused, Role, Why
from forebay.router.tiers import Shed, Tier, Tiers
from tests.virtual import POOL, Table

TIERS = Tiers([
    Tier("fast", 0, ttft_s=1.0),
    Tier("default", 1, ttft_s=4.0, shed=Shed.DOWNGRADE),
    Tier("peer", 1, ttft_s=9.0, cold_s=3.0),
    Tier("batch", 2, ttft_s=40.0, shed=Shed.SHED, share=0.2, cold_s=20.0),
], "default")  # fmt: skip
NAMES = ("a", "b", "c", "d")
_names = st.sampled_from(NAMES)
_counts = st.none() | st.integers(-5, 60_000)
_seconds = st.none() | st.floats(-1, 1e4)
_outcomes = st.builds(
    Outcome, _counts, _counts, _counts, _seconds, _seconds, st.none() | st.booleans()
)  # fmt: skip
_findings = st.sampled_from(
    [Well(), Card(), Card(4_096), Misfit("another model"), Failed("timeout"), Failed("gone", True)]
)
_picks = st.integers(0, 1 << 16)


class Life(RuleBasedStateMachine):
    """A pool, and what is known of its requests beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(*NAMES[:3], tiers=TIERS)
        self.evicted: set[int] = set()
        self.core = self.table.core
        self.line = self.core.lines[POOL].line
        self.live: dict[int, tuple[Ask, int, float]] = {}  # those that wait: what was asked, owner, deadline
        self.placed: list[tuple[Placed, int]] = []
        self.over: set[int] = set()
        self.reports = 0
        self.latest = self.table.now  # that a clock has shown which may go back

    # -- requests

    @rule(
        chat=st.integers(0, 4), own=st.sampled_from([1, 40, 700, 4_000, 12_000]), output=st.integers(0, 400),
        stream=st.sampled_from([True, True, True, False]), without=st.sets(_names, max_size=2), owner=st.integers(0, 2),
        patience_s=st.sampled_from([0.0, 1.0, 30.0, 60.0]), waited_s=st.sampled_from([0.0, 0.0, 20.0]),
        session=st.sampled_from(["", "", "s", "t"]),
        tier=st.sampled_from(["fast", "default", "peer", "batch", "unknown"]),
        tenant=st.sampled_from(["", "u", "v"]), weight=st.sampled_from([0.5, 1.0, 1.0, 4.0]), promised=st.booleans(),
        times=st.sampled_from([1, 1, 3, 21]),
    )  # fmt: skip
    def request(
        self, chat: int, own: int, output: int, stream: bool, without: set[str], owner: int, patience_s: float,
        waited_s: float, session: str, tier: str, tenant: str, weight: float, promised: bool, times: int,
    ) -> None:  # fmt: skip
        pieces = (f"chat {chat}", 640 * chat), ("own", own)
        ask = self.table.ask(*pieces, output=output, stream=stream, without=tuple(sorted(without)), session=session)
        ask = msgspec.structs.replace(ask, patience_s=patience_s, waited_s=waited_s)
        ask = msgspec.structs.replace(ask, tier=tier, tenant=tenant, weight=weight, promised=promised)
        for _ in range(times):
            number = self.core.request(ask, self.table.now, owner)
            assert number not in self.live
            assert number not in self.over
            waiting = self.core._waiting.get(number)
            until = waiting.until if waiting is not None else self.table.now + patience_s
            self.live[number] = ask, owner, until
            self.told()

    @rule(own=st.integers(1, 3_000), owner=st.integers(0, 2))
    def place(self, own: int, owner: int) -> None:
        """As long as some are placed without waiting."""
        placed = self.core.place(self.table.ask(("own", own)), self.table.now, owner)
        if placed is not None:
            self.placed.append((placed, owner))

    @rule()
    def pump(self) -> None:
        self.core.pump(POOL, self.table.now)
        self.core.pump("nowhere", self.table.now)
        self.told()

    @precondition(lambda self: self.live)
    @rule(pick=_picks)
    def withdraw(self, pick: int) -> None:
        number = sorted(self.live)[pick % len(self.live)]
        self.core.withdraw(number, self.table.now)
        self.core.withdraw(number, self.table.now)
        del self.live[number]
        self.over.add(number)

    @rule(owner=st.integers(0, 2))
    def owner_gone(self, owner: int) -> None:
        self.core.release_owner(owner, self.table.now)
        self.over |= {number for number, one in self.live.items() if one[1] == owner}
        self.live = {number: one for number, one in self.live.items() if one[1] != owner}
        self.placed = [(placed, whose) for placed, whose in self.placed if whose != owner]

    @precondition(lambda self: self.placed)
    @rule(pick=_picks)
    def begin(self, pick: int) -> None:
        self.table.begin(self.placed[pick % len(self.placed)][0])

    @precondition(lambda self: self.placed)
    @rule(pick=_picks, outcome=_outcomes)
    def end(self, pick: int, outcome: Outcome) -> None:
        placed, _ = self.placed.pop(pick % len(self.placed))
        for _ in range(2):
            self.core.ended(placed.booking, outcome, self.table.now)

    # -- endpoints

    @rule(name=_names)
    def add(self, name: str) -> None:
        self.core.add(POOL, name)

    @rule(name=_names)
    def remove(self, name: str) -> None:
        self.core.remove(POOL, name)

    @rule(name=_names, why=st.sampled_from(["", "it goes"]))
    def drain(self, name: str, why: str) -> None:
        self.core.drain(POOL, name, why)

    @rule(name=_names, role=st.sampled_from([Role.UNIFIED, Role.UNIFIED, Role.DECODE]))
    def group(self, name: str, role: Role) -> None:
        self.core.group(POOL, name, Group(role))

    @rule(name=_names, at_once=st.booleans())
    def failed(self, name: str, at_once: bool) -> None:
        self.core.failed(POOL, name, "it failed", self.table.now, at_once=at_once)

    @rule(name=_names, finding=_findings)
    def probed(self, name: str, finding: Any) -> None:
        self.core.probed(POOL, name, finding, self.table.now)

    @precondition(lambda self: self.table.pool.members)
    @rule(pick=_picks, chat=st.integers(1, 4))
    def stores(self, pick: int, chat: int) -> None:
        names = sorted(self.table.pool.members)
        self.table.stores(names[pick % len(names)], (f"chat {chat}", 640 * chat))

    @rule(name=_names)
    def gives_up(self, name: str) -> None:
        """Its cache is full from now on: what is placed there pushes out what others left."""
        self.core.apply(POOL, name, [Removed([1])])

    @rule(name=_names, following=st.sampled_from(Following))
    def follows(self, name: str, following: Following) -> None:
        self.core.follows(POOL, name, following)

    @rule(name=_names)
    def clear(self, name: str) -> None:
        self.core.clear(POOL, name)

    @rule(
        name=_names, prefill=st.integers(0, 100_000), silent=st.integers(0, 100_000), booked=st.integers(0, 1 << 40),
        door=st.integers(0, 1),
    )  # fmt: skip
    def report(self, name: str, prefill: int, silent: int, booked: int, door: int) -> None:
        self.reports += 1
        share = Share(1, 5, prefill, min(prefill, silent), max(prefill, booked))
        self.core.peers.hear(Report(f"door {door}", self.reports, [Entry(POOL, name, share)]), self.table.now)

    # -- time

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0, 5.0, 61.0, 2_000.0, -0.2, -5.0, -1_000.0]))
    def wait(self, seconds: float) -> None:
        self.table.now += seconds
        self.latest = max(self.latest, self.table.now)

    @rule()
    def tick(self) -> None:
        self.core.tick(self.table.now)
        self.told()
        for owner, booking in self.core.evictions():
            known = self.core.booked(booking)
            assert known is not None
            assert (known.owner, known.tier) == (owner, "batch")
            assert booking not in self.evicted
            self.evicted.add(booking)
        for number in self.live:
            waiting = self.core._waiting[number]
            assert self.table.now < waiting.until <= max(waiting.latest, self.live[number][2])

    # -- what must be so

    def told(self) -> None:
        now = self.table.now
        for settled in self.core.settled():
            ask, owner, until = self.live.pop(settled.number)  # once, and never of one that left
            self.over.add(settled.number)
            assert settled.owner == owner
            match settled.result:
                case Placed() as placed:
                    member = self.table.pool.members[placed.endpoint]
                    assert placed.endpoint not in ask.exclude
                    assert not member.shut
                    assert member.condition.standing > OUT
                    assert 0 <= placed.cached < ask.tokens
                    assert placed.predicted_s > 0
                    self.placed.append((placed, owner))
                case Refused(why=Why.LATE, retry_s=seconds):
                    assert until <= now
                    assert seconds >= 0
                case Refused(why=Why.DEADLINE | Why.CAPACITY | Why.FULL, retry_s=seconds):
                    assert seconds > 0
                    assert not ask.promised or settled.result.why is Why.FULL
                case None:
                    pool = self.table.pool
                    assert not [
                        name
                        for name, member in pool.members.items()
                        if member.standing == pool._best > OUT and name not in ask.exclude
                    ]
                case other:
                    raise AssertionError(other)

    @invariant()
    def nothing_is_told_twice_or_late(self) -> None:
        assert self.core.settled() == []
        assert {waiting.number for waiting in self.line} == set(self.live) == set(self.core._waiting)
        parts = [(len(part), held) for part, held in self.line._held.items()]
        for length in (2, 3):
            assert sum(held.number for n, held in parts if n == length) == len(self.live)
            size = sum(len(ask.keys) for ask, _, _ in self.live.values())
            assert sum(held.size for n, held in parts if n == length) == size

    @invariant()
    def counters_are_those_of_who_waits_and_runs(self) -> None:
        line = self.core.lines[POOL]
        there = list(self.line)
        for name, waiting in self.line.tiers.items():
            assert waiting == sum(one.tier.name == name for one in there)
        for name, seconds in self.line.seconds.items():
            assert abs(seconds - sum(one.prefill_s for one in there if one.tier.name == name)) < 1e-6 * (1 + seconds)
        assert {one.number for one in self.line.ordered(self.table.now)} == {one.number for one in there}
        for backlog in (one for tenants in self.line._backlogs.values() for one in tenants.values()):
            assert backlog._keys == sorted((one.due, one.number) for one in backlog.ones)
            assert backlog._seconds == [one.prefill_s for one in backlog.ones]
            assert backlog.tokens == [one.cost / one.ask.weight for one in backlog.ones]
        waiting_in = {name: one.came - one.left for name, one in self.line._sessions.items()}
        assert waiting_in == Counter(one.ask.session for one in there if one.ask.session)
        assert set(line.counters._under_way) == {one.session for one in self.core._bookings.values() if one.session}
        assert sum(line.counters._waiting.values()) == len(there)

    @invariant()
    def loads_are_what_is_booked(self) -> None:
        bookings = list(self.core._bookings.values())
        assert {booking.endpoint for booking in bookings} <= set(self.table.pool.members)
        for name, member in self.table.pool.members.items():
            own = [booking for booking in bookings if booking.endpoint == name]
            assert member.load.own.in_flight == len(own)
            assert member.load.own.output == sum(booking.output for booking in own)
            assert member.load.own.prefill == sum(booking.prefill for booking in own if booking.waiting)
            assert member.load.own.silent == sum(
                booking.prefill for booking in own if booking.waiting and not booking.tells
            )
            assert 0 <= member.load.ahead(self.table.now, member.rates.prefill_s) <= member.load.prefill

    def teardown(self) -> None:
        """Time goes on, engines answer or not: in the end nobody waits, and nothing is booked."""
        table = self.table
        table.now = max([self.latest, *(max(one.until, one.latest) for one in self.core._waiting.values())])
        self.core.tick(table.now)
        self.told()
        assert not self.live
        self.core.add(POOL, "a fresh one")
        for candidate in self.core.explain(table.ask(("x", 500)), table.now):
            assert min(candidate.predicted_s, candidate.displaced_s, candidate.delayed_s) >= 0
        for placed, _ in self.placed:
            table.end(placed)
        table.now += LASTING_S + 1.0
        self.core.tick(table.now)
        assert table.idle()
        assert {member.load.peers for member in table.pool.members.values()} == {NOTHING}
        number = table.request(("whoever comes then", 500))
        assert isinstance(table.settled()[number], Placed)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
