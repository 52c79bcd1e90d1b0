"""What a stored block's event says of its content: salt, LoRA, media, cache group."""

from typing import Any

import msgspec
import pytest

from forebay.router.prefix.blocks import Batch, Removed, Stored, Tier
from forebay.router.prefix.events import Decoder

FULL = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}


def event(**members: Any) -> dict[str, Any]:
    known = {"block_hashes": [1], "parent_block_hash": None, "token_ids": [7], "block_size": 1, "medium": "GPU"}
    return {"type": "BlockStored", **known, **members}


def removed(group: int | None, *hashes: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [*hashes], "medium": "GPU", "group_idx": group}


def read(*events: dict[str, Any], decoder: Decoder | None = None) -> Batch:
    return (decoder or Decoder()).decode(msgspec.msgpack.encode([1.0, events, 0]))


def stored(**members: Any) -> Stored:
    (one,) = read(event(**members)).events
    assert isinstance(one, Stored)
    return one


@pytest.mark.parametrize(
    ("members", "lora", "salt", "inexact"),
    [
        ({}, None, None, None),
        ({"extra_keys": [None]}, None, None, None),
        ({"extra_keys": [[]]}, None, None, None),
        ({"extra_keys": [["s"]]}, None, "s", None),
        ({"cache_salt": "s"}, None, "s", None),
        ({"cache_salt": ""}, None, None, None),
        ({"lora_name": "l", "extra_keys": [["l"]]}, "l", None, None),
        ({"lora_name": "l", "extra_keys": [["l", "s"]]}, "l", "s", None),
        ({"lora_name": "l", "extra_keys": [["l", "l"]]}, "l", "l", None),  # a salt may be called as a LoRA is
        ({"lora_name": "l", "extra_keys": [["l", ["image", 0], "s"]]}, "l", "s", 0),
        ({"extra_keys": [[["image", -3]]]}, None, None, 0),
        ({"extra_keys": [["image", "s"]]}, None, "s", 0),  # vLLM before 0.19 gave media without their offset
        ({"extra_keys": [[b"digest of embeddings"]]}, None, None, 0),
        ({"extra_keys": [["s"], None, [["image", 2]]]}, None, "s", 2),
        ({"extra_keys": [None, ["image"]]}, None, None, 1),
        ({"lora_name": "l", "extra_keys": [["l"], ["l"], ["l", ["image", 0]]]}, "l", None, 2),
        ({"parent_block_hash": 9, "extra_keys": [["image"]]}, None, None, 0),  # salts stand in a prompt's first block
        ({"lora_id": 3}, "lora 3", None, None),
        ({"lora_id": 3, "extra_keys": [[3, "s"], [3]]}, "lora 3", "s", None),
        ({"lora_id": 0}, None, None, None),
    ],
)
def test_lora_salt_and_media(members: dict[str, Any], lora: str | None, salt: str | None, inexact: int | None) -> None:
    found = stored(**members)
    assert (found.lora, found.salt, found.inexact) == (lora, salt, inexact)


def test_offloaded_blocks_do_not_tell_their_salt_so_only_their_hash_counts() -> None:
    """vLLM 0.32 leaves `extra_keys` out of what its connector stores."""
    offloaded = stored(medium="CPU", **FULL)
    assert (offloaded.tokens, offloaded.tier) == ([], Tier.CPU)
    assert stored(medium="CPU", **FULL, parent_block_hash=9).tokens == [7]
    assert stored(medium="CPU", **FULL, extra_keys=[None]).tokens == [7]
    assert stored(medium="CPU_PINNED").tokens == [7], "SGLang tells the salt, or there is none"


def test_blocks_without_tokens_have_no_size() -> None:
    placeholder = stored(medium="STORAGE", token_ids=[], block_size=0, group_idx=0)
    assert (placeholder.tokens, placeholder.block_size, placeholder.tier) == ([], 0, Tier.STORAGE)


@pytest.mark.parametrize("kind", ["full_attention", "mla_attention", "sink_full_attention", "unknown", None])
def test_groups_that_keep_whole_prompts_are_taken(kind: str | None) -> None:
    batch = read(event(group_idx=0, kv_cache_spec_kind=kind), removed(0, 1))
    assert [type(each) for each in batch.events] == [Stored, Removed]


@pytest.mark.parametrize("kind", ["sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "new"])
def test_groups_that_forget_are_left_out(kind: str) -> None:
    batch = read(event(group_idx=1, kv_cache_spec_kind=kind), event(**FULL), removed(1, 1), removed(0, 1))
    assert batch.events == [Stored([1], None, [7], 1), Removed([1])]
    assert batch.skipped == 2


def test_of_several_full_groups_always_the_same_is_taken() -> None:
    decoder = Decoder()
    first = event(group_idx=2, kv_cache_spec_kind="full_attention", block_hashes=[20])
    second = event(group_idx=3, kv_cache_spec_kind="full_attention", block_hashes=[30])
    assert read(first, second, decoder=decoder).events == [Stored([20], None, [7], 1)]
    assert read(second, first, decoder=decoder).events == [Stored([20], None, [7], 1)]
    assert read(removed(3, 30), removed(2, 20), decoder=decoder).events == [Removed([20])]
    assert decoder.group == 2


def test_a_decoder_goes_on_with_the_group_of_before() -> None:
    batch = read(removed(0, 1), removed(2, 2), decoder=Decoder(group=2))
    assert (batch.events, batch.skipped) == ([Removed([2])], 1)


def test_sglang_names_its_layers_in_each_event() -> None:
    batch = read(
        event(component_type="full"),
        event(component_type="swa"),
        {"type": "BlockRemoved", "block_hashes": [1], "component_type": "mamba"},
        {"type": "BlockRemoved", "block_hashes": [2], "component_type": "full"},
    )
    assert batch.events == [Stored([1], None, [7], 1), Removed([2])]
    assert batch.skipped == 2
