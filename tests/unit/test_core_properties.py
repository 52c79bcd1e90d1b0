"""Whatever happens in whatever order: loads are the sums of what is booked, and a pick is the least within its tie."""

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.router.health import Card
from forebay.router.placement import TIE_S, TIE_SHARE
from forebay.router.routing import Outcome, Placed
from tests.virtual import POOL, Table

ENDPOINTS = ("a", "b", "c")
_counts = st.one_of(st.none(), st.integers(-5, 5_000))
_seconds = st.one_of(st.none(), st.floats(-1, 1e4))
_outcomes = st.builds(
    Outcome, prompt_tokens=_counts, cached=_counts, output=_counts, first_token_s=_seconds, decode_s=_seconds
)
_steps = st.one_of(
    st.tuples(
        st.just("place"),
        st.integers(0, 5),  # the conversation
        st.integers(1, 3_000),  # tokens that are its own
        st.integers(0, 300),
        st.booleans(),
        st.integers(0, 2),
    ),
    st.tuples(st.just("begin"), st.integers(0, 30)),
    st.tuples(st.just("end"), st.integers(0, 30), _outcomes),
    st.tuples(st.just("failed"), st.sampled_from(ENDPOINTS), st.booleans()),
    st.tuples(st.just("up"), st.sampled_from(ENDPOINTS)),
    st.tuples(st.just("stores"), st.sampled_from(ENDPOINTS), st.integers(0, 5)),
    st.tuples(st.just("clear"), st.sampled_from(ENDPOINTS)),
    st.tuples(st.just("owner"), st.integers(0, 2)),
    st.tuples(st.just("wait"), st.floats(0, 100)),
)


class Story:
    """What happened, and what should be booked."""

    def __init__(self) -> None:
        self.table = Table(*ENDPOINTS)
        self.live: dict[int, tuple[Placed, int, int, int]] = {}  # by booking: itself, prefill, output, owner
        self.ever: list[Placed] = []

    def tell(self, step: tuple[Any, ...]) -> None:
        getattr(self, step[0])(*step[1:])
        expected = {name: [0, 0, 0] for name in ENDPOINTS}
        for placed, prefill, output, _ in self.live.values():
            for number, value in enumerate((1, prefill, output)):
                expected[placed.endpoint][number] += value
        assert self.table.loads() == {name: tuple(values) for name, values in expected.items()}
        for member in self.table.pool.members.values():
            load, rates = member.load, member.rates
            assert 0 <= load.silent <= load.prefill
            assert 0 <= load.queued(self.table.now, rates.prefill_s) <= load.prefill
            assert min(rates.fixed_s, rates.prefill_s, rates.decode_s) > 0

    def place(self, chat: int, own: int, output: int, stream: bool, owner: int) -> None:
        table = self.table
        pieces = ((f"chat {chat}", 800), ("own", own))
        ask = table.ask(*pieces, output=output, stream=stream)
        candidates = {one.endpoint: one for one in table.core.explain(ask, table.now) if one.available}
        placed = table.core.place(ask, table.now, owner)
        if placed is None:
            assert not candidates
            return
        costs = {name: one.predicted_s + one.interference_s for name, one in candidates.items()}
        least = min(costs.values())
        assert costs[placed.endpoint] <= least + max(TIE_S, TIE_SHARE * least)
        chosen = candidates[placed.endpoint]
        assert chosen.chosen
        assert 0 <= placed.cached < ask.tokens
        prefill = table.core._bookings[placed.booking].prefill
        assert prefill >= ask.tokens - placed.cached
        self.live[placed.booking] = placed, prefill, output, owner
        self.ever.append(placed)

    def begin(self, number: int) -> None:
        if number < len(self.ever):
            placed = self.ever[number]
            self.table.begin(placed)
            if placed.booking in self.live:
                _, _, output, owner = self.live[placed.booking]
                self.live[placed.booking] = placed, 0, output, owner

    def end(self, number: int, outcome: Outcome) -> None:
        if number < len(self.ever):
            self.table.core.ended(self.ever[number].booking, outcome, self.table.now)
            self.live.pop(self.ever[number].booking, None)

    def failed(self, endpoint: str, at_once: bool) -> None:
        self.table.core.failed(POOL, endpoint, "it failed", self.table.now, at_once=at_once)

    def up(self, endpoint: str) -> None:
        self.table.core.probed(POOL, endpoint, Card(), self.table.now)

    def stores(self, endpoint: str, chat: int) -> None:
        self.table.stores(endpoint, (f"chat {chat}", 800))

    def clear(self, endpoint: str) -> None:
        self.table.core.clear(POOL, endpoint)

    def owner(self, owner: int) -> None:
        self.table.core.release_owner(owner, self.table.now)
        self.live = {booking: held for booking, held in self.live.items() if held[3] != owner}

    def wait(self, seconds: float) -> None:
        self.table.now += seconds
        self.table.core.tick(self.table.now)


@settings(max_examples=100, deadline=None)
@given(st.lists(_steps, max_size=60))
def test_loads_are_what_is_booked_and_picks_are_the_least(steps: list[tuple[Any, ...]]) -> None:
    story = Story()
    for step in steps:
        story.tell(step)
    story.table.end(*story.ever)
    assert story.table.idle()


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ENDPOINTS), st.floats(0.8, 1.25)), max_size=60), st.integers(1, 5)
)
def test_no_equal_endpoint_is_left_out_by_the_noise_of_like_replicas(
    noise: list[tuple[str, float]], rounds: int
) -> None:
    """Times within a quarter of each other, in any order and number."""
    table = Table(*ENDPOINTS)
    for endpoint, factor in noise:
        placed = table.place(("learning", 20), without=tuple(name for name in ENDPOINTS if name != endpoint))
        table.begin(placed)
        table.end(placed, prompt_tokens=2_000, cached=0, output=101, first_token_s=factor, decode_s=2 * factor)
    picked = Counter(table.serve((f"{n}", 31)) for n in range(3 * rounds))
    assert set(picked) == set(ENDPOINTS)


@settings(deadline=None)
@given(st.lists(st.floats(0, 5), max_size=40), st.integers(2, 5))
def test_equal_endpoints_get_equal_shares(gaps: list[float], endpoints: int) -> None:
    names = [f"e{n}" for n in range(endpoints)]
    table = Table(*names)
    held: list[Placed] = []
    picked: Counter[str] = Counter(dict.fromkeys(names, 0))
    for gap in gaps:
        held.append(table.place(("x", 20)))
        picked[held[-1].endpoint] += 1
        table.begin(held[-1])
        table.now += gap
    assert max(picked.values()) - min(picked.values()) <= 1
