"""What other front doors have booked: placed by, faded, replaced, let go of. Reports travel as they do on the wire."""

from collections import Counter

import pytest

from forebay.platform.sharing.wire import decoded, encoded
from forebay.router.contexts import GONE_S, MOST_STEPS, Step
from forebay.router.loads import Share
from forebay.router.peers import LASTING_S, MOST_ENTRIES, MOST_PEERS, Entry, Peers, Refusal, Report
from tests.virtual import POOL, Table, endpoints_of


class Door(Table):
    """A front door that tells others what it has booked."""

    def __init__(self, name: str, *endpoints: str) -> None:
        super().__init__(*endpoints)
        self.name = name
        self.number = 0

    def tell(self, *others: "Door") -> None:
        self.number += 1
        peers = self.core.peers
        report = decoded(encoded(Report(self.name, self.number, peers.own(), peers.steps())))
        for other in others:
            assert other.core.peers.hear(report, other.now) is None


def heard(table: Table, *entries: tuple[str, Share], peer: str = "other", number: int = 1) -> Refusal | None:
    report = Report(peer, number, [Entry(POOL, endpoint, share) for endpoint, share in entries])
    return table.core.peers.hear(report, table.now)


def peers_load(table: Table) -> dict[str, Share]:
    return {name: member.load.peers for name, member in table.pool.members.items()}


def busy(prefill: int = 20_000, *, silent: int = 0, booked: int | None = None) -> Share:
    return Share(1, 64, prefill, silent, prefill if booked is None else booked)


def test_two_front_doors_that_take_turns_spread_as_one_does() -> None:
    one, other = Door("one", "a", "b", "c"), Door("other", "a", "b", "c")
    picked: Counter[str] = Counter()
    for turn in range(15):
        for door, peer in ((one, other), (other, one)):
            picked[door.place((f"{door.name} {turn}", 500)).endpoint] += 1
            door.tell(peer)
    assert picked == {"a": 10, "b": 10, "c": 10}


def test_a_burst_elsewhere_is_evaded_and_comes_back_into_balance() -> None:
    one, other = Door("one", "a", "b"), Door("other", "a", "b")
    burst = [one.place((f"{n}", 500), without=("b",)) for n in range(6)]
    one.tell(other)
    assert set(endpoints_of([other.place((f"later {n}", 500)) for n in range(6)])) == {"b"}
    one.begin(*burst)
    one.end(*burst)
    one.tell(other)
    assert other.place(("after it", 500)).endpoint == "a"


def test_what_peers_generate_slows_an_answer() -> None:
    table = Table("a", "b")
    heard(table, ("a", Share(40, 40 * 256)))
    assert table.explain(("x", 100), output=256)["a"].interference_s == pytest.approx(256 * 40 / 50 / 256)
    assert table.explain(("x", 100))["a"].in_flight == 40
    assert table.place(("x", 100), output=256).endpoint == "b"


def test_a_late_report_fades_and_then_goes() -> None:
    table = Table("a")
    heard(table, ("a", busy(4_000)))
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(2.0)
    table.now += 1.2
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(0.8)
    table.now += 1.0
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(0.5)  # it will say when it begins, and has not
    table.now += LASTING_S
    table.core.tick(table.now)
    assert table.explain(("x", 100))["a"].queued_s == 0.0
    assert table.idle()
    assert len(table.core.peers) == 0


def test_what_a_peer_says_again_is_not_new_work_and_what_it_booked_since_is() -> None:
    table = Table("a")
    heard(table, ("a", busy(8_000)))
    table.now += 2.0
    heard(table, ("a", busy(8_000)), number=2)
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(2.0)
    heard(table, ("a", Share(2, 64, 8_000, 0, 8_000)), number=3)  # an answer began that was not heard of before
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(2.0)
    heard(table, ("a", Share(3, 64, 9_000, 0, 9_000)), number=4)
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(2.5)
    heard(table, ("a", busy(9_000, booked=18_000)), number=5)  # all of it has begun, another as long has come
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(4.5)
    table.now += 1.5
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(3.0)


def test_a_long_prompt_leaves_room_to_those_who_come_through_another_front_door() -> None:
    one, other, alone = Door("one", "a", "b"), Door("other", "a", "b"), Table("a", "b")
    for table in (one, alone):
        table.serve(("a long one", 8_000), without=("a",))
    long = ("another long one", 8_000)
    assert one.explain(long)["a"].delayed_s == 0.0
    for turn in range(20):
        for table in (other, alone):
            placed = table.place((f"{turn}", 100), without=("b",))
            other.tell(one)
            table.begin(placed)
            other.tell(one)
            table.end(placed)
            other.tell(one)  # nothing is there now, and what came before is not new with the next
    coming = [table.pool.members["a"].coming(table.now) for table in (one, alone)]
    assert coming[0] == pytest.approx(coming[1]) == pytest.approx(20 / 60)
    assert one.explain(long)["a"].delayed_s > 0.0


