"""KV events off the wire: what an engine's message says, in every encoding that vLLM and SGLang have used (pure).

A message is msgpack: a batch as an array `[ts, events, rank?]` or a map, of events as maps with a `type` (vLLM from
0.26, SGLang from 0.5.20) or as arrays with the type first and trailing defaults left out. Sources: vLLM 0.9 to 0.32,
vllm/distributed/kv_events.py and v1/core/{block_pool,kv_cache_utils}.py; SGLang 0.4.6 to 0.5.23,
srt/disaggregation/kv_events.py. Typed decoders read a whole batch at once; what they refuse is read event by event.
Whether sizes and token values can be true is left to the index.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from forebay.router.prefix.blocks import Batch, Cleared, Event, Hash, Removed, Stored, Tier

# Layers that keep a prompt from its start, in vLLM's words (kv_cache_spec_kind) and SGLang's (component_type). Others
# (sliding windows, state) forget what lies far back: their blocks do not say how much of a prefix is cached.
_FULL = frozenset({"full_attention", "mla_attention", "sink_full_attention", "full"})
_UNTOLD = frozenset({None, "unknown"})
_GPU, _CPU, _STORAGE = Tier  # an attribute of an enum's class costs as much as a whole event
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class UndecodableError(ValueError):
    """A message of which nothing can be read."""


class _Metadata(Struct, gc=False):
    """SGLang 0.5.18 appends it to the array of a salted block, where vLLM has the LoRA's name."""

    cache_salt: str | None = None


class _Stored(Struct, gc=False):
    """In the order of vLLM's arrays; from `locality` on only seen in maps."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[Any]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | _Metadata | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: Any = None
    locality: str | None = None
    ownership: Any = None
    cache_salt: str | None = None
    component_type: str | None = None


class _Removed(Struct, gc=False):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None
    component_type: str | None = None


class _StoredMap(_Stored, tag="BlockStored", gc=False):
    token_ids: list[int]


class _StoredRow(_Stored, tag="BlockStored", array_like=True, gc=False):
    token_ids: list[int]


class _PairsMap(_Stored, tag="BlockStored", gc=False):
    """SGLang with EAGLE: each token of a page stands together with the one after it."""

    token_ids: list[tuple[int, int]]


class _PairsRow(_Stored, tag="BlockStored", array_like=True, gc=False):
    token_ids: list[tuple[int, int]]


class _RemovedMap(_Removed, tag="BlockRemoved", gc=False): ...


class _RemovedRow(_Removed, tag="BlockRemoved", array_like=True, gc=False): ...


class _ClearedMap(Struct, tag="AllBlocksCleared", gc=False): ...


class _ClearedRow(Struct, tag="AllBlocksCleared", array_like=True, gc=False): ...


_Maps = _StoredMap | _RemovedMap | _ClearedMap
_Rows = _StoredRow | _RemovedRow | _ClearedRow


class _ArrayOfMaps(Struct, array_like=True, gc=False):
    ts: float
    events: list[_Maps]
    data_parallel_rank: int | None = None


class _ArrayOfRows(Struct, array_like=True, gc=False):
    ts: float
    events: list[_Rows]
    data_parallel_rank: int | None = None


class _MapOfMaps(Struct, gc=False):
    events: list[_Maps]
    data_parallel_rank: int | None = None


class _MapOfRows(Struct, gc=False):
    events: list[_Rows]
    data_parallel_rank: int | None = None


class _ArrayOfPieces(Struct, array_like=True, gc=False):
    ts: Raw
    events: list[Raw]
    data_parallel_rank: int | None = None


class _MapOfPieces(Struct, gc=False):
    events: list[Raw]
    data_parallel_rank: int | None = None


def _decoders(*types: Any) -> list[Any]:
    return [msgspec.msgpack.Decoder(each) for each in types]


_WHOLE = _decoders(_ArrayOfMaps, _ArrayOfRows, _MapOfMaps, _MapOfRows)
_IN_PIECES = _decoders(_ArrayOfPieces, _MapOfPieces)
_PIECE = _decoders(_Maps, _Rows, _PairsMap, _PairsRow)


class Decoder:
    """Reads what one publisher sends, and keeps the encoding that was right last. `rank` is taken for batches that do
    not say theirs. `group`: of several cache groups with full attention the first that was seen, since each announces
    every block under the same hash."""

    def __init__(self, rank: int = 0, group: int | None = None) -> None:
        self.group = group
        self._rank = rank
        self._whole = list(_WHOLE)

    def decode(self, payload: bytes) -> Batch:
        """Removals that follow each other become one. Raises `UndecodableError` when nothing of it can be read."""
        for place, decoder in enumerate(self._whole):
            try:
                read = decoder.decode(payload)
            except _UNREADABLE:
                continue
            if place:
                self._whole.insert(0, self._whole.pop(place))
            return self._batch(read.events, read.data_parallel_rank)
        return self._in_pieces(payload)

    def _in_pieces(self, payload: bytes) -> Batch:
        read = _first(_IN_PIECES, payload)
        if isinstance(read, str):
            raise UndecodableError(f"it is no batch of KV events: {read}")
        events, reason = [], ""
        for piece in read.events:
            event = _first(_PIECE, piece)
            if isinstance(event, str):
                reason = event
            else:
                events.append(event)
        if read.events and not events:
            raise UndecodableError(f"none of its {len(read.events)} events can be read, as the last: {reason}")
        batch = self._batch(events, read.data_parallel_rank)
        batch.undecodable = len(read.events) - len(events)
        return batch

    def _batch(self, wire: list[Any], rank: int | None) -> Batch:
        # Some hundred nanoseconds an event. isinstance() of a struct asks its metaclass, so types are compared.
        events: list[Event] = []
        add, group, skipped = events.append, self.group, 0
        gone: list[Hash] | None = None
        gone_tier = _GPU
        for event in wire:
            of = type(event)
            if of is _RemovedMap or of is _RemovedRow:
                layers = event.component_type
                if (event.group_idx != group or layers is not None) and not self._takes(event.group_idx, layers):
                    skipped += 1
                    continue
                tier = _GPU if event.medium == "GPU" else _tier(event)
                if gone is not None and tier is gone_tier:
                    gone += event.block_hashes
                else:
                    gone, gone_tier = event.block_hashes, tier
                    add(Removed(gone, tier))
                continue
            gone = None
            if of is _ClearedMap or of is _ClearedRow:
                add(Cleared())
            elif (event.group_idx == group and event.kv_cache_spec_kind in _FULL) or self._takes_stored(event):
                group = self.group
                add(_stored(event))
            else:
                skipped += 1
        return Batch(events, self._rank if rank is None else rank, skipped)

    def _takes_stored(self, event: _Stored) -> bool:
        return self._takes(event.group_idx, event.kv_cache_spec_kind or event.component_type)

    def _takes(self, group: int | None, kind: str | None) -> bool:
        """Whether an event is of the cache group that is followed. vLLM's removals do not say what kind theirs is."""
        if kind not in _FULL and kind not in _UNTOLD:
            return False
        if group == self.group or group is None:
            return True
        if self.group is None and kind in _FULL:
            self.group = group
            return True
        return self.group is None and group == 0


