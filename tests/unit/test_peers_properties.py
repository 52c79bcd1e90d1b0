"""Whatever front doors book, tell, lose and make up, in any order: loads are exactly what is known to be booked."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.platform.sharing.wire import WireError, decoded, encoded
from forebay.router.loads import NOTHING, Share
from forebay.router.peers import LASTING_S, Entry, Report
from forebay.router.routing import Placed
from tests.virtual import POOL, Table

ENDPOINTS = ("a", "b", "c")
DOORS = 3
_doors = st.integers(0, DOORS - 1)
_numbers = st.one_of(st.integers(-5, 1 << 20), st.integers(-(1 << 62), 1 << 62))
_shares = st.builds(Share, _numbers, _numbers, _numbers, _numbers, _numbers)
_entries = st.lists(st.builds(Entry, st.sampled_from([POOL, "nowhere"]), st.sampled_from([*ENDPOINTS, "z"]), _shares))
_steps = st.one_of(
    st.tuples(st.just("place"), _doors, st.integers(1, 3_000), st.integers(0, 300), st.booleans()),
    st.tuples(st.just("begin"), _doors, st.integers(0, 20)),
    st.tuples(st.just("end"), _doors, st.integers(0, 20)),
    st.tuples(st.just("tell"), _doors, st.booleans()),  # heard by all, or lost
    st.tuples(st.just("repeat"), _doors),  # the last report comes once more
    st.tuples(st.just("restart"), _doors),
    st.tuples(st.just("lie"), st.integers(-1, 5), _entries),
    st.tuples(st.just("noise"), st.binary(max_size=40)),
    st.tuples(st.just("wait"), st.floats(-1, 4)),
)


class Story:
    """Front doors over the same endpoints, and what each should take the others to have booked."""

    def __init__(self) -> None:
        self.lives = 0
        self.tables = [Table(*ENDPOINTS) for _ in range(DOORS)]
        self.names = [self.born() for _ in range(DOORS)]
        self.numbers = [0] * DOORS
        self.placed: list[list[Placed]] = [[] for _ in range(DOORS)]
        self.last: list[bytes | None] = [None] * DOORS

    def born(self) -> str:
        self.lives += 1
        return f"door {self.lives}"

    def tell_step(self, step: tuple[Any, ...]) -> None:
        getattr(self, step[0])(*step[1:])
        for table in self.tables:
            self.check(table)

    def check(self, table: Table) -> None:
        bookings = list(table.core._bookings.values())
        for name, member in table.pool.members.items():
            load, own = member.load, [booking for booking in bookings if booking.endpoint == name]
            waiting = [booking.prefill for booking in own if booking.waiting]
            assert (load.own.in_flight, load.own.output) == (len(own), sum(booking.output for booking in own))
            assert load.own.prefill == sum(waiting)
            assert min(load.peers.in_flight, load.peers.output, load.peers.prefill, load.peers.silent) >= 0
            assert load.peers.silent <= load.peers.prefill
            assert 0 <= load.queued(table.now, member.rates.prefill_s) <= load.prefill
            held = [
                share for peer in table.core.peers._peers.values()
                for load_, share in peer.held.values() if load_ is load
            ]  # fmt: skip
            assert load.peers.prefill == sum(share.prefill for share in held)
            assert load.peers.in_flight == sum(share.in_flight for share in held)

    def place(self, door: int, tokens: int, output: int, stream: bool) -> None:
        self.placed[door].append(self.tables[door].place(("x", tokens), output=output, stream=stream))

    def begin(self, door: int, number: int) -> None:
        if number < len(self.placed[door]):
            self.tables[door].begin(self.placed[door][number])

    def end(self, door: int, number: int) -> None:
        if number < len(self.placed[door]):
            self.tables[door].end(self.placed[door][number])

    def tell(self, door: int, arrives: bool) -> None:
        self.numbers[door] += 1
        self.last[door] = encoded(
            Report(self.names[door], self.numbers[door], self.tables[door].core.peers.own(),
                   self.tables[door].core.peers.steps())
        )  # fmt: skip
        if arrives:
            self.repeat(door)
            mine = {entry.endpoint: entry.share for entry in self.tables[door].core.peers.own()}
            for other, table in enumerate(self.tables):
                if other != door and (peer := table.core.peers._peers.get(self.names[door])) is not None:
                    assert {endpoint: share for (_, endpoint), (_, share) in peer.held.items()} == mine

    def repeat(self, door: int) -> None:
        data = self.last[door]
        for other, table in enumerate(self.tables):
            if other != door and data is not None:
                table.core.peers.hear(decoded(data), table.now)

    def restart(self, door: int) -> None:
        self.tables[door] = Table(*ENDPOINTS)
        self.tables[door].now = self.tables[(door + 1) % DOORS].now
        self.names[door], self.numbers[door], self.placed[door] = self.born(), 0, []

    def lie(self, number: int, entries: list[Entry]) -> None:
        for table in self.tables:
            table.core.peers.hear(Report("a liar", number, entries), table.now)

    def noise(self, data: bytes) -> None:
        try:
            decoded(data)
        except WireError:
            return
        raise AssertionError("noise was taken for a report")

    def wait(self, seconds: float) -> None:
        for table in self.tables:
            table.now += seconds
            table.core.tick(table.now)


@settings(max_examples=150, deadline=None)
@given(st.lists(_steps, max_size=50))
def test_loads_are_what_is_known_to_be_booked_and_return_to_zero(steps: list[tuple[Any, ...]]) -> None:
    story = Story()
    for step in steps:
        story.tell_step(step)
    for table, placed in zip(story.tables, story.placed, strict=True):
        table.end(*placed)
    for door in range(DOORS):
        story.tell(door, True)
    for table in story.tables:
        table.now += LASTING_S + 5.0
        table.core.tick(table.now)
        assert table.idle()
        assert {member.load.peers for member in table.pool.members.values()} == {NOTHING}
        assert {member.load.silent for member in table.pool.members.values()} == {0}
        assert len(table.core.peers) == 0


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
))  # fmt: skip
def test_what_is_no_report_is_said_to_be_none(value: Any) -> None:
    try:
        report = decoded(msgspec.msgpack.encode(value))
    except WireError:
        return
    assert isinstance(report, Report)
