"""The trie on its own and within a memory: found is the longest of what was put in and is still there."""

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from forebay.router.prompt.memory import _LEAF, _ROOT, Memory, _branches, _weight
from forebay.router.prompt.trie import DEEPEST, Node, common, walk
from tests.tokenizers import examples

PIECES = st.text("ab", min_size=1, max_size=5)


class Held:
    """A value of some size."""

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes

    def __repr__(self) -> str:
        return self.name


def path(node: Node[Any, Any]) -> Any:
    """All that leads to a node."""
    whole = node.piece
    while node.parent is not None:
        node = node.parent
        whole = node.piece + whole
    return whole


def below(node: Node[Any, Any]) -> list[Node[Any, Any]]:
    """The node and all under it."""
    found = [node]
    for each in found:
        found += each.children
    return found


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 20))
def test_common_beginning_is_as_long_as_it_is(piece: bytes, rest: bytes, at: int) -> None:
    for buffer in (b"x" * at + rest, b"x" * at + piece + rest, b"x" * at + piece[: len(piece) // 2] + rest):
        expected = next((i for i in range(len(piece)) if buffer[at + i : at + i + 1] != piece[i : i + 1]), len(piece))
        assert common(piece, buffer, at) == expected


def test_walk_goes_on_from_any_node_and_place() -> None:
    memory = Memory(1 << 20, 1 << 20)
    root = memory.root("p", "k", "")
    first, second = memory.extend(root, [("one ", Held("1", 10)), ("two ", Held("2", 10))])
    assert walk(root, "one two three") == (second, 8)
    assert walk(first, "one two three", 4) == (second, 8)
    assert walk(first, "three") == (first, 0)
    assert walk(root, "on") == (root, 0)
    assert walk(root, "") == (root, 0)


def test_pieces_that_begin_alike_share_a_node_and_keep_their_own() -> None:
    memory = Memory(1 << 20, 1 << 20)
    root = memory.root("p", "k", b"")
    texts = [b'{"role":"user","content":"' + name + b'"}' for name in (b"a", b"ab", b"b", b"")]
    nodes = [memory.insert(root, text, Held(str(text), 10)) for text in texts]
    assert len(list(root.children)) == 1
    for text, node in zip(texts, nodes, strict=True):
        assert walk(root, text + b",more") == (node, len(text))
        assert path(node) == text
    assert walk(root, b'{"role":"user","con') == (root, 0)


def test_putting_in_again_replaces_the_value() -> None:
    memory = Memory(1 << 20, 1 << 20)
    root = memory.root("p", "k", "")
    node = memory.insert(root, "abc", Held("old", 100))
    before = memory.bytes
    again = memory.insert(root, "abc", Held("new", 60))
    assert again is node
    assert repr(node.value) == "new"
    assert memory.bytes == before - 40


def test_walk_ends_at_a_depth_whatever_a_tenant_sends() -> None:
    memory = Memory(1 << 30, 1 << 30)
    root = memory.root("p", "k", "")
    memory.extend(root, [("a", Held("v", 1)) for _ in range(DEEPEST + 10)])
    assert walk(root, "a" * (DEEPEST + 10))[1] == DEEPEST


@pytest.mark.parametrize("width", ["a", "é", "я", "\U0001f600"])
def test_texts_of_any_width_are_found_in_texts_of_any_other(width: str) -> None:
    memory = Memory(1 << 20, 1 << 20)
    root = memory.root("p", "k", "")
    node = memory.extend(root, [("plain ", Held("1", 1)), (f"text {width} ", Held("2", 1))])[-1]
    for end in ("a", "é", "я", "\U0001f600"):
        assert walk(root, f"plain text {width} {end}") == (node, 13)


class Remembering(RuleBasedStateMachine):
    """Two projects with two kinds each in a small memory, against dicts of what was put in."""

    nodes = Bundle("nodes")

    @initialize(total=st.integers(2_000, 40_000), each=st.integers(1_000, 40_000))
    def begin(self, total: int, each: int) -> None:
        self.memory = Memory(total, each)
        self.said: dict[tuple[str, str], dict[str, str]] = {}
        self.next = 0

    @rule(target=nodes, project=st.sampled_from("pq"), kind=st.sampled_from("kl"))
    def ask_root(self, project: str, kind: str) -> Any:
        root = self.memory.root(project, kind, "")
        self.said.setdefault((project, kind), {})
        return (project, kind, "", root)

    @rule(target=nodes, at=nodes, pieces=st.lists(PIECES, min_size=1, max_size=4), size=st.integers(0, 3_000))
    def put_in(self, at: Any, pieces: list[str], size: int) -> Any:
        project, kind, before, node = at
        alive = node.alive
        values = [Held(f"v{self.next + i}", size) for i in range(len(pieces))]
        self.next += len(pieces)
        made = self.memory.extend(node, list(zip(pieces, values, strict=True)))
        found = []
        for piece, value, each in zip(pieces, values, made, strict=True):
            before += piece
            assert alive or not each.alive
            if each.alive:  # else there was no room, and what was there before may be there still
                self.said[project, kind][before] = value.name
            found.append((project, kind, before, each))
        return multiple(*found)

    @rule(at=nodes, text=st.text("ab", max_size=12))
    def look_up(self, at: Any, text: str) -> None:
        *_, before, node = at
        found, end = self.memory.walk(node, text)
        if not node.alive:
            assert (found, end) == (node, 0)
            return
        there = {path(each): each for each in below(node) if each.value is not None and each is not node}
        fitting = [whole for whole in there if (before + text).startswith(whole)]
        longest = max(fitting, key=len, default=before)
        assert found is there.get(longest, node)
        assert end == len(longest) - len(before)

    @rule(at=nodes, size=st.integers(0, 3_000))
    def change(self, at: Any, size: int) -> None:
        project, kind, before, node = at
        if node.alive:
            self.said[project, kind][before] = f"v{self.next}"
        self.memory.put(node, Held(f"v{self.next}", size))
        self.next += 1

    @rule(at=nodes)
    def hold(self, at: Any) -> None:
        *_, before, node = at
        if node.alive:
            assert path(node) == before
        else:
            assert (node.piece, node.value, node.parent, list(node.children)) == ("", None, None, [])

    @invariant()
    def sizes_are_exact_and_within_their_bounds(self) -> None:
        total = 0
        for holder in self.memory._projects.values():
            size, leaves = 0, []
            for kind, root in holder.roots.items():
                for node in below(root):
                    assert node.owner is holder
                    size += _weight(node) + _branches(node) + (0 if node.parent else _ROOT)
                    leaves += [node] if node.leaf else []
                    assert node.value is None or self.said[holder.name, str(kind)][path(node)] == node.value.name
                    assert node.value is not None or not node.leaf or node.parent is None
                    assert all(child.parent is node for child in node.children)
            assert set(holder.order) == set(leaves)
            assert holder.bytes == size + _LEAF * len(leaves) <= self.memory.project_bytes
            assert holder.noted >= holder.bytes
            total += holder.bytes
        assert self.memory.bytes == total <= self.memory.total_bytes


def test_memory_agrees_with_its_model_whatever_is_done() -> None:
    run_state_machine_as_test(Remembering, settings=examples(150, 3_000))


def test_costs_cover_what_objects_take() -> None:
    memory = Memory(1 << 30, 1 << 30)
    root = memory.root("p", "k", "")
    for i in range(3_000):
        memory.insert(root, chr(0x4E00 + i) + "text", Held("v", 0))
    taken = sum(sys.getsizeof(node) + sys.getsizeof(node.piece) for node in below(root))
    taken += sys.getsizeof(root.many) + sys.getsizeof(memory._projects["p"].order)
    assert taken < memory.bytes < 3 * taken
