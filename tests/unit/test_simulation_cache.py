"""The simulated KV cache: what it holds is what was stored and not given up, and never more than it has room for."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.router.simulation.blocks import Blocks, Cache, Pin
from forebay.router.simulation.bounds import clairvoyant

CAPACITY = 12
_names: dict[tuple[int, ...], int] = {}


def chain(*letters: int) -> Blocks:
    """Blocks whose names say what stands before them."""
    return np.array([_names.setdefault(letters[: end + 1], len(_names)) for end in range(len(letters))], np.int64)


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(lambda letters: chain(*letters))


class Told(RuleBasedStateMachine):
    """The cache beside a set of blocks that follows what it tells of changes."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(CAPACITY)
        self.held: set[int] = set()
        self.pins: list[tuple[Pin, Blocks]] = []
        self.now = 0.0

    def hear(self) -> None:
        for blocks, _, stored in self.cache.changes:
            for name in blocks.tolist():
                assert (name in self.held) != stored
                (self.held.add if stored else self.held.remove)(name)
        self.cache.changes.clear()

    @rule(blocks=prompts, anyway=st.booleans())
    def ask(self, blocks: Blocks, anyway: bool) -> None:
        if self.cache.room(blocks, 0) or (anyway and not self.pins):
            self.now += 1
            self.pins.append((self.cache.pin(blocks, self.now), blocks))
            self.hear()

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        pin, _ = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        self.now += 1
        self.cache.release(pin, self.now)
        self.hear()

    @rule(blocks=prompts)
    def look(self, blocks: Blocks) -> None:
        held = [name in self.held for name in blocks.tolist()]
        assert self.cache.match(blocks) == (held.index(False) if False in held else len(held))

    @invariant()
    def counts(self) -> None:
        assert self.cache.size == len(self.held)
        running = {name for _, blocks in self.pins for name in blocks.tolist()}
        assert self.cache.pinned == len(running)
        assert running <= self.held  # what a running request uses stays
        assert self.cache.size <= max(CAPACITY, len(running))


TestTold = Told.TestCase
TestTold.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_the_least_recently_used_goes_first_and_its_end_before_its_beginning() -> None:
    cache = Cache(6)
    for at, blocks in enumerate((chain(1, 1, 1), chain(2, 2, 2))):
        cache.release(cache.pin(blocks, at), at)
    cache.release(cache.pin(chain(0, 0), 9.0), 9.0)
    assert [cache.match(chain(*letters)) for letters in ((1, 1, 1), (2, 2, 2), (0, 0))] == [1, 3, 2]


def test_room_counts_blocks_that_two_running_requests_share_once() -> None:
    cache = Cache(5)
    cache.pin(chain(1, 1, 1, 1), 0.0)
    assert cache.room(chain(1, 1, 1, 2), 0)
    assert not cache.room(chain(2, 2), 0)
    assert not cache.room(chain(1, 1, 1, 2), 1)


def test_answers_that_run_push_out_what_nobody_uses() -> None:
    cache = Cache(4)
    cache.release(cache.pin(chain(1, 1, 1), 0.0), 0.0)
    cache.reserve(3)
    assert cache.match(chain(1, 1, 1)) == 1


def test_a_clairvoyant_cache_keeps_what_is_wanted_soonest() -> None:
    # Two blocks of room: the one that never comes back is not kept, however recent.
    one, two, three = chain(0), chain(1), chain(2)
    asked = [(blocks, blocks) for blocks in (one, two, three, one, two)]
    assert clairvoyant(asked, 2) == [0, 0, 0, 1, 1]
    assert clairvoyant(asked, 1) == [0, 0, 0, 1, 0]
    assert clairvoyant(asked) == [0, 0, 0, 1, 1]


def test_a_bound_counts_what_an_answer_left_behind() -> None:
    asked = [(chain(1), chain(1, 2, 3)), (chain(1, 2, 3, 0), chain(1, 2, 3, 0))]
    assert clairvoyant(asked) == [0, 3]


@given(st.lists(prompts, min_size=1, max_size=25), st.integers(1, 20))
def test_no_cache_serves_more_than_the_clairvoyant_one_and_none_more_than_one_without_end(
    asked: list[Blocks], capacity: int
) -> None:
    both = [(blocks, blocks) for blocks in asked]
    cache, served = Cache(capacity), []
    for at, blocks in enumerate(asked):
        served.append(cache.match(blocks))
        if len(blocks) <= capacity:
            cache.release(cache.pin(blocks, at), at)
    bound = sum(clairvoyant(both, capacity))
    assert sum(served) <= bound <= sum(clairvoyant(both))
    assert clairvoyant(both, 1000) == clairvoyant(both)