def _stored(event: _Stored) -> Stored:
    lora, salt, extras = event.lora_name, event.cache_salt, event.extra_keys
    plain = lora is None and salt is None and event.lora_id is None and event.medium == "GPU"
    if plain and (extras is None or not any(extras)):
        return Stored(event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size)
    if isinstance(lora, _Metadata):
        salt, lora = lora.cache_salt, None
    if lora is None and event.lora_id:
        lora = f"lora {event.lora_id}"  # from engines that send no name: no prompt's LoRA is called so
    tokens, tier, inexact = event.token_ids, _tier(event), None
    if extras is not None:
        salt, inexact = _extras(event, extras, lora)
    elif event.parent_block_hash is None and event.group_idx is not None and tier is not _GPU:
        tokens = []  # vLLM's offloading leaves the salt out: only the hash tells what the block is
    return Stored(
        event.block_hashes, event.parent_block_hash, tokens, event.block_size, lora, salt or None, tier, inexact
    )


def _extras(event: _Stored, extras: list[list[Any] | None], lora: str | None) -> tuple[str | None, int | None]:
    """The salt, and the first block that holds something which tokens do not tell. vLLM lists for each block, without
    saying which is which: the LoRA's name (once its number), media as `[id, offset]` (once the id alone), in a prompt's
    first block the salt, and digests of embeddings as bytes."""
    salt = None
    for number, keys in enumerate(extras):
        others = [key for place, key in enumerate(keys or ()) if place or key not in (lora, event.lora_id)]
        if number == 0 and event.parent_block_hash is None and others and isinstance(others[-1], str):
            salt = others.pop()
        if others:
            return salt, number
    return salt, None


def _tier(event: _Stored | _Removed) -> Tier:
    """vLLM says GPU, CPU (Mooncake: cpu) and STORAGE; SGLang GPU, CPU_PINNED, DISK and EXTERNAL."""
    if event.locality == "REMOTE":
        return _STORAGE
    medium = (event.medium or "gpu").lower()
    return _GPU if medium == "gpu" else _CPU if medium.startswith("cpu") else _STORAGE


def _first(decoders: list[Any], payload: bytes | Raw) -> Any:
    """What the first decoder that takes it reads; if none does, their reasons as text."""
    reasons = []
    for decoder in decoders:
        try:
            read = decoder.decode(payload)
        except _UNREADABLE as error:
            reasons.append(str(error))
            continue
        if type(read) in (_PairsMap, _PairsRow):
            read.token_ids = [token for token, _ in read.token_ids]
        return read
    return "; ".join(dict.fromkeys(reasons))
