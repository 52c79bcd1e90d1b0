"""What is remembered of prompts, bounded in bytes for each project and in all.

Each project has tries of its own (trie.py), so nobody can find out by timing what another has sent. What was used
longest ago goes first, from the ends inwards: only leaves are in the order, and a node that loses its last child takes
that child's place there, or the newest if a walk ended at it since. When all together hold too much, the project that
holds most pays. One that holds no more than its share, the whole divided by the number of projects, therefore loses
nothing to others.

To be used from one thread.
"""

import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Protocol, TypeVar

from forebay.router.prompt.trie import Node, T, attach, child_at, common, detach, split, walk


class Value(Protocol):
    @property
    def nbytes(self) -> int:
        """What it takes in memory. Does not change."""


V = TypeVar("V", bound=Value)

# Bytes, measured on CPython 3.11 and rounded up.
_NODE = 112
_LEAF = 160  # its entry in the order
_SEVERAL = 112  # the dict of a node that has several children
_CHILD = 128  # an entry of that dict
_ROOT = 1024  # with a share of the project's own

_AT_ONCE = 4096  # nodes given up for one insertion: everybody waits for some 20 ms meanwhile


class Memory:
    """`bytes` are held at the moment; `evictions` nodes were given up so far."""

    def __init__(self, total_bytes: int, project_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.project_bytes = min(project_bytes, total_bytes)
        self.bytes = 0
        self.evictions = 0
        self._projects: dict[str, _Project] = {}
        self._sizes: list[tuple[int, int, _Project]] = []  # a heap of projects by size; some entries are outdated
        self._serial = count()
        self._clock = 0

    def __repr__(self) -> str:
        return f"<Memory {self.bytes} of {self.total_bytes} bytes, {self.projects} projects, {self.evictions} evicted>"

    @property
    def projects(self) -> int:
        return len(self._projects)

    def root(self, project: str, kind: Hashable, empty: T) -> Node[T, Any]:
        """Where a project's things of one kind begin; `empty` is "" or b"". Ask anew each time."""
        holder = self._projects.get(project)
        if holder is None:
            holder = self._projects[project] = _Project(project)
        root = holder.roots.get(kind)
        if root is None:
            root = holder.roots[kind] = Node(empty, owner=holder)
            holder.order[root] = None
            self._charge(holder, _weight(root) + _ROOT + _LEAF)
            self._settle(holder)
        return root

    def walk(self, node: Node[T, V], buffer: T, start: int = 0) -> tuple[Node[T, V], int]:
        """See `trie.walk`. What is found counts as used."""
        found, end = walk(node, buffer, start)
        self._touch(found)
        return found, end

    def put(self, node: Node[T, V], value: V) -> None:
        """Set a node's value. Changes nothing on a node that was taken out."""
        if node.alive:
            self._put(node.owner, node, value)
            self._settle(node.owner)

    def insert(self, node: Node[T, V], piece: T, value: V) -> Node[T, V]:
        """Remember `value` at the end of `piece` below `node`, instead of what was there. The node that has it is not
        alive if `node` was not, or if there is no room."""
        return self.extend(node, ((piece, value),))[0]

    def extend(self, node: Node[T, V], pieces: Iterable[tuple[T, V]]) -> list[Node[T, V]]:
        """`insert` several, each below the one before. No piece is empty."""
        holder, most = node.owner, self.evictions + _AT_ONCE
        if holder is None:
            return [Node(piece[:0]) for piece, _ in pieces]
        nodes: list[Node[T, V]] = []
        for piece, value in pieces:
            if node.alive and self._make_room(holder, node, sys.getsizeof(piece) + value.nbytes, most):
                node = self._grow(holder, node, piece)
                self._put(holder, node, value)
            else:
                node = Node(piece[:0])
            nodes.append(node)
        self._touch(node)
        self._settle(holder)
        return nodes

    def _grow(self, holder: "_Project", node: Node[T, V], piece: T) -> Node[T, V]:
        """The node at the end of `piece` below `node`, made where it lacks."""
        at = 0
        while at < len(piece):
            child = child_at(node, piece, at)
            if child is None:
                return self._attach(holder, node, Node(piece[at:], owner=holder))
            if piece.startswith(child.piece, at):
                node = child
                at += len(child.piece)
                continue
            length = common(child.piece, piece, at)
            before = _weight(child)
            node = split(child, length)
            self._charge(holder, _weight(node) + _weight(child) - before)
            at += length
        return node

    def _attach(self, holder: "_Project", node: Node[T, V], child: Node[T, V]) -> Node[T, V]:
        if node.leaf:  # the child takes its place in the order
            del holder.order[node]
            self._charge(holder, -_LEAF)
        before = _branches(node)
        attach(node, child)
        holder.order[child] = None
        self._charge(holder, _weight(child) + _branches(node) - before + _LEAF)
        return child

    def _put(self, holder: "_Project", node: Node[T, V], value: V) -> None:
        before = 0 if node.value is None else node.value.nbytes
        node.value = value
        self._charge(holder, value.nbytes - before)

    def _touch(self, node: Node[T, V]) -> None:
        holder = node.owner
        if holder is not None:
            self._clock += 1
            node.used = self._clock
            if node in holder.order:
                holder.order.move_to_end(node)

    def _charge(self, holder: "_Project", size: int) -> None:
        holder.bytes += size
        self.bytes += size

    def _make_room(self, holder: "_Project", node: Node[Any, Any], size: int, most: int) -> bool:
        """Room for so many bytes below `node`. False where that would cost it, or more than `most` evictions so far:
        the next attempt finds more room."""
        if size > self.project_bytes:
            return False
        while True:
            payer = holder
            if holder.bytes + size <= self.project_bytes:
                if self.bytes + size <= self.total_bytes:
                    return True
                largest = self._largest()
                payer = largest if largest.bytes >= holder.bytes + size else holder
            if self.evictions >= most or next(iter(payer.order)) is node:
                return False
            self._evict(payer)

    def _settle(self, holder: "_Project") -> None:
        while holder.bytes > self.project_bytes:
            self._evict(holder)
        self._note(holder)
        while self.bytes > self.total_bytes:
            self._evict(self._largest())

    def _evict(self, holder: "_Project") -> None:
        """Take out the leaf that was used longest ago, and what then leads nowhere."""
        node, _ = holder.order.popitem(last=False)
        self._charge(holder, -_LEAF)
        self.evictions += 1
        rest = self._take_out(holder, node)
        while rest is not None:
            rest = self._take_out(holder, rest)

    def _take_out(self, holder: "_Project", node: Node[Any, Any]) -> Node[Any, Any] | None:
        """Returns the parent if that is to go, too."""
        parent, used = node.parent, node.used
        self._charge(holder, -_weight(node))
        if parent is None:
            self._uproot(holder, node)
        else:
            before = _branches(parent)
            detach(node)
            self._charge(holder, _branches(parent) - before)
        node.piece, node.value, node.owner = node.piece[:0], None, None
        if parent is None or not parent.leaf:
            return None
        newer = parent.used > used
        parent.used = max(parent.used, used)
        if parent.value is None and parent.parent is not None:
            return parent
        holder.order[parent] = None
        holder.order.move_to_end(parent, last=newer)
        self._charge(holder, _LEAF)
        return None

    def _uproot(self, holder: "_Project", root: Node[Any, Any]) -> None:
        del holder.roots[next(kind for kind, node in holder.roots.items() if node is root)]
        self._charge(holder, -_ROOT)
        if not holder.roots:
            del self._projects[holder.name]

    def _note(self, holder: "_Project") -> None:
        """See to it that some entry of the heap is at least as large as the project."""
        if holder.bytes > holder.noted:
            self._enter(holder)
            if len(self._sizes) > 64 + 4 * len(self._projects):
                self._sizes.clear()
                for each in self._projects.values():
                    each.noted = each.bytes
                    self._sizes.append((-each.bytes, next(self._serial), each))
                heapify(self._sizes)

    def _enter(self, holder: "_Project") -> None:
        holder.noted = holder.bytes
        heappush(self._sizes, (-holder.bytes, next(self._serial), holder))

    def _largest(self) -> "_Project":
        while True:
            size, _, holder = self._sizes[0]
            if -size == holder.bytes:
                return holder
            heappop(self._sizes)
            if -size == holder.noted and holder.bytes:
                self._enter(holder)


class _Project:
    """`noted` is the largest of its sizes in the heap."""

    __slots__ = ("bytes", "name", "noted", "order", "roots")

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes = 0
        self.noted = 0
        self.order: OrderedDict[Node[Any, Any], None] = OrderedDict()  # leaves, oldest use first
        self.roots: dict[Hashable, Node[Any, Any]] = {}


def _weight(node: Node[Any, Any]) -> int:
    return _NODE + sys.getsizeof(node.piece) + (0 if node.value is None else node.value.nbytes)


def _branches(node: Node[Any, Any]) -> int:
    return 0 if node.many is None else _SEVERAL + _CHILD * len(node.many)
