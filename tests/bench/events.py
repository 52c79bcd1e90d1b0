"""What following KV events costs: CPU of decoding and indexing the batches of busy engines, and memory of the index.

Each engine runs 128 sequences. Half of its blocks come in runs of 64 from prefill, half one by one from decode, some
tens to a batch, and it evicts as many as it stores, a sequence's last block first, with one event for each as vLLM 0.32
does. Messages are encoded beforehand. Memory is resident memory of fresh processes, over all endpoints: with content of
their own each, and with the same in all. The last line is one JSON object; figures without a block size are for 16.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil

from forebay.router.prefix.blocks import Removed, Stored
from forebay.router.prefix.events import Decoder
from forebay.router.prefix.index import Index
from forebay.router.prefix.keys import Weights

RUN = 64  # blocks of a prefill, and then of the decode
SEQUENCES = 128
SINGLES = 32  # blocks completed by decode in one batch
VOCABULARY = 150_000
_WEIGHTS = Weights(b"bench")


class Engine:
    """The event messages of one vLLM. `resident` blocks are held before it evicts, oldest sequences first."""

    def __init__(self, block_size: int, resident: int, seed: int) -> None:
        self._size = block_size
        self._resident = resident
        self._random = random.Random(seed)
        self._running: deque[list[int]] = deque()
        self._cached: deque[list[int]] = deque()
        self._blocks = 0
        self._owed = 0  # singles since the last prefill
        self._encode = msgspec.msgpack.Encoder().encode

    def batch(self) -> tuple[bytes, int, int]:
        """One message, and the blocks it stores and removes."""
        events, stored, before = [], 0, self._blocks
        for _ in range(SINGLES if len(self._running) == SEQUENCES else 0):
            events += [*self._evicted(1), self._single()]
            stored += 1
        self._owed += stored
        if not stored or self._owed >= RUN:
            self._owed -= RUN if stored else 0
            events += [*self._evicted(RUN), self._prefill()]
            stored += RUN
        removed = before + stored - self._blocks
        return self._encode([time.time(), events, 0]), stored, removed

    def _single(self) -> dict[str, Any]:
        sequence = self._running[0]
        self._running.rotate(-1)
        return self._stored(sequence, 1)

    def _prefill(self) -> dict[str, Any]:
        if len(self._running) == SEQUENCES:
            done = max(range(SEQUENCES), key=lambda number: len(self._running[number]))
            self._cached.append(self._running[done])
            del self._running[done]
        self._running.append([])
        return self._stored(self._running[-1], RUN)

    def _stored(self, sequence: list[int], blocks: int) -> dict[str, Any]:
        parent = sequence[-1] if sequence else None
        hashes = [self._random.getrandbits(64) for _ in range(blocks)]
        sequence += hashes
        self._blocks += blocks
        salt = "a tenant's salt, of some length" if parent is None else None
        return {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": [self._random.randrange(VOCABULARY) for _ in range(blocks * self._size)],
            "block_size": self._size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[salt] if salt and not number else None for number in range(blocks)],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }

    def _evicted(self, room: int) -> Iterator[dict[str, Any]]:
        """As vLLM does before it hands out `room` blocks."""
        while self._cached and self._blocks + room > self._resident:
            sequence = self._cached[0]
            yield {"type": "BlockRemoved", "block_hashes": [sequence.pop()], "medium": "GPU", "group_idx": 0}
            self._blocks -= 1
            if not sequence:
                self._cached.popleft()


def speed(block_size: int, *, holders: int, resident: int, seconds: float) -> dict[str, float]:
    """Blocks a second of CPU once all engines are full."""
    index, names = Index(_WEIGHTS), [f"http://engine-{number}" for number in range(holders)]
    decoders = [Decoder() for _ in names]
    engines = [Engine(block_size, resident, seed) for seed in range(holders)]
    for name in names:
        index.attach(name)
    decoding = applying = 0.0
    stored = removed = batches = 0
    while decoding + applying < seconds:
        # Made for a while ahead, so that making them does not have the caches when they are read.
        made = [(number, engine.batch()) for _ in range(64) for number, engine in enumerate(engines)]
        full = made[0][1][2] > 0
        for number, (message, stores, removals) in made:
            begun = time.process_time()
            batch = decoders[number].decode(message)
            halfway = time.process_time()
            index.apply(names[number], batch.events)
            if full:
                applying += time.process_time() - halfway
                decoding += halfway - begun
                stored += stores
                removed += removals
                batches += 1
    sizes = index.sizes()
    odd = sizes.counts.malformed + sizes.counts.unknown + sizes.counts.dropped + sizes.parked
    assert not odd, index
    total = decoding + applying
    print(
        f"block size {block_size:3}: {(stored + removed) / total:9.0f} blocks/s ({stored / total:.0f} stored), "
        f"{decoding / total:.0%} in decode, {(stored + removed) / batches:.0f} blocks a batch",
        flush=True,
    )
    return {
        "blocks_per_s": round((stored + removed) / total),
        "stored_per_s": round(stored / total),
        "decode_share": round(decoding / total, 3),
    }


def memory(*, same: bool, block_size: int = 16, holders: int = 64, tokens: int = 1 << 17) -> float:
    """Resident bytes for each block and endpoint, after all content was replaced twice."""
    process, index = psutil.Process(), Index(_WEIGHTS)
    chances = {f"http://engine-{n}": (_chance(n, same), _chance(n, same)) for n in range(holders)}
    before = process.memory_info().rss
    for name in chances:
        index.attach(name)
    for number in range(3 * tokens // block_size // RUN):
        for name, (chance, replay) in chances.items():
            if number * RUN * block_size >= tokens:
                hashes = [hash_ for event in _chain(replay, block_size) for hash_ in event.hashes]
                index.apply(name, [Removed(hashes[::-1])])
            index.apply(name, list(_chain(chance, block_size)))
    blocks = sum(index.sizes().blocks.values())
    return (process.memory_info().rss - before) / blocks


def _chance(number: int, same: bool) -> random.Random:
    return random.Random(0 if same else number)


def _chain(chance: random.Random, block_size: int) -> Iterator[Stored]:
    parent = None
    for count in (RUN // 2, *[1] * (RUN // 2)):
        hashes = [chance.getrandbits(64) for _ in range(count)]
        tokens = [chance.randrange(VOCABULARY) for _ in range(count * block_size)]
        yield Stored(list(hashes), parent, tokens, block_size)
        parent = hashes[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--holders", type=int, default=4)
    parser.add_argument("--resident", type=int, default=40_000, help="blocks that each engine has room for")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds for each block size")
    parser.add_argument("--memory", choices=["own", "same"], help="only print the memory of one block")
    arguments = parser.parse_args()
    if arguments.memory:
        print(memory(same=arguments.memory == "same"))
        return
    measured = {
        size: speed(size, holders=arguments.holders, resident=arguments.resident, seconds=arguments.seconds)
        for size in (32, 1, 16)
    }
    result: dict[str, Any] = {**measured[16]}
    for size in (1, 32):
        result |= {f"{name}_{size}": value for name, value in measured[size].items()}
    for kind, name in (("own", "bytes_per_block"), ("same", "bytes_per_block_same")):
        command = [sys.executable, "-m", "tests.bench.events", "--memory", kind]
        result[name] = round(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout), 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