def test_of_a_front_door_that_is_new_only_what_is_there_counts_as_coming() -> None:
    table = Table("a")
    heard(table, ("a", Share(2, 64, 100, 0, 1 << 30, 1 << 20)))
    assert table.pool.members["a"].coming(table.now) == pytest.approx(2 / 60)
    heard(table, ("a", Share(2, 64, 100, 0, 1 << 30, 5)), number=2)  # fewer than before: cannot be
    assert table.pool.members["a"].coming(table.now) == pytest.approx(2 / 60)


def test_a_conversation_that_goes_on_elsewhere_is_one_context_everywhere() -> None:
    one, other = Door("one", "a", "b"), Door("other", "a", "b")
    said: list[tuple[str, int]] = []
    for turn in range(6):
        door, peer = (one, other) if turn % 2 else (other, one)
        said.append((f"turn {turn}", 20_000))  # more than is looked back for an earlier turn's end
        placed = door.place(*said, without=("b",) if turn < 3 else ("a",), session="talk" if turn else "")
        door.tell(peer)
        door.begin(placed)
        door.end(placed, prompt_tokens=20_000 * (turn + 1), output=64, returns=True)
        door.tell(peer)
        for known in (one.pool.contexts, other.pool.contexts):
            context = known.named("talk")
            assert len(known) == 1
            if turn:
                assert context is not None
                assert (context.tokens, context.returns) == (20_000 * (turn + 1) + 64, True)
                assert (context.endpoint, context.running) == ("ab"[turn >= 3], 0)
    priced = [door.pool.contexts.displaced("b", 50_000, door.now + 5) for door in (one, other)]
    assert priced[0] == pytest.approx(priced[1])


def test_what_a_killed_peer_ran_is_idle_and_ends_in_time() -> None:
    one, other = Door("one", "a"), Door("other", "a")
    other.place(("x", 1_000))
    other.tell(one)
    assert len(one.pool.contexts) == 1
    one.now += GONE_S + 1
    one.core.tick(one.now)
    assert len(one.pool.contexts) == 0


def test_steps_of_endpoints_and_pools_that_are_not_known_are_nobodys() -> None:
    table = Table("a")
    steps = [Step("gone", 0, 1, 2, 3, 1_000, 1_000), Step("a", 77, 0, 0, 0, 5, over=True)]
    table.core.peers.hear(Report("other", 1, [], {POOL: steps, "another": steps}), table.now)
    assert len(table.pool.contexts) == 0


def test_a_session_without_keys_is_one_conversation_at_every_front_door() -> None:
    one, other = Door("one", "a"), Door("other", "a")
    for turn in range(5):
        placed = one.place(session="s")
        one.tell(other)
        one.now += 1 + turn
        one.end(placed)
        other.now = one.now
        one.tell(other)
    assert (len(one.pool.contexts), len(other.pool.contexts)) == (1, 1)


