"""How a block is kept: packed into one integer, its record.

    sum at its end (64 bits) | position of its end (28) | whether that is on the grid (1) | tiers that hold it (3)

An opaque block was stored, but its tokens do not tell its content: its record has only tiers.
"""

TIERS = 7
KEYED = 8
AT = 4  # bits below the position
SUM = 32  # bits below the sum
LOW = (1 << SUM) - 1  # all of them
MASK = (1 << 64) - 1  # of a sum
PLACE = (1 << SUM) - (1 << AT)  # the position, where it stands in a record


def position(record: int) -> int:
    return (record & PLACE) >> AT
