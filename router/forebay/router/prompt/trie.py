"""A trie over texts or bytes in which a buffer is looked up at the speed of comparing memory (pure).

Each node holds the piece between its parent and itself; nodes that begin alike have a common parent. Where something
is remembered, the node has a value. Nodes are held by whoever likes: one that was taken out is empty and not `alive`.
"""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T", str, bytes)
V = TypeVar("V")
DEEPEST = 1 << 14  # nodes of one walk; what lies deeper is not found


class Node(Struct, Generic[T, V], gc=False, eq=False):
    """`only` is the one child, `many` are several by what their pieces begin with. `owner` is whoever accounts for the
    node; None once it was taken out. `used`: when a walk last ended here. Out of the collector's sight, since there are
    hundreds of thousands: cycles are cut when a node is taken out."""

    piece: T
    value: V | None = None
    parent: "Node[T, V] | None" = None
    only: "Node[T, V] | None" = None
    many: "dict[Any, Node[T, V]] | None" = None
    owner: Any = None
    used: int = 0

    @property
    def alive(self) -> bool:
        return self.owner is not None

    @property
    def leaf(self) -> bool:
        return self.only is None and self.many is None

    @property
    def children(self) -> "Iterator[Node[T, V]]":
        if self.only is not None:
            yield self.only
        elif self.many is not None:
            yield from self.many.values()


def walk(node: Node[T, V], buffer: T, start: int = 0) -> tuple[Node[T, V], int]:
    """Follow `buffer` from `start`: the deepest node below `node` that has a value, and where it ends in the buffer;
    `node` itself and `start` if there is none."""
    found, end, at, size = node, start, start, len(buffer)
    for _ in range(DEEPEST):
        if at >= size:
            break
        child = node.only
        if child is None:
            child = None if node.many is None else node.many.get(buffer[at])
            if child is None:
                break
        piece = child.piece
        if not buffer.startswith(piece, at):
            break
        at += len(piece)
        node = child
        if node.value is not None:
            found, end = node, at
    return found, end


def child_at(node: Node[T, V], buffer: T, at: int) -> Node[T, V] | None:
    """The child whose piece begins as `buffer` goes on at `at`."""
    if node.only is not None:
        return node.only if node.only.piece[0] == buffer[at] else None
    return None if node.many is None else node.many.get(buffer[at])


def attach(node: Node[T, V], child: Node[T, V]) -> None:
    """Set `child` below `node`, which has none whose piece begins alike."""
    child.parent = node
    if node.leaf:
        node.only = child
        return
    if node.many is None:
        node.many = {only.piece[0]: only for only in node.children}
        node.only = None
    node.many[child.piece[0]] = child


def detach(child: Node[T, V]) -> None:
    """Take a leaf from its parent."""
    parent, child.parent = child.parent, None
    if parent is None:
        return
    if parent.many is None:
        parent.only = None
        return
    del parent.many[child.piece[0]]
    left = len(parent.many)
    if left == 1:
        parent.only, parent.many = next(iter(parent.many.values())), None
    elif left & (left - 1) == 0:
        parent.many = dict(parent.many)  # gives back what a dict keeps for entries it had


def split(child: Node[T, V], length: int) -> Node[T, V]:
    """Part the piece of `child` behind `length`: the new node between it and its parent."""
    parent, piece = child.parent, child.piece
    middle = Node(piece[:length], parent=parent, only=child, owner=child.owner)
    if parent is not None:
        if parent.many is None:
            parent.only = middle
        else:
            parent.many[piece[0]] = middle
    child.parent, child.piece = middle, piece[length:]
    return middle


def common(piece: T, buffer: T, at: int) -> int:
    """How far `piece` and `buffer` from `at` are the same."""
    low, high = 0, min(len(piece), len(buffer) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if buffer.startswith(piece[low:middle], at + low):
            low = middle
        else:
            high = middle - 1
    return low
