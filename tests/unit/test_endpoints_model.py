"""Endpoints come, go, drain, fail and return in any order, while requests are placed, begin and end: who is picked may
be picked, and nothing is left booked."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from forebay.router.health import LONGEST_OUT_S, Card, Failed, Misfit, Well
from forebay.router.routing import Group, Health, Outcome, Placed, Role
from tests.virtual import POOL, Table

NAMES = ("a", "b", "c", "d")
_names = st.sampled_from(NAMES)
_findings = st.sampled_from([Card(), Card(), Well(), Misfit("serves other"), Failed("503"), Failed("no", at_once=True)])
_outcomes = st.sampled_from([Outcome(), Outcome(500, 0, 20, 0.2, 1.0), Outcome(500, 480, 1, None, None)])


class Endpoints(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table("a", "b")
        self.there = {"a": 0, "b": 0}  # how often each name came before
        self.came = 0
        self.shut: set[str] = set()  # drains
        self.other: set[str] = set()  # has another role
        self.held: dict[int, tuple[str, int]] = {}  # by booking: its endpoint, and which of that name
        self.placed: list[Placed] = []

    @property
    def live(self) -> dict[int, str]:
        """Bookings that count: on endpoints that are still there."""
        return {booking: name for booking, (name, which) in self.held.items() if self.there.get(name) == which}

    @rule(name=_names)
    def add(self, name: str) -> None:
        self.table.core.add(POOL, name)
        if name not in self.there:
            self.came += 1
            self.there[name] = self.came
            assert name not in self.table.cached(("chat 0", 800))

    @rule(name=_names)
    def remove(self, name: str) -> None:
        self.table.core.remove(POOL, name)
        self.there.pop(name, None)
        self.shut.discard(name)
        self.other.discard(name)

    @rule(name=_names, why=st.sampled_from(["", "it goes"]))
    def drain(self, name: str, why: str) -> None:
        self.table.core.drain(POOL, name, why)
        if name in self.there:
            (self.shut.add if why else self.shut.discard)(name)

    @rule(name=_names, role=st.sampled_from([Role.UNIFIED, Role.UNIFIED, Role.PREFILL]))
    def group(self, name: str, role: Role) -> None:
        self.table.core.group(POOL, name, Group(role))
        if name in self.there:
            (self.other.discard if role is Role.UNIFIED else self.other.add)(name)

    @rule(chat=st.integers(0, 3), stream=st.booleans(), exclude=st.sets(_names, max_size=2), owner=st.integers(0, 1))
    def place(self, chat: int, stream: bool, exclude: set[str], owner: int) -> None:
        table = self.table
        ask = table.ask((f"chat {chat}", 800), stream=stream, without=tuple(exclude))
        before = table.core.states(POOL)
        waiting = {name: member.load.waiting for name, member in table.pool.members.items()}
        told = {one.endpoint for one in table.core.explain(ask, table.now) if one.available}
        placed = table.core.place(ask, table.now, owner)
        if placed is None:
            assert not told
            whole = {name for name, state in before.items() if state.health in (Health.UP, Health.UNKNOWN)}
            assert not whole - self.shut - self.other - exclude
            return
        name = placed.endpoint
        assert name in told
        assert name in self.there
        assert name not in self.shut | self.other | exclude
        assert before[name].health not in (Health.DOWN, Health.MISCONFIGURED)
        well = any(
            state.health in (Health.UP, Health.UNKNOWN) for other, state in before.items()
            if other not in self.shut | self.other
        )  # fmt: skip
        if well:
            assert before[name].health is not Health.EJECTED
            assert before[name].health is not Health.RETURNING or not waiting[name]
        self.held[placed.booking] = name, self.there[name]
        self.placed.append(placed)

    @rule(number=st.integers(0, 40))
    def begun(self, number: int) -> None:
        if number < len(self.placed):
            self.table.begin(self.placed[number])

    @rule(number=st.integers(0, 40), outcome=_outcomes)
    def ended(self, number: int, outcome: Outcome) -> None:
        if number < len(self.placed):
            booking = self.placed[number].booking
            self.table.core.ended(booking, outcome, self.table.now)
            self.held.pop(booking, None)

    @rule(owner=st.integers(0, 1))
    def worker_lost(self, owner: int) -> None:
        owned = {one.id for one in self.table.core._bookings.values() if one.owner == owner}
        self.table.core.release_owner(owner, self.table.now)
        self.held = {booking: where for booking, where in self.held.items() if booking not in owned}

    @rule(name=_names, at_once=st.booleans(), times=st.integers(1, 3))
    def failed(self, name: str, at_once: bool, times: int) -> None:
        for _ in range(times):
            self.table.core.failed(POOL, name, "it failed", self.table.now, at_once=at_once)

    @rule(name=_names)
    def answered(self, name: str) -> None:
        self.table.core.answered(POOL, name, self.table.now)

    @rule(name=_names, finding=_findings)
    def probed(self, name: str, finding: Card | Well | Misfit | Failed) -> None:
        self.table.core.probed(POOL, name, finding, self.table.now)

    @rule(name=_names, requests=st.booleans())
    def returns(self, name: str, requests: bool) -> None:
        """It was up, is put out, and is found well when its time is over."""
        self.probed(name, Card())
        if requests:
            self.failed(name, at_once=False, times=3)
        else:
            self.failed(name, at_once=True, times=1)
        self.wait(LONGEST_OUT_S)
        self.probed(name, Card())

    @rule(name=_names, chat=st.integers(0, 3))
    def stores(self, name: str, chat: int) -> None:
        self.table.stores(name, (f"chat {chat}", 800))

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 30.0, 1_000.0, -5.0]))
    def wait(self, seconds: float) -> None:
        self.table.now += seconds
        self.table.core.tick(self.table.now)

    @invariant()
    def what_is_booked_is_what_runs_on_those_that_are_there(self) -> None:
        live = list(self.live.values())
        assert self.table.core.bookings == len(live)
        assert {name: load[0] for name, load in self.table.loads().items()} == {n: live.count(n) for n in self.there}

    @invariant()
    def the_index_has_those_that_are_there(self) -> None:
        assert set(self.table.pool.index.sizes().blocks) == set(self.there) == set(self.table.core.states(POOL))

    @invariant()
    def requests_alone_leave_somebody(self) -> None:
        """Whoever answers its probes and may be sent something is not out while there is nobody better."""
        states = self.table.core.states(POOL)
        able = [s for name, s in states.items() if name not in self.shut | self.other]
        answering = [s for s in able if s.health not in (Health.DOWN, Health.MISCONFIGURED)]
        assert any(s.open for s in able) == bool(answering)

    def teardown(self) -> None:
        for placed in self.placed:
            self.table.end(placed)
        assert not self.table.core.bookings
        assert set(self.table.loads().values()) <= {(0, 0, 0)}


Endpoints.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_endpoints = Endpoints.TestCase
