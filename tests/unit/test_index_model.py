"""Whatever happens, the index knows of each holder just what a naive one does."""

from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.router.prefix.blocks import Cleared, Event, Hash, Removed, Stored, Tier
from forebay.router.prefix.index import Index, Match
from tests.unit.naive_index import WEIGHTS, NaiveHolder, Seed, Tokens, engine_hash, keys

HOLDERS = ("one", "two")
SEEDS: tuple[Seed, ...] = ((None, None), (None, "salt"), ("adapter", None))
tiers = st.sampled_from([Tier.GPU, Tier.GPU, Tier.GPU, Tier.CPU, Tier.STORAGE])


class Chain:
    """Blocks that follow each other, as an engine would name them."""

    def __init__(self, seed: Seed, size: int, parent: "Chain | None") -> None:
        self.seed = seed
        self.size = size
        self.parent = parent
        self.tokens: Tokens = parent.tokens if parent else ()
        self.hash: Hash | None = parent.hash if parent else None
        self.opaque: bool = parent.opaque if parent else False

    def __repr__(self) -> str:
        return f"<Chain {self.seed} {self.tokens} of {self.size}{' opaque' if self.opaque else ''}>"

    def then(self, tokens: Tokens, *, opaque: bool = False) -> "Chain":
        chain = Chain(self.seed, len(tokens), self)
        chain.tokens = self.tokens + tokens
        chain.opaque = self.opaque or opaque
        chain.hash = engine_hash(self.seed, self.hash, tokens, opaque)
        return chain


