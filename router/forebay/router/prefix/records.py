"""How a block is kept: packed into one integer, its record.

    sum at its end (64 bits) | position of its end (28) | whether that is on the grid (1) | tiers that hold it (3)

An opaque block was stored, but its tokens do not tell its content: its record has only tiers.
"""

from collections.abc import Iterable

import numpy as np

TIERS = 7
KEYED = 8
AT = 4  # bits below the position
SUM = 32  # bits below the sum
MASK = (1 << 64) - 1  # of a sum
PLACE = (1 << SUM) - (1 << AT)  # the position, where it stands in a record
PACKED = np.dtype([("mark", "<u4"), ("sum", "<u8")])  # the bytes of `pack`


def position(record: int) -> int:
    return (record & PLACE) >> AT


def pack(records: Iterable[int]) -> bytes:
    return b"".join([record.to_bytes(PACKED.itemsize, "little") for record in records])
