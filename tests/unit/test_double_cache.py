"""The double's prefix cache, without a server."""

from hypothesis import given
from hypothesis import strategies as st

from tests.doubles.engine.cache import Allocation, PrefixCache


def admitted(cache: PrefixCache, tokens: list[int], salt: str | None = None, answer: int = 0) -> Allocation:
    allocation = cache.admit(tokens, salt, answer)
    assert allocation is not None
    return allocation


def run(cache: PrefixCache, tokens: list[int], salt: str | None = None) -> int:
    """Admit and finish at once. Returns the tokens that hit."""
    allocation = admitted(cache, list(tokens), salt)
    cache.free(allocation)
    return allocation.hit


def test_hits_are_full_blocks_and_leave_one_token_to_compute() -> None:
    cache = PrefixCache(64, 4)
    tokens = list(range(100, 112))
    assert run(cache, tokens) == 0
    assert run(cache, tokens) == 8
    assert run(cache, [*tokens, 1]) == 12
    assert run(cache, [*tokens[:6], 1, 2, 3]) == 4


def test_a_salt_is_a_cache_of_its_own() -> None:
    cache = PrefixCache(64, 4)
    tokens = list(range(9))
    run(cache, tokens, "a")
    assert run(cache, tokens, "b") == 0
    assert run(cache, tokens) == 0
    assert run(cache, tokens, "a") == 8


def test_the_block_freed_longest_ago_goes_first_and_tails_before_heads() -> None:
    cache = PrefixCache(4, 2, announce=True)
    old, new = [1, 2, 3, 4], [5, 6, 7, 8]
    run(cache, old)
    run(cache, new)
    cache.events.clear()
    run(cache, [9, 9])
    removed = [event for event in cache.events if event["type"] == "BlockRemoved"]
    assert len(removed) == 1
    assert cache.peek([*old, 0]) == 2, "the older chain lost its tail"
    assert cache.peek([*new, 0]) == 4, "the newer chain is whole"


def test_blocks_in_use_are_never_evicted() -> None:
    cache = PrefixCache(3, 2)
    held = admitted(cache, [1, 2, 3, 4])
    assert cache.admit([5, 6, 7, 8], None, 0) is None
    assert cache.peek([1, 2, 3, 4, 0]) == 4
    cache.free(held)
    assert cache.admit([5, 6, 7, 8], None, 0) is not None


def test_the_answer_extends_the_chain_and_its_room_is_pledged() -> None:
    cache = PrefixCache(4, 2)
    tokens = [1, 2]
    allocation = admitted(cache, tokens, answer=4)
    assert cache.admit([7, 8, 9, 10], None, 0) is None, "two of the three free blocks are spoken for"
    tokens += [3, 4]
    cache.fill(allocation, 4)
    cache.free(allocation)
    assert cache.peek([1, 2, 3, 4, 5]) == 4
    assert cache.usage == 0


def test_twins_share_blocks_while_both_run() -> None:
    cache = PrefixCache(4, 2)
    first = admitted(cache, [1, 2, 3])
    second = admitted(cache, [1, 2, 3])
    assert second.hit == 2
    assert cache.usage == 0.75
    cache.free(first)
    assert cache.usage == 0.5
    cache.free(second)
    assert cache.usage == 0


def test_clearing_waits_for_the_running() -> None:
    cache = PrefixCache(4, 2, announce=True)
    allocation = admitted(cache, [1, 2, 3])
    assert not cache.clear()
    cache.free(allocation)
    assert cache.clear()
    assert cache.peek([1, 2, 3]) == 0
    assert cache.events[-1] == {"type": "AllBlocksCleared"}


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=30), st.integers(4, 8))
def test_events_replayed_give_the_cache(prompts: list[list[int]], blocks: int) -> None:
    """A listener that counts copies knows what would hit, whatever was evicted on the way."""
    cache = PrefixCache(blocks, 3, announce=True)
    copies: dict[int, int] = {}
    parents: dict[tuple[int | None, tuple[int, ...]], int] = {}
    for prompt in prompts:
        run(cache, prompt)
        for event in cache.events:
            if event["type"] == "BlockRemoved":
                copies[event["block_hashes"][0]] -= 1
                continue
            parent = event["parent_block_hash"]
            for number, key in enumerate(event["block_hashes"]):
                copies[key] = copies.get(key, 0) + 1
                parents[parent, tuple(event["token_ids"][3 * number : 3 * number + 3])] = key
                parent = key
        cache.events.clear()
    for prompt in prompts:
        known, last = 0, None
        for start in range(0, len(prompt) - 3, 3):
            key = parents.get((last, tuple(prompt[start : start + 3])))
            if key is None or not copies[key]:
                break
            known, last = known + 3, key
        assert cache.peek(prompt) == known