def test_steps_are_told_once_and_bounded() -> None:
    door = Door("one", "a")
    for number in range(MOST_STEPS // 2 + 10):
        door.serve((f"{number}", 64))
    (steps,) = door.core.peers.steps().values()
    assert len(steps) == MOST_STEPS
    assert door.core.peers.steps() == {}


def test_one_queue_is_worked_off_once() -> None:
    table = Table("a")
    table.place(("ours", 4_000), stream=False)
    heard(table, ("a", busy(4_000, silent=4_000)))
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(4.0)
    table.now += 1.0
    assert table.explain(("x", 100))["a"].queued_s == pytest.approx(3.0)


def test_a_report_replaces_the_one_before_and_an_empty_one_frees() -> None:
    table = Table("a", "b")
    heard(table, ("a", busy()), ("b", busy(100)))
    heard(table, ("b", busy(300)), number=2)
    assert peers_load(table) == {"a": Share(), "b": Share(1, 64, 300)}
    heard(table, number=3)
    assert table.idle()


def test_reports_out_of_order_change_nothing() -> None:
    table = Table("a")
    heard(table, ("a", busy(100)), number=7)
    assert heard(table, ("a", busy()), number=6) is Refusal.LATE
    assert heard(table, ("a", busy()), number=7) is Refusal.LATE
    assert table.loads()["a"] == (1, 100, 64)


def test_peers_add_up_and_go_one_by_one() -> None:
    table = Table("a")
    heard(table, ("a", busy(100)), peer="one")
    table.now += 2.0
    heard(table, ("a", busy(200)), peer="other")
    table.place(("ours", 50))
    assert table.loads()["a"] == (3, 350, 192)
    table.now += 1.5
    table.core.tick(table.now)
    assert table.loads()["a"] == (2, 250, 128)
    assert table.core.states(POOL)["a"].in_flight == 1


def test_what_is_told_is_our_own_only() -> None:
    one, other = Door("one", "a", "b"), Door("other", "a", "b")
    one.place(("x", 500))
    one.tell(other)
    assert other.core.peers.own() == []
    other.place(("y", 500))
    assert [entry.share.in_flight for entry in other.core.peers.own()] == [1]
    other.tell(one)
    one.tell(other)
    assert one.loads() == other.loads() == {"a": (1, 500, 64), "b": (1, 500, 64)}


@pytest.mark.parametrize("share", [
    Share(-1, 0, 0, 0, 0), Share(0, 5, 0, 0, 0), Share(1, -5, 0, 0, 0), Share(1, 0, -100, 0, 0),
    Share(1, 0, 100, 101, 100), Share(1, 0, 100, -1, 100), Share(1, 0, 100, 0, 99), Share(1, 0, 1 << 60, 0, 1 << 60),
    Share(1 << 40, 0, 0, 0, 0),
])  # fmt: skip
def test_numbers_that_cannot_be_are_left_out(share: Share) -> None:
    table = Table("a", "b")
    assert heard(table, ("a", share), ("b", busy(100))) is None
    assert table.loads() == {"a": (0, 0, 0), "b": (1, 100, 64)}


def test_endpoints_that_are_not_known_here_are_left_out() -> None:
    table = Table("a")
    report = Report("other", 1, [Entry("nowhere", "a", busy()), Entry(POOL, "z", busy()), Entry(POOL, "a", busy(9))])
    table.core.peers.hear(report, table.now)
    assert table.loads() == {"a": (1, 9, 64)}


def test_an_endpoint_that_is_named_twice_counts_once() -> None:
    table = Table("a")
    heard(table, ("a", busy(100)), ("a", busy(200)))
    assert table.loads() == {"a": (1, 200, 64)}
    heard(table, number=2)
    assert table.idle()


def test_peers_and_their_reports_are_bounded() -> None:
    table = Table("a")
    for n in range(MOST_PEERS):
        assert heard(table, ("a", busy(1)), peer=f"{n}") is None
    assert heard(table, ("a", busy(1)), peer="one more") is Refusal.MANY
    assert heard(table, *[("a", busy(1))] * (MOST_ENTRIES + 1), peer="0", number=2) is Refusal.LONG
    assert table.loads()["a"] == (MOST_PEERS, MOST_PEERS, 64 * MOST_PEERS)
    table.now += LASTING_S + 0.1
    table.core.tick(table.now)
    assert heard(table, peer="one more") is None
    assert table.idle()


def test_an_endpoint_that_comes_again_under_its_name_has_nothing_of_the_first() -> None:
    table = Table("a", "b")
    heard(table, ("a", busy(100)))
    table.pool.members["a"] = Table("a").pool.members["a"]
    heard(table, number=2)
    assert table.idle()
    heard(table, ("a", busy(100)), number=3)
    table.pool.members["a"] = Table("a").pool.members["a"]
    heard(table, ("a", busy(100)), number=4)
    assert table.loads() == {"a": (1, 100, 64), "b": (0, 0, 0)}
    del table.pool.members["a"]
    heard(table, ("a", busy(200)), ("b", busy(7)), number=5)
    assert table.loads() == {"b": (1, 7, 64)}


def learnt(table: Table) -> tuple[int, int]:
    own = table.pool.members["a"].own
    return own.prefills, own.decodes


@pytest.mark.parametrize("when", ["before", "queued", "answering"])
def test_rates_are_not_learnt_beside_a_peers_requests(when: str) -> None:
    table = Table("a")
    if when == "before":
        heard(table, ("a", Share(1, 64)))
    placed = table.place(("x", 500))
    assert placed.alone is (when != "before")
    if when == "queued":
        heard(table, ("a", busy(100)))
    table.begin(placed)
    if when == "answering":
        heard(table, ("a", busy(100)))
        heard(table, number=2)  # it has gone again
    table.end(placed, prompt_tokens=500, cached=0, output=50, first_token_s=0.3, decode_s=1.0)
    assert learnt(table) == ((0, 0) if when == "queued" else (1, 0))  # a first token needs no idle engine
    heard(table, number=3)
    placed = table.place(("y", 500))
    heard(table, number=4)  # a peer that has nothing there disturbs nobody
    table.begin(placed)
    table.end(placed, prompt_tokens=500, cached=0, output=50, first_token_s=0.3, decode_s=1.0)
    assert learnt(table) == ((1, 1) if when == "queued" else (2, 1))


def test_a_clock_that_goes_back_does_no_harm() -> None:
    table = Table("a")
    heard(table, ("a", busy(4_000)))
    table.now -= 500.0
    heard(table, ("a", busy(4_000)), number=2)
    table.core.tick(table.now)
    assert 0 <= table.explain(("x", 100))["a"].queued_s <= 2.0
    table.now += LASTING_S + 0.1
    table.core.tick(table.now)
    assert table.idle()


def test_a_core_without_peers_has_none() -> None:
    assert Peers({}).own() == []
