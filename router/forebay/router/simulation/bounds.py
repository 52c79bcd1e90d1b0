"""What any router could have served from caches, at most (pure)."""

import heapq
import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forebay.router.simulation.blocks import Blocks, common

_NEVER = np.iinfo(np.int64).max
_Asked = tuple[Blocks, Blocks]
_Run = tuple[int, int, int, Blocks]  # who wants it next and its place there, both negated; who left it; its blocks


def clairvoyant(requests: Sequence[_Asked], capacity: int | None = None) -> list[int]:
    """How many blocks of each prompt a single cache finds that knows what will be asked, and gives up what is wanted
    again latest (Belady). `capacity` in blocks; None: without end. `requests`: prompts in the order in which they are
    computed, and what each leaves behind with its answer. Names must be small numbers: they index arrays.

    An upper bound for every fleet whose caches together hold as much, asked in that order. Who uses a block uses all
    before it, so those are never wanted later, and giving up the last ones first leaves no holes.
    """
    names = 1 + max((int(blocks.max()) for one in requests for blocks in one if len(blocks)), default=0)
    following = _following(requests, names)
    held = np.zeros(names, bool)
    size = 0
    queue: list[_Run] = []
    found = []
    for number, (prompt, _) in enumerate(requests):
        has = held[prompt]
        found.append(len(has) if has.all() else int(has.argmin()))
        for wanted, begin, blocks in following[number]:
            size += len(blocks) - int(held[blocks].sum())
            held[blocks] = True
            heapq.heappush(queue, (-wanted, -begin, number, blocks))
        while capacity is not None and size > capacity:
            wanted, begin, left_by, blocks = heapq.heappop(queue)
            keep = max(0, len(blocks) - (size - capacity))
            held[blocks[keep:]] = False
            size -= len(blocks) - keep
            if keep:
                heapq.heappush(queue, (wanted, begin, left_by, blocks[:keep]))
    return found


def _following(requests: Sequence[_Asked], names: int) -> list[list[tuple[int, int, Blocks]]]:
    """What each request leaves behind, in runs of blocks that the same later request wants next: that request's number,
    the run's place, its blocks."""
    wanted: NDArray[np.int64] = np.full(names, _NEVER, np.int64)
    found = []
    for number in range(len(requests) - 1, -1, -1):
        prompt, left = requests[number]
        alike = common(prompt, left)
        found.append([*_runs(left, 0, wanted), *_runs(prompt[alike:], alike, wanted)])
        wanted[prompt] = number
    return found[::-1]


def _runs(blocks: Blocks, place: int, wanted: NDArray[np.int64]) -> list[tuple[int, int, Blocks]]:
    after = wanted[blocks]
    edges = [0, *(np.flatnonzero(np.diff(after)) + 1).tolist(), len(blocks)]
    return [(int(after[a]), place + a, blocks[a:b]) for a, b in itertools.pairwise(edges) if a < b]
