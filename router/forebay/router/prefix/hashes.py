"""Engines' hashes as numbers (pure)."""

from collections.abc import Sequence

from forebay.router.prefix.blocks import Change, Hash, Removed, Stored


def numbered(events: Sequence[Change]) -> Sequence[Change]:
    """The events with integers for hashes that are bytes: their last 8, as vLLM itself makes integers of them
    (v1/core/kv_cache_utils.py). An engine sends one or the other, so that one look suffices."""
    first = next((event.hashes[0] for event in events if event.hashes), 0)
    return [_numbered(event) for event in events] if isinstance(first, bytes) else events


def _numbered(event: Change) -> Change:
    if isinstance(event, Removed):
        return Removed([_number(hash_) for hash_ in event.hashes], event.tier)
    return Stored(
        [_number(hash_) for hash_ in event.hashes],
        None if event.parent is None else _number(event.parent),
        event.tokens,
        event.block_size,
        event.lora,
        event.salt,
        event.tier,
        event.inexact,
    )


def _number(hash_: Hash) -> int:
    return int.from_bytes(hash_[-8:], "big") if isinstance(hash_, bytes) else hash_
