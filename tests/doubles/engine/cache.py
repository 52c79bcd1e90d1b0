"""A prefix cache over real blocks, with vLLM's rules. Pure: events are appended to a list that the caller drains; they
have the members of every engine, of which `encodings.py` writes those of one.

A block's key chains its tokens to its parent's key; `cache_salt` enters the first block. Hits are full blocks, at most
the prompt less one token. Blocks in use are counted; free blocks keep their content until they are taken, the one
that was freed longest ago first, and within a request its tail before its head. Two blocks may hold the same content,
and each announces itself and its end. Source: vllm/v1/core/{block_pool,kv_cache_manager}.py of 0.32.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

Event = dict[str, Any]
_ROOT = b"\0" * 8


class Block:
    __slots__ = ("key", "number", "users")

    def __init__(self, number: int) -> None:
        self.number = number
        self.key: int | None = None
        self.users = 0


class Allocation:
    """The blocks of one running sequence. `hit` is in tokens; `keys` has one entry per full block so far."""

    __slots__ = ("blocks", "hit", "keys", "pledged", "salt", "tokens")

    def __init__(self, tokens: list[int], salt: str | None) -> None:
        self.tokens = tokens
        self.salt = salt
        self.blocks: list[Block] = []
        self.keys: list[int] = []
        self.hit = 0
        self.pledged = 0


def block_key(parent: int | None, tokens: Sequence[int], salt: str | None) -> int:
    """64 bits over the parent's key, the block's tokens and, in a first block, the salt."""
    seed = _ROOT if parent is None else parent.to_bytes(8, "big")
    extra = salt.encode() if salt and parent is None else b""
    return int.from_bytes(blake2b(seed + array("I", tokens).tobytes() + extra, digest_size=8).digest(), "big")


class PrefixCache:
    def __init__(self, blocks: int, block_size: int, *, announce: bool = False) -> None:
        self.block_size = block_size
        self.capacity = blocks
        self.events: list[Event] = []
        self._announce = announce
        self._free: OrderedDict[int, Block] = OrderedDict((n, Block(n)) for n in range(blocks))
        self._cached: dict[int, dict[int, Block]] = {}
        self._pledged = 0

    @property
    def usage(self) -> float:
        """The share of blocks in use by running sequences, 0 to 1."""
        return 1 - len(self._free) / self.capacity

    def peek(self, tokens: Sequence[int], salt: str | None = None) -> int:
        """How many leading tokens would hit now."""
        return self._match(tokens, salt)[1] * self.block_size

    def admit(self, tokens: list[int], salt: str | None, answer: int) -> Allocation | None:
        """Allocate a prompt and pledge room for `answer` more tokens. None when it does not fit now.

        `tokens` stays shared with the caller, who appends generated tokens to it.
        """
        size = self.block_size
        keys, hits = self._match(tokens, salt)
        found = [next(iter(self._cached[key].values())) for key in keys[:hits]]
        prompt_blocks = -(-len(tokens) // size)
        total = -(-(len(tokens) + answer) // size)
        idle_hits = sum(1 for block in found if not block.users)
        if total - hits > len(self._free) - idle_hits - self._pledged:
            return None
        allocation = Allocation(tokens, salt)
        allocation.hit = hits * size
        for block in found:
            if not block.users:
                del self._free[block.number]
            block.users += 1
        allocation.blocks = found
        allocation.keys = keys[:hits]
        allocation.blocks += [self._take() for _ in range(prompt_blocks - hits)]
        allocation.pledged = total - prompt_blocks
        self._pledged += allocation.pledged
        self.fill(allocation, len(tokens))
        return allocation

    def fill(self, allocation: Allocation, computed: int) -> None:
        """Cache the blocks that are full now that `computed` tokens of the sequence have been computed."""
        done = len(allocation.keys)
        full = computed // self.block_size
        if full <= done:
            return
        while len(allocation.blocks) < full:
            self._grow(allocation)
        parent = allocation.keys[-1] if allocation.keys else None
        stored = []
        for number in range(done, full):
            key = self._key(allocation.keys, allocation.tokens, number, allocation.salt)
            block = allocation.blocks[number]
            block.key = key
            self._cached.setdefault(key, {})[block.number] = block
            allocation.keys.append(key)
            stored.append(key)
        if self._announce:
            self.events.append(self._stored(stored, parent, allocation, done, full))

    def free(self, allocation: Allocation) -> None:
        """Give the blocks back. Their content stays until it is evicted."""
        self._pledged -= allocation.pledged
        allocation.pledged = 0
        for block in reversed(allocation.blocks):
            block.users -= 1
            if not block.users:
                self._free[block.number] = block
        allocation.blocks = []

    def clear(self) -> bool:
        """Forget everything. False, and nothing happens, while sequences run."""
        if len(self._free) != self.capacity:
            return False
        self._cached.clear()
        for block in self._free.values():
            block.key = None
        if self._announce:
            self.events.append({"type": "AllBlocksCleared"})
        return True

    def forget(self) -> None:
        """Lose everything without a word, as an engine that ends does. No sequence may run."""
        assert len(self._free) == self.capacity
        self._cached.clear()
        for block in self._free.values():
            block.key = None
        self.events.clear()

    def contents(self) -> dict[int, int]:
        """How many blocks hold each key."""
        return {key: len(copies) for key, copies in self._cached.items()}

    def _match(self, tokens: Sequence[int], salt: str | None) -> tuple[list[int], int]:
        keys: list[int] = []
        for number in range((len(tokens) - 1) // self.block_size):
            key = self._key(keys, tokens, number, salt)
            if key not in self._cached:
                break
            keys.append(key)
        return keys, len(keys)

    def _key(self, keys: list[int], tokens: Sequence[int], number: int, salt: str | None) -> int:
        start = number * self.block_size
        return block_key(keys[-1] if keys else None, tokens[start : start + self.block_size], salt)

    def _grow(self, allocation: Allocation) -> None:
        allocation.blocks.append(self._take())
        if allocation.pledged:
            allocation.pledged -= 1
            self._pledged -= 1

    def _take(self) -> Block:
        _, block = self._free.popitem(last=False)
        if block.key is not None:
            copies = self._cached[block.key]
            del copies[block.number]
            if not copies:
                del self._cached[block.key]
            if self._announce:
                self.events.append(
                    {"type": "BlockRemoved", "block_hashes": [block.key], "medium": "GPU", "group_idx": 0}
                )
            block.key = None
        block.users = 1
        return block

    def _stored(self, keys: list[int], parent: int | None, allocation: Allocation, first: int, end: int) -> Event:
        size = self.block_size
        salted = allocation.salt if first == 0 else None
        return {
            "type": "BlockStored",
            "block_hashes": keys,
            "parent_block_hash": parent,
            "token_ids": allocation.tokens[first * size : end * size],
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [[salted] if salted else None, *[None] * (len(keys) - 1)],
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
            "cache_salt": allocation.salt,
        }
