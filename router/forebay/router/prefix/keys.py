"""Prefix keys: one number for everything that stands before a position of a prompt (pure).

`key(n) = seed + Σ (token_i + 1) · w_i  mod 2^64` over the first n tokens. Weights and seeds come from a secret of the
deployment, so that a tenant cannot build prompts that collide, and every process that knows the secret agrees. A sum
goes on from where an earlier one stopped, whatever block size an engine has and whatever its own hashes are.
"""

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

GRID = 32  # tokens between two positions that have a key
MASK = (1 << 64) - 1
_MOST = 1 << 23  # positions; no context is longer
_SEEDS = 4096  # remembered: one for each LoRA and salt

_ONE = np.uint64(1)

Ids = NDArray[np.uint32]
Keys = NDArray[np.uint64]


class Weights:
    """The `w_i` of one deployment, made as far as they are asked for (8 bytes a position)."""

    def __init__(self, secret: bytes) -> None:
        self._key = hashlib.blake2b(secret, person=b"forebay prefix", digest_size=32).digest()
        self._weights = self._make(1 << 15)
        self._seed = lru_cache(_SEEDS)(self._make_seed)

    def seed(self, *, lora: str | None = None, salt: str | None = None) -> int:
        """Where the sum of a prompt begins. Models need no part in it: each pool has an index of its own."""
        return self._seed(lora, salt)

    def span(self, start: int, end: int) -> Keys:
        """Weights of the positions `start` to `end`, exclusive. Raises `ValueError` beyond any context."""
        if not 0 <= start <= end <= _MOST:
            raise ValueError(f"positions {start} to {end} are outside 0 to {_MOST}")
        if end > len(self._weights):
            self._weights = self._make(1 << (end - 1).bit_length())
        return self._weights[start:end]

    def extend(self, total: int, position: int, ids: Ids) -> tuple[int, Keys]:
        """Go on from `total`, the sum over the first `position` tokens, by `ids`: the new sum, and the sums at the
        positions of the grid that were passed. A sum begins at 0 or at a seed; `seeded` adds a seed later."""
        sums = self.running(total, position, ids)
        first = -(position + 1) % GRID
        return int(sums[-1]) if len(ids) else total, sums[first::GRID].copy()

    def running(self, total: int, position: int, ids: Ids) -> Keys:
        """The sums behind each of `ids`, which follow the first `position` tokens, whose sum is `total`."""
        sums: Keys = np.add(ids, _ONE, dtype=np.uint64)
        sums *= self.span(position, position + len(ids))
        np.add.accumulate(sums, out=sums)
        sums += np.uint64(total)
        return sums

    def _make_seed(self, lora: str | None, salt: str | None) -> int:
        parts = [b"" if part is None else b"+" + part.encode() for part in (lora, salt)]
        framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return int.from_bytes(hashlib.blake2b(framed, key=self._key, digest_size=8).digest(), "big")

    def _make(self, count: int) -> Keys:
        return np.frombuffer(hashlib.shake_256(self._key).digest(8 * count), dtype="<u8")


def seeded(sums: Keys, seed: int) -> Keys:
    """Keys of sums that began at 0."""
    return sums + np.uint64(seed)
