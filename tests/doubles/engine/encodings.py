"""KV events as the versions of engines write them. Pure.

`vllm`: from 0.26 on, maps in an array. `vllm-rows`: to 0.23, arrays with the type first. `vllm-maps`: maps in a map, as
its source has had them for a while. `sglang`: from 0.5.20 on, maps with `cache_salt`. `sglang-rows`: 0.5.18, arrays to
which salted blocks append a map.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from tests.doubles.engine.cache import Event

_encode = msgspec.msgpack.Encoder().encode
_VLLM = {
    "BlockStored": [
        "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
        "group_idx", "kv_cache_spec_kind",
    ],
    "BlockRemoved": ["block_hashes", "medium", "group_idx"],
    "AllBlocksCleared": [],
}  # fmt: skip
_SGLANG = {
    "BlockStored": ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"],
    "BlockRemoved": ["block_hashes", "medium"],
    "AllBlocksCleared": [],
}

Hash = Callable[[int], int | bytes]


def encode(events: list[Event], stamp: float, rank: int, *, encoding: str, hashes: str) -> bytes:
    """The payload of one message."""
    engine, _, shape = encoding.partition("-")
    members = {"vllm": _VLLM, "sglang": _SGLANG}[engine]
    numbers: Hash = _signed if engine == "sglang" else _plain
    name: Hash = _bytes if hashes == "bytes" else numbers
    written = [_written(_named(event, name), members[event["type"]], rows=shape == "rows") for event in events]
    if engine == "sglang":
        for event, out in zip(events, written, strict=True):
            _add_salt(event, out)
    if shape == "maps":
        return _encode({"ts": stamp, "events": written, "data_parallel_rank": rank})
    return _encode([stamp, written, rank])


def _written(event: Event, members: list[str], *, rows: bool) -> Any:
    if rows:
        return [event["type"], *(event[member] for member in members)]
    return {"type": event["type"], **{member: event[member] for member in members}}


def _add_salt(event: Event, written: Any) -> None:
    if event.get("cache_salt") is None:
        return
    if isinstance(written, list):
        written.append({"cache_salt": event["cache_salt"]})
    else:
        written["cache_salt"] = event["cache_salt"]


def _named(event: Event, name: Hash) -> Event:
    named = dict(event)
    if "block_hashes" in event:
        named["block_hashes"] = [name(key) for key in event["block_hashes"]]
    if event.get("parent_block_hash") is not None:
        named["parent_block_hash"] = name(event["parent_block_hash"])
    return named


def _plain(key: int) -> int:
    return key


def _signed(key: int) -> int:
    return key - (1 << 64) if key >> 63 else key


def _bytes(key: int) -> bytes:
    return key.to_bytes(8, "big") * 4
