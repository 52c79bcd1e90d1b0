"""What was found of a step of keys is kept, and ends with every change of what it told."""

from typing import ClassVar

import pytest
from hypothesis import settings

from forebay.router.prefix import runs
from forebay.router.prefix.blocks import Removed, Tier
from forebay.router.prefix.index import Index, Match
from tests.unit import test_index_model
from tests.unit.naive_index import WEIGHTS, hashes, keys, prompt, stored

STEP = runs.STEP * 32  # tokens
LONG = prompt(1, 4 * STEP + 320)
KEYS = keys(LONG)


@pytest.fixture
def index() -> Index:
    """Two holders of all of the prompt, asked about it before."""
    index = Index(WEIGHTS)
    for name in ("one", "two"):
        index.attach(name)
        index.apply(name, [stored(LONG)])
    assert found(index) == {"one": len(LONG), "two": len(LONG)}
    return index


def found(index: Index) -> dict[str, int]:
    return {name: match.tokens for name, match in index.match(KEYS).items()}


def test_a_block_that_goes_and_comes_again(index: Index) -> None:
    blocks = hashes(LONG, 16)
    gone = STEP // 16 + 5  # the block ends at a key
    index.apply("one", [Removed([blocks[gone]])])
    assert found(index) == {"one": gone * 16 - 16, "two": len(LONG)}
    assert found(index) == {"one": gone * 16 - 16, "two": len(LONG)}
    index.apply("one", [stored(LONG[: (gone + 1) * 16], start=gone)])
    assert found(index) == {"one": len(LONG), "two": len(LONG)}


def test_a_block_of_several_keys_that_nobody_else_has() -> None:
    index = Index(WEIGHTS)
    index.attach("one")
    index.apply("one", [stored(LONG, 64)])
    assert found(index) == {"one": len(LONG)}
    gone = STEP // 64 + 5
    index.apply("one", [Removed([hashes(LONG, 64)[gone]])])
    assert found(index) == {"one": gone * 64}


def test_another_holder_of_the_same_comes_and_goes(index: Index) -> None:
    index.attach("three")
    index.apply("three", [stored(LONG[: 2 * STEP])])
    assert found(index)["three"] == 2 * STEP
    index.apply("three", [stored(LONG, start=2 * STEP // 16)])
    assert found(index)["three"] == len(LONG)
    index.detach("three")
    while index.sweep(1000):
        pass
    assert found(index) == {"one": len(LONG), "two": len(LONG)}
    for name in ("one", "two"):
        index.clear(name)
    assert found(index) == {}
    while index.sweep(1000):
        pass
    assert index.sizes().keys == 0


def test_what_lacks_in_one_table_is_found_in_another(index: Index) -> None:
    blocks = hashes(LONG, 16)
    gone = STEP // 16 + 5
    index.apply("one", [stored(LONG, tier=Tier.CPU), Removed(blocks[gone:])])
    assert index.match(KEYS)["one"] == Match(len(LONG), gone * 16 - 16)
    index.expect("one", KEYS, (gone - 1) // 2, until=1.0)
    assert index.match(KEYS)["one"] == Match(len(LONG), len(LONG))
    index.expire(1.0)
    assert index.match(KEYS)["one"] == Match(len(LONG), gone * 16 - 16)


def test_what_is_only_expected() -> None:
    index = Index(WEIGHTS)
    for number, name in enumerate(("one", "two", "three"), 1):
        index.attach(name)
        index.expect(name, KEYS[: number * runs.STEP], 0, until=float(number))
    assert found(index) == {"one": STEP, "two": 2 * STEP, "three": 3 * STEP}
    index.expire(1.0)
    assert found(index) == {"two": 2 * STEP, "three": 3 * STEP}


def test_prompts_that_part_within_a_step(index: Index) -> None:
    parted = prompt(1, STEP + STEP // 2) + prompt(2, 2 * STEP)
    index.apply("one", [stored(parted)])
    for tokens in (LONG, parted, LONG):
        assert index.match(keys(tokens))["one"].tokens == len(tokens)
    gone = STEP // 16 + 5
    index.apply("one", [Removed([hashes(LONG, 16)[gone]])] * 2)  # both prompts stored it
    for tokens in (LONG, parted):
        assert index.match(keys(tokens))["one"].tokens == gone * 16 - 16


def test_a_prompt_that_ends_within_a_step(index: Index) -> None:
    for end in (1, runs.STEP - 1, runs.STEP, runs.STEP + 1):
        assert index.match(KEYS[:end])["one"].tokens == end * 32


class TestInSmallSteps(test_index_model.TestIndex):
    """Most prompts of the machine are longer than a step, then."""

    sizes: ClassVar = {"runs.STEP": 2, "marks.NEAR": 2, "marks.EACH": 2}


TestInSmallSteps.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
