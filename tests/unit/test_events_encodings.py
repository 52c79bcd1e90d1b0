"""KV events in every encoding that an engine has used: the same blocks come out."""

from typing import Any

import msgspec
import pytest

from forebay.router.prefix.blocks import Batch, Cleared, Removed, Stored, Tier
from forebay.router.prefix.events import Decoder
from tests.doubles.engine.encodings import encode
from tests.recorded_events import CAPTURE, captured

FIRST, SECOND, THIRD = (1 << 63) + 5, 7, 11
EVENTS: list[dict[str, Any]] = [
    {
        "type": "BlockStored", "block_hashes": [FIRST, SECOND], "parent_block_hash": None,
        "token_ids": [1, 2, 3, 100_000], "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None,
        "extra_keys": [["pepper"], None], "group_idx": 0, "kv_cache_spec_kind": "full_attention",
        "cache_salt": "pepper",
    },
    {
        "type": "BlockStored", "block_hashes": [THIRD], "parent_block_hash": SECOND, "token_ids": [5, 6],
        "block_size": 2, "lora_id": None, "medium": "GPU", "lora_name": None, "extra_keys": [None], "group_idx": 0,
        "kv_cache_spec_kind": "full_attention", "cache_salt": None,
    },
    {"type": "BlockRemoved", "block_hashes": [FIRST], "medium": "GPU", "group_idx": 0},
    {"type": "AllBlocksCleared"},
]  # fmt: skip


def read(batch: Any, decoder: Decoder | None = None) -> Batch:
    return (decoder or Decoder()).decode(msgspec.msgpack.encode(batch))


@pytest.mark.parametrize("hashes", ["int", "bytes"])
@pytest.mark.parametrize("encoding", ["vllm", "vllm-rows", "vllm-maps", "sglang", "sglang-rows"])
def test_the_same_events_in_every_encoding(encoding: str, hashes: str) -> None:
    batch = Decoder(rank=9).decode(encode(EVENTS, 1.5, 3, encoding=encoding, hashes=hashes))
    root, child, removed, cleared = batch.events
    assert isinstance(root, Stored)
    assert isinstance(child, Stored)
    assert isinstance(removed, Removed)
    assert (root.tokens, root.block_size, root.parent, root.salt) == ([1, 2, 3, 100_000], 2, None, "pepper")
    assert (child.tokens, child.parent, child.salt) == ([5, 6], root.hashes[1], None)
    assert removed == Removed(root.hashes[:1])
    assert cleared == Cleared()
    assert len({*root.hashes, *child.hashes}) == 3
    assert isinstance(root.hashes[0], bytes if hashes == "bytes" else int)
    assert (batch.rank, batch.skipped, batch.undecodable) == (3, 0, 0)


def test_a_stream_that_changes_its_encoding_is_read_on() -> None:
    decoder = Decoder()
    for encoding in ("vllm", "sglang-rows", "vllm-maps", "vllm-rows", "sglang", "vllm"):
        batch = decoder.decode(encode(EVENTS, 1.5, 0, encoding=encoding, hashes="int"))
        assert len(batch.events) == 4


@pytest.mark.parametrize(
    ("row", "tier"),
    [
        (["BlockStored", [1], None, [5], 1], Tier.GPU),  # SGLang 0.4.6 ends with lora_id, which may be left out
        (["BlockStored", [1], None, [5], 1, None], Tier.GPU),
        (["BlockStored", [1], None, [5], 1, None, None], Tier.GPU),
        (["BlockStored", [1], None, [5], 1, None, "CPU"], Tier.CPU),
        (["BlockStored", [1], None, [5], 1, None, "disk", None, None, 0, "mla_attention", None], Tier.STORAGE),
    ],
)
def test_arrays_leave_out_what_has_its_default(row: list[Any], tier: Tier) -> None:
    assert read([0, [row]]).events == [Stored([1], None, [5] if len(row) < 9 else [], 1, tier=tier)]


def test_a_batch_without_a_rank_has_the_followed_one() -> None:
    assert read([1.0, []], Decoder(rank=2)).rank == 2
    assert read({"ts": 1.0, "events": []}, Decoder(rank=2)).rank == 2


def test_eagle_pages_are_pairs_of_which_the_first_is_the_token() -> None:
    pages = {"block_hashes": [1], "parent_block_hash": None, "token_ids": [[4, 5], [5, 6]], "block_size": 2}
    stored = Stored([1], None, [4, 5], 2)
    assert read([1.0, [{"type": "BlockStored", **pages}]]).events == [stored]
    assert read([1.0, [["BlockStored", *pages.values()]]]).events == [stored]


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        ("GPU", Tier.GPU), ("gpu", Tier.GPU), (None, Tier.GPU), ("CPU", Tier.CPU), ("cpu", Tier.CPU),
        ("CPU_PINNED", Tier.CPU), ("STORAGE", Tier.STORAGE), ("DISK", Tier.STORAGE), ("EXTERNAL", Tier.STORAGE),
        ("holographic", Tier.STORAGE),
    ],
)  # fmt: skip
def test_media_in_any_case_are_tiers(medium: str | None, tier: Tier) -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": medium}
    assert read([1.0, [removed]]).events == [Removed([1], tier)]


def test_what_lies_in_another_machine_is_slow() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": "CPU", "locality": "REMOTE"}
    assert read([1.0, [removed]]).events == [Removed([1], Tier.STORAGE)]


def test_removals_that_follow_each_other_become_one() -> None:
    batch = read([1.0, [["BlockRemoved", [n], medium] for n, medium in enumerate(["GPU", "GPU", "CPU", "GPU"])]])
    assert batch.events == [Removed([0, 1]), Removed([2], Tier.CPU), Removed([3])]


@pytest.mark.skipif(not CAPTURE.is_file(), reason=f"no captured KV events: {CAPTURE} is absent")
def test_batches_captured_from_a_live_sglang() -> None:
    decoder = Decoder()
    for wire in captured():
        batch = decoder.decode(msgspec.msgpack.encode(wire))
        assert batch.rank == wire[2]
        assert not batch.undecodable
        expected = [event for event in wire[1] if event["type"] == "BlockStored"]
        stored = [event for event in batch.events if isinstance(event, Stored)]
        assert [event.hashes for event in stored] == [event["block_hashes"] for event in expected]
        assert [event.salt for event in stored] == [event.get("cache_salt") for event in expected]
        assert all(len(event.tokens) == len(event.hashes) * event.block_size for event in stored)
