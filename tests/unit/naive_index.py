"""What an index should know, kept as lists of tokens: slow and plain, to hold the real one against."""

import hashlib
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from forebay.router.prefix import marks
from forebay.router.prefix.blocks import Event, Hash, Removed, Stored, Tier
from forebay.router.prefix.keys import GRID, Keys, Weights, seeded

WEIGHTS = Weights(b"a secret for tests")

Seed = tuple[str | None, str | None]  # LoRA and salt
Tokens = tuple[int, ...]


@cache
def keys(tokens: Tokens, seed: Seed = (None, None)) -> Keys:
    _, sums = WEIGHTS.extend(0, 0, np.array(tokens, np.uint32))
    return seeded(sums, WEIGHTS.seed(lora=seed[0], salt=seed[1]))


def engine_hash(*parts: object) -> int:
    """As engines do: of a block and all before it."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[-8:], "big")


def hashes(tokens: Tokens, size: int, seed: Seed = (None, None)) -> list[Hash]:
    """Of the whole blocks of a prompt."""
    found: list[Hash] = []
    for start in range(0, len(tokens) - size + 1, size):
        found.append(engine_hash(seed, found[-1] if found else None, tokens[start : start + size]))
    return found


def stored(
    tokens: Tokens, size: int = 16, *, start: int = 0, seed: Seed = (None, None), tier: Tier = Tier.GPU
) -> Stored:
    """An engine stores a prompt's blocks, from number `start` on."""
    every = hashes(tokens, size, seed)
    run = list(tokens[start * size : len(every) * size])
    if start:
        return Stored(every[start:], every[start - 1], run, size, tier=tier)
    return Stored(every, None, run, size, *seed, tier=tier)


def prompt(number: int, length: int) -> Tokens:
    """Tokens that no other number's prompt begins with."""
    return tuple((number * 7919 + position * 104729) % 150_000 for position in range(length))


def group_end(number: int) -> int:
    """The last key of the group of a key, which is a prompt's so-and-so-manieth."""
    return number if number < marks.NEAR else number - number % marks.EACH + marks.EACH - 1


@dataclass
class Block:
    seed: Seed
    tokens: Tokens | None  # of all up to its end; None: opaque
    start: int
    parent: Hash | None
    counts: dict[Tier, int] = field(default_factory=dict)


class NaiveHolder:
    def __init__(self) -> None:
        self.blocks: dict[Hash, Block] = {}
        self.waiting: list[tuple[Stored, list[Hash]]] = []  # and what was removed of it meanwhile
        self.expected: dict[tuple[Seed, Tokens], tuple[float, Tokens]] = {}  # where it is kept; of which prompt
        self.unknown = 0

    def apply(self, event: Event) -> None:
        if isinstance(event, Stored):
            self._store(event)
            self._heal()
        elif isinstance(event, Removed):
            for hash_ in event.hashes:
                self._remove(hash_, event.tier)
            self._forget_broken()
        else:
            self.__init__()  # type: ignore[misc]

    def has(self, prompt: Tokens, seed: Seed, tiers: tuple[Tier, ...] = tuple(Tier)) -> int:
        """Tokens from the prompt's beginning, up to the last position with a key."""
        position = GRID
        while position <= len(prompt) and self._covers(prompt, position, seed, tiers):
            position += GRID
        return position - GRID

    def expect(self, tokens: Tokens, seed: Seed, start: int, until: float) -> None:
        """Beyond the near keys it is kept at the last of each group and of the prompt alone, for what it costs, and
        where it parts from a prompt that is expected."""
        last = len(tokens) // GRID
        kept = [number for number in range(start, last) if number in (group_end(number), last - 1)]
        ends = [number for number in kept if number >= marks.NEAR]
        new = next((end for end in ends if (seed, tokens[: (end + 1) * GRID]) not in self.expected), 0)
        begin = new - new % marks.EACH
        other = self.expected.get((seed, tokens[: begin * GRID]))
        if new and begin >= start and other:
            group = range(begin, min(begin + marks.EACH, last, len(other[1]) // GRID))
            shared = [n for n in group if tokens[: (n + 1) * GRID] == other[1][: (n + 1) * GRID]]
            kept += shared[-1:]
        for number in kept:
            key = (seed, tokens[: (number + 1) * GRID])
            if key not in self.expected or self.expected[key][0] < until:
                self.expected[key] = until, tokens

    def _expects(self, prompt: Tokens, position: int, seed: Seed) -> bool:
        """A key speaks for those before it in its group."""
        ends = range(position, (group_end(position // GRID - 1) + 1) * GRID + 1, GRID)
        return any((seed, prompt[:end]) in self.expected for end in ends if end <= len(prompt))

    def _covers(self, prompt: Tokens, position: int, seed: Seed, tiers: tuple[Tier, ...]) -> bool:
        return self._expects(prompt, position, seed) or any(
            block.tokens is not None
            and block.seed == seed
            and block.start < position <= len(block.tokens)
            and block.tokens[:position] == prompt[:position]
            and any(block.counts.get(tier) for tier in tiers)
            for block in self.blocks.values()
        )

    def _store(self, event: Stored) -> None:
        if not event.tokens:
            for hash_ in event.hashes:
                if hash_ in self.blocks:
                    self._count(hash_, event.tier)
                else:
                    self.waiting.append((Stored([hash_], hash_, [], 0, tier=event.tier), []))
            return
        exact = len(event.hashes) if event.inexact is None else event.inexact
        before = None if event.parent is None else self.blocks.get(event.parent)
        root = event.parent is None
        if not root and before is None and event.hashes[0] not in self.blocks and exact:
            self.waiting.append((event, []))
            return
        for number, hash_ in enumerate(event.hashes):
            if hash_ not in self.blocks:
                opaque = number >= exact or (before is not None and before.tokens is None)
                seed = (event.lora, event.salt) if root and not number else before.seed if before else (None, None)
                earlier = before.tokens if before and before.tokens else ()
                own = tuple(event.tokens[number * event.block_size : (number + 1) * event.block_size])
                parent = event.hashes[number - 1] if number else event.parent
                self.blocks[hash_] = Block(seed, None if opaque else earlier + own, len(earlier), parent)
            self._count(hash_, event.tier)
            before = self.blocks[hash_]

    def _count(self, hash_: Hash, tier: Tier) -> None:
        counts = self.blocks[hash_].counts
        counts[tier] = counts.get(tier, 0) + 1

    def _remove(self, hash_: Hash, tier: Tier) -> None:
        block = self.blocks.get(hash_)
        if block is None or not block.counts.get(tier):
            for event, removed in self.waiting:
                if event.tier is tier and hash_ in event.hashes and hash_ not in removed:
                    removed.append(hash_)
                    return
            self.unknown += 1
            return
        block.counts[tier] -= 1
        if not any(block.counts.values()):
            del self.blocks[hash_]

    def _forget_broken(self) -> None:
        """Forget what begins between two keys and follows what is gone."""
        broken = [h for h, b in self.blocks.items() if b.tokens and b.start % GRID and b.parent not in self.blocks]
        for hash_ in broken:
            del self.blocks[hash_]
        if broken:
            self._forget_broken()

    def _heal(self) -> None:
        for waiting in self.waiting:
            event, removed = waiting
            if event.parent in self.blocks:
                self.waiting.remove(waiting)
                self._store(event)
                for hash_ in removed:
                    self._remove(hash_, event.tier)
                self._forget_broken()
                self._heal()
                return
