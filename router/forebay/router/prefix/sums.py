"""Sums over the tokens of a whole batch of events at once (pure).

Half of the blocks that a busy engine stores come one by one, so numpy is worth its calls only over all of a batch
together. What tokens add to a sum depends on where they stand, and on nothing else that precedes them: that much is
worked out for a batch before its events are gone through, and each block's sum is then one addition.
"""

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from forebay.router.prefix.blocks import Change, Hash, Stored
from forebay.router.prefix.keys import GRID, Weights
from forebay.router.prefix.records import AT, MASK, PLACE

LARGEST = 1 << 16  # tokens of one block
_UNSUMMABLE = (OverflowError, TypeError, ValueError)  # tokens that are none, positions beyond any context


class Run(Struct, gc=False):
    """The sums at the ends of a run's blocks, and by number of the block the keys at positions inside of it."""

    ends: list[int]
    inner: dict[int, list[int]] = {}


def well_formed(event: Stored) -> bool:
    """Whether the sizes can be true. The values of the tokens are looked at when they are summed."""
    tokens, size = len(event.tokens), event.block_size
    return not tokens or (0 < size <= LARGEST and tokens == size * len(event.hashes))


def _cell_of(block_size: int) -> int:
    """Tokens of a cell for blocks that fit the grid, else 0."""
    if GRID < block_size <= LARGEST and block_size % GRID == 0:
        return GRID
    return block_size if 0 < block_size <= GRID and GRID % block_size == 0 else 0


class Plan(Struct, gc=False):
    """What the cells of a batch add to the sums before them. A cell is a block, or of larger ones 32 tokens.

    `starts`: for each event the position where its run begins, as it stands in a record, or None if it is not planned.
    `cells`: for each cell of the planned runs what it adds. `cell`: tokens in one, if there are any.
    """

    starts: list[int | None]
    cells: list[int] = []
    cell: int = LARGEST + 1
    only: Run | None = None

    def run(self, event: Stored, first: int, base: int) -> Run:
        """The sums of a planned run from cell number `first` on, where the sum before it is `base`."""
        if self.only is not None:
            return self.only
        cells = self.cells[first : first + len(event.tokens) // self.cell]
        totals = [base := base + cell & MASK for cell in cells]
        each = event.block_size // self.cell
        if each == 1:
            return Run(totals)
        inner = {number: totals[number * each : (number + 1) * each - 1] for number in range(len(event.hashes))}
        return Run(totals[each - 1 :: each], inner)


class Sums:
    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def plan(self, events: Sequence[Change], blocks: Mapping[Hash, int]) -> Plan:
        """Plans the runs whose parent is in `blocks`, or ends the run planned before. Others are left for `alone`:
        those with blocks of another size than the first, opaque ones, and those that cannot be true."""
        size = next((event.block_size for event in events if type(event) is Stored), 0)
        cell = _cell_of(size)
        if not cell:
            return Plan([None] * len(events))
        starts: list[int | None] = []
        tokens: list[int] = []
        rows: list[int] = []  # position of each cell, in cells
        shift, unaligned = AT + cell.bit_length() - 1, cell - 1 << AT
        last, end = None, 0  # the run planned before, and the position where it ends
        for event in events:
            if type(event) is not Stored or event.block_size != size or event.inexact is not None:
                starts.append(None)
                continue
            parent, count = event.parent, len(event.tokens)
            if parent is None:
                start = 0
            elif not (start := blocks.get(parent, 0) & PLACE):
                start = end if last is not None and last.hashes[-1] == parent else -1
            if start < 0 or start & unaligned or not count or count != size * len(event.hashes):
                starts.append(None)
                continue
            starts.append(start)
            tokens += event.tokens
            if count == cell:
                rows.append(start >> shift)
            else:
                rows += range(start >> shift, (start >> shift) + count // cell)
            last, end = event, start + (count << AT)
        try:
            return Plan(starts, self._cells(tokens, rows, cell), cell) if rows else Plan(starts)
        except _UNSUMMABLE:  # each event is tried alone, and it is found which it was
            return Plan([None] * len(starts))

    def alone(self, event: Stored, start: int, base: int) -> Plan | None:
        """The plan of one run, with blocks of any size. None if it cannot be true."""
        count, size, first = len(event.tokens), event.block_size, start >> AT
        try:
            terms = np.frombuffer(array("I", event.tokens), np.uint32) + np.uint64(1)
            terms *= self._weights.span(first, first + count)
        except _UNSUMMABLE:
            return None
        totals = terms.cumsum() + np.uint64(base)
        inner: dict[int, list[int]] = {}
        on_grid = -(first + 1) % GRID
        for key, token in zip(totals[on_grid::GRID].tolist(), range(on_grid, count, GRID), strict=True):
            if (token + 1) % size:
                inner.setdefault(token // size, []).append(key)
        return Plan([start], only=Run(totals[size - 1 :: size].tolist(), inner))

    def _cells(self, tokens: list[int], rows: list[int], cell: int) -> list[int]:
        terms = np.frombuffer(array("I", tokens), np.uint32).reshape(-1, cell) + np.uint64(1)
        terms *= self._weights.span(0, (max(rows) + 1) * cell).reshape(-1, cell).take(rows, axis=0)
        cells: list[int] = np.add.reduce(terms, axis=1).tolist()
        return cells
