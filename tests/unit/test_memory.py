"""What is remembered of prompts: who loses what when there is no room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.router.prompt.memory import Memory
from forebay.router.prompt.trie import Node
from tests.tokenizers import examples


class Sized:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def remember(memory: Memory, project: str, *pieces: str, size: int = 0, kind: str = "k") -> list[Node[str, Sized]]:
    return memory.extend(memory.root(project, kind, ""), [(piece, Sized(size)) for piece in pieces])


def known(memory: Memory, project: str, text: str) -> int:
    return memory.walk(memory.root(project, "k", ""), text)[1]


def room_for(count: int, size: int = 1_000) -> Memory:
    """Room in one project for `count` pieces without common beginnings."""
    memory = Memory(1 << 30, 1 << 30)
    for i in range(count):
        remember(memory, "p", chr(0x100 + i), size=size)
    return Memory(1 << 30, memory.bytes)


def test_projects_and_kinds_do_not_see_each_other() -> None:
    memory = Memory(1 << 20, 1 << 20)
    remember(memory, "p", "text")
    assert known(memory, "p", "text") == 4
    assert known(memory, "q", "text") == 0
    assert memory.walk(memory.root("p", ("other", 1), ""), "text")[1] == 0


def test_longest_unused_goes_first() -> None:
    memory = room_for(3)
    for piece in "abc":
        remember(memory, "p", piece, size=1_000)
    assert known(memory, "p", "a")
    remember(memory, "p", "d", size=1_000)
    assert [bool(known(memory, "p", piece)) for piece in "abcd"] == [True, False, True, True]
    assert memory.evictions == 1


def test_conversation_is_given_up_from_its_end() -> None:
    memory = room_for(4)
    remember(memory, "p", "a1", "a2", "a3", size=1_000)
    remember(memory, "p", "b1", "b2", size=1_000)
    assert known(memory, "p", "a1a2a3") == 4
    remember(memory, "p", "c", size=1_000)  # the other was used since
    assert known(memory, "p", "a1a2a3") == 4
    assert known(memory, "p", "b1b2") == 2


def test_what_is_left_of_a_conversation_is_as_old_as_its_end() -> None:
    memory = room_for(3)
    remember(memory, "p", "a1", "a2", size=1_000)
    remember(memory, "p", "b", size=1_000)
    remember(memory, "p", "c", size=1_000)
    remember(memory, "p", "d", size=1_000)
    assert [known(memory, "p", text) for text in ("a1a2", "b", "c", "d")] == [0, 1, 1, 1]


def test_what_conversations_have_in_common_outlives_them() -> None:
    memory = room_for(4)
    for user in "bcdefgh":
        remember(memory, "p", "system", user, size=1_000)
    assert known(memory, "p", "systemh") == 7
    assert known(memory, "p", "systemb") == 6


def test_beginning_that_was_used_since_is_not_given_up_with_its_end() -> None:
    memory = room_for(3)
    remember(memory, "p", "a1", "a2", size=1_000)
    remember(memory, "p", "b", size=1_000)
    assert known(memory, "p", "a1") == 2
    remember(memory, "p", "c", "d", size=1_000)  # takes the room of a2, then of b
    assert known(memory, "p", "a1") == 2
    assert known(memory, "p", "b") == 0


def test_what_has_no_room_at_all_is_not_remembered_and_harms_nobody() -> None:
    memory = Memory(20_000, 10_000)
    kept = remember(memory, "q", "kept")
    nodes = remember(memory, "p", "a" * 3_000, "b" * 3_000, "c" * 30_000, "d" * 3_000)
    assert [node.alive for node in nodes] == [True, True, False, False]
    assert known(memory, "p", "a" * 3_000 + "b" * 3_000 + "c" * 30_000) == 6_000
    assert kept[0].alive
    assert memory.bytes <= 20_000


def test_memory_without_room_for_anything_remembers_nothing() -> None:
    memory = Memory(100, 100)
    assert not remember(memory, "p", "a")[0].alive
    assert (memory.bytes, memory.projects) == (0, 0)


def test_nodes_that_were_given_up_are_empty_and_take_nothing() -> None:
    memory = room_for(1)
    node = remember(memory, "p", "a", size=1_000)[0]
    remember(memory, "p", "b", size=1_000)
    assert not node.alive
    before = memory.bytes
    assert not memory.insert(node, "more", Sized(10)).alive
    memory.put(node, Sized(10))
    assert memory.walk(node, "more") == (node, 0)
    assert (memory.bytes, node.piece, node.value, node.parent) == (before, "", None, None)


def test_project_that_holds_nothing_any_more_is_gone() -> None:
    memory = Memory(30_000, 30_000)
    for i in range(1_000):
        remember(memory, f"p{i}", "text", size=100)
    assert 10 < memory.projects < 30
    assert known(memory, "p999", "text") == 4


def test_project_that_holds_most_pays() -> None:
    memory = Memory(60_000, 50_000)
    small = [remember(memory, name, "text", size=1_000)[0] for name in "abc"]
    for i in range(500):
        remember(memory, "greedy", chr(0x100 + i), size=1_000)
    assert all(node.alive for node in small)
    assert memory.bytes <= 60_000


@given(st.data())
@examples(100, 5_000)
def test_project_within_its_share_loses_nothing_to_others(data: st.DataObject) -> None:
    others = data.draw(st.integers(1, 6))
    total = data.draw(st.integers(20_000, 100_000))
    memory = Memory(total, data.draw(st.integers(total // 2, total)))
    share = total // (others + 1)
    modest: list[Node[str, Sized]] = []
    names = st.sampled_from([f"greedy{i}" for i in range(others)])
    for i, size in enumerate(data.draw(st.lists(st.integers(0, 8_000), min_size=20, max_size=80))):
        if data.draw(st.booleans()):
            remember(memory, data.draw(names), f"{i}:", f"{size}", size=size)
            continue
        before = memory._projects["modest"].bytes if "modest" in memory._projects else 0
        if before + 2 * size + 3_000 < share:  # two values; a root, nodes and their branches
            modest += remember(memory, "modest", f"{i}:", f"{size}", size=size)
    assert all(node.alive for node in modest)


@pytest.mark.parametrize("projects", [3, 300])
def test_heap_of_sizes_stays_small(projects: int) -> None:
    memory = Memory(1 << 30, 1 << 30)
    for i in range(20_000):
        remember(memory, f"p{i % projects}", f"{i} and more")
    assert len(memory._sizes) <= 65 + 4 * projects


def test_one_large_thing_does_not_push_out_everything_at_once() -> None:
    memory = Memory(8_000_000, 8_000_000)
    for number in range(200):
        remember(memory, "p", *(f"{number}-{at}" for at in range(100)))
    tried, alive = 0, False
    while not alive:
        before = memory.evictions
        alive = remember(memory, "p", "l" * 7_900_000)[0].alive
        assert memory.evictions - before <= 4_200
        assert memory.bytes <= 8_000_000
        tried += 1
        assert tried < 10
    assert tried > 1