class IndexMachine(RuleBasedStateMachine):
    @initialize(size=st.sampled_from([16, 16, 1, 8, 32, 64, 128, 24, 48, 20]))
    def start(self, size: int) -> None:
        self.size = size
        self.batched, self.single = Index(WEIGHTS), Index(WEIGHTS)
        self.naive = {name: NaiveHolder() for name in HOLDERS}
        for name in HOLDERS:
            self.batched.attach(name)
            self.single.attach(name)
        self.pending: dict[str, list[Event]] = {name: [] for name in HOLDERS}
        self.chains = [Chain(seed, 0, None) for seed in SEEDS]
        self.told: list[Stored] = []
        self.now = 0.0

    def tell(self, name: str, event: Event) -> None:
        self.pending[name].append(event)
        self.single.apply(name, [event])
        self.naive[name].apply(event)

    @rule(
        name=st.sampled_from(HOLDERS),
        data=st.data(),
        count=st.integers(1, 5),
        other_size=st.sampled_from([0, 0, 0, 16, 32, 40]),
        tier=tiers,
        inexact=st.sampled_from([None, None, None, None, 0, 1, 2]),
    )
    def store(self, name: str, data: Any, count: int, other_size: int, tier: Tier, inexact: int | None) -> None:
        """New content, or what was stored before: there are only two different blocks of each size."""
        before = chain = data.draw(st.sampled_from(self.chains))
        size = other_size or self.size
        run = []
        for number in range(count):
            tokens = (data.draw(st.integers(0, 1)),) * size
            chain = chain.then(tokens, opaque=inexact is not None and number >= inexact)
            run.append(chain)
        self.chains += run
        content = [token for each in run for token in each.tokens[len(each.tokens) - size :]]
        hashes = [each.hash for each in run if each.hash is not None]
        lora, salt = before.seed if before.hash is None else (None, None)
        self.told.append(Stored(hashes, before.hash, content, size, lora, salt, tier, inexact))
        self.tell(name, self.told[-1])

    @precondition(lambda self: self.told)
    @rule(name=st.sampled_from(HOLDERS), data=st.data())
    def store_again(self, name: str, data: Any) -> None:
        self.tell(name, data.draw(st.sampled_from(self.told)))

    @precondition(lambda self: len(self.chains) > len(SEEDS))
    @rule(name=st.sampled_from(HOLDERS), data=st.data(), tier=tiers)
    def store_by_hash(self, name: str, data: Any, tier: Tier) -> None:
        chain = data.draw(st.sampled_from(self.chains[len(SEEDS) :]))
        self.tell(name, Stored([chain.hash], None, [], 0, tier=tier))

    @precondition(lambda self: len(self.chains) > len(SEEDS))
    @rule(name=st.sampled_from(HOLDERS), data=st.data(), tier=tiers)
    def remove(self, name: str, data: Any, tier: Tier) -> None:
        chains = data.draw(st.lists(st.sampled_from(self.chains[len(SEEDS) :]), min_size=1, max_size=6))
        self.tell(name, Removed([chain.hash for chain in chains], tier))

    @precondition(lambda self: any(holder.blocks for holder in self.naive.values()))
    @rule(name=st.sampled_from(HOLDERS), data=st.data())
    def evict(self, name: str, data: Any) -> None:
        """Remove something that is there, from where it is."""
        held = [(h, t) for h, b in self.naive[name].blocks.items() for t, count in b.counts.items() if count]
        if held:
            hash_, tier = data.draw(st.sampled_from(held))
            self.tell(name, Removed([hash_], tier))

    @rule(name=st.sampled_from(HOLDERS), kind=st.sampled_from(["event", "clear", "attach"]))
    def clear(self, name: str, kind: str) -> None:
        if kind == "event":
            self.tell(name, Cleared())
            self.naive[name] = NaiveHolder()
            return
        self.flush(name)
        for index in (self.batched, self.single):
            index.clear(name) if kind == "clear" else index.attach(name)
        self.naive[name] = NaiveHolder()

    @rule(name=st.sampled_from(HOLDERS), data=st.data(), start=st.integers(0, 7), wait=st.integers(1, 3))
    def expect(self, name: str, data: Any, start: int, wait: int) -> None:
        chain = data.draw(st.sampled_from(self.chains))
        self.flush(name)  # or a clear that is pending would come later there
        for index in (self.batched, self.single):
            index.expect(name, keys(chain.tokens, chain.seed), start, self.now + wait)
        self.naive[name].expect(chain.tokens, chain.seed, start, self.now + wait)

    @rule()
    def time_passes(self) -> None:
        self.now += 1
        for index in (self.batched, self.single):
            index.expire(self.now)
        for holder in self.naive.values():
            holder.expected = {key: one for key, one in holder.expected.items() if one[0] > self.now}

    @rule(name=st.sampled_from(HOLDERS))
    def flush(self, name: str) -> None:
        self.batched.apply(name, self.pending[name])
        self.pending[name] = []

    @rule(most=st.integers(1, 10))
    def sweep(self, most: int) -> None:
        self.single.sweep(most)

    @invariant()
    def knows_just_that(self) -> None:
        for chain in self.chains[-6:]:
            prompt = chain.tokens + (0,) * 40
            expected = {}
            for name, naive in self.naive.items():
                tokens = naive.has(prompt, chain.seed)
                if tokens:
                    expected[name] = Match(tokens, naive.has(prompt, chain.seed, (Tier.GPU,)))
            assert self.single.match(keys(prompt, chain.seed)) == expected
        sizes = self.single.sizes()
        assert sizes.blocks == {name: len(naive.blocks) for name, naive in self.naive.items()}

    def teardown(self) -> None:
        if not hasattr(self, "pending"):
            return
        for name in HOLDERS:
            self.flush(name)
        for chain in self.chains:
            prompt = keys(chain.tokens, chain.seed)
            assert self.batched.match(prompt) == self.single.match(prompt)
        for index in (self.batched, self.single):
            for name in HOLDERS:
                index.detach(name)
            while index.sweep(100):
                pass
        assert self.batched.counts == self.single.counts
        assert self.batched.sizes() == self.single.sizes()
        assert not self.single.sizes().keys


class TestIndex(IndexMachine.TestCase):  # type: ignore[valid-type, misc]
    """Most prompts of the machine go beyond the near keys, then."""

    patch: pytest.MonkeyPatch
    sizes: ClassVar = {"marks.NEAR": 4, "marks.EACH": 4}

    @classmethod
    def setUpClass(cls) -> None:
        cls.patch = pytest.MonkeyPatch()
        for name, size in cls.sizes.items():
            cls.patch.setattr(f"forebay.router.prefix.{name}", size)

    @classmethod
    def tearDownClass(cls) -> None:
        cls.patch.undo()


TestIndex.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
