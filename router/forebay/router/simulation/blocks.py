"""The KV cache of one simulated engine: prefixes of prompts in blocks, the least recently used given up first (pure).

As vLLM frees them: a finished request's blocks count as used now, its last ones as older than its first, and a block
that a running request uses stays. Runs of blocks that came together lie in one node of a tree, so that a prompt of a
thousand blocks costs a few comparisons of arrays.
"""

import heapq
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.int64]  # names of blocks; each name also says all that stands before it
Change = tuple[Blocks, int | None, bool]  # blocks, the name of the one before (None: a beginning), whether stored


class _Node:
    __slots__ = ("blocks", "children", "parent", "pins", "used")

    def __init__(self, blocks: Blocks, parent: "_Node | None", used: float, pins: int = 0) -> None:
        self.blocks = blocks
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.pins = pins  # running requests that use it
        self.used = used


class Pin:
    """A running request's hold on the blocks of its prompt."""

    __slots__ = ("node",)

    def __init__(self, node: _Node) -> None:
        self.node = node


class Cache:
    """`capacity` in blocks. `changes` collects what was stored and given up since it was last taken.

    `size` and `reserved` together pass the capacity only where running requests do: by one prompt that is larger than
    all of it, which its caller let in although there was no room.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.pinned = 0  # blocks of prompts that running requests use
        self.reserved = 0  # blocks that running answers will fill, without a name yet
        self.changes: list[Change] = []
        self._root = _Node(np.empty(0, np.int64), None, 0.0, pins=1)
        self._idle: list[tuple[float, int, _Node]] = []  # leaves that may be given up, some of them no longer
        self._order = count()

    def __repr__(self) -> str:
        return f"<Cache {self.size}/{self.capacity} blocks, {self.pinned} pinned, {self.reserved} reserved>"

    def match(self, blocks: Blocks) -> int:
        """How many blocks of a prompt's beginning it has."""
        return self._walk(blocks)[1]

    def room(self, blocks: Blocks, answer: int) -> bool:
        """Whether a prompt and so many blocks of answer could be had by giving up what no running request uses."""
        node, at = self._root, 0
        while at < len(blocks) and (child := node.children.get(int(blocks[at]))) is not None and child.pins:
            same = common(child.blocks, blocks[at:])
            node, at = child, at + same
            if same < len(child.blocks):
                break
        return self.pinned + self.reserved + len(blocks) - at + answer <= self.capacity

    def reserve(self, blocks: int) -> None:
        """Keep room for so many blocks of an answer; less than nothing gives it back."""
        self.reserved += blocks
        self._make_room(0)

    def pin(self, blocks: Blocks, now: float) -> Pin:
        """Hold all blocks of a prompt, those it lacks included. To be asked for where there is room."""
        node, known = self._walk(blocks)
        node = self._cut(node, known)
        self._hold(node, 1)
        missing = len(blocks) - known
        if missing:
            self._make_room(missing)
            fresh = _Node(blocks[known:], node, now, pins=1)
            node.children[int(blocks[known])] = fresh
            self.size += missing
            self.pinned += missing
            self.changes.append((fresh.blocks, int(blocks[known - 1]) if known else None, True))
            node = fresh
        return Pin(node)

    def release(self, pin: Pin, now: float) -> None:
        """Let go: its blocks were used just now."""
        node: _Node | None = pin.node
        self._hold(pin.node, -1)
        while node is not None and node.parent is not None:
            node.used = now
            node = node.parent
        self._offer(pin.node)
        self._make_room(0)

    def _walk(self, blocks: Blocks) -> tuple[_Node, int]:
        """The node where the match ends, and how many blocks match."""
        node, at = self._root, 0
        while at < len(blocks) and (child := node.children.get(int(blocks[at]))) is not None:
            same = common(child.blocks, blocks[at:])
            node, at = child, at + same
            if same < len(child.blocks):
                break
        return node, at

    def _cut(self, node: _Node, depth: int) -> _Node:
        """The node that ends where a match of `depth` blocks does; divides one that goes on."""
        above = depth - sum(len(one.blocks) for one in _ancestors(node))
        if above == len(node.blocks):
            return node
        parent = node.parent
        assert parent is not None
        head = _Node(node.blocks[:above], parent, node.used, node.pins)
        parent.children[int(head.blocks[0])] = head
        node.blocks, node.parent = node.blocks[above:], head
        head.children[int(node.blocks[0])] = node
        return head

    def _hold(self, node: _Node, by: int) -> None:
        at: _Node | None = node
        while at is not None and at.parent is not None:
            before, at.pins = at.pins, at.pins + by
            if not before or not at.pins:
                self.pinned += by * len(at.blocks)
            at = at.parent

    def _offer(self, node: _Node) -> None:
        if not node.pins and not node.children and node.parent is not None:
            heapq.heappush(self._idle, (node.used, next(self._order), node))

    def _make_room(self, blocks: int) -> None:
        excess = self.size + self.reserved + blocks - self.capacity
        while excess > 0 and self._idle:
            used, _, node = heapq.heappop(self._idle)
            if node.pins or node.children or node.used != used or node.parent is None:
                continue
            gone = min(excess, len(node.blocks))
            keep = len(node.blocks) - gone
            self.changes.append((node.blocks[keep:], None, False))
            self.size -= gone
            excess -= gone
            if keep:
                node.blocks = node.blocks[:keep]
                self._offer(node)
            else:
                parent, node.parent = node.parent, None
                del parent.children[int(node.blocks[0])]
                self._offer(parent)


def _ancestors(node: _Node) -> Iterator[_Node]:
    at = node.parent
    while at is not None:
        yield at
        at = at.parent


def common(one: Blocks, other: Blocks) -> int:
    """How many blocks both begin with."""
    size = min(len(one), len(other))
    differ = one[:size] != other[:size]
    at = int(differ.argmax()) if size else 0
    return at if size and differ[at] else size
