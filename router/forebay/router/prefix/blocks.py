"""KV events as the index takes them, whatever engine sent them and however they were encoded.

Made by the hundred thousand a second: plain structs that the garbage collector does not track. That is safe because
they only hold lists of numbers and bytes, never each other in a circle.
"""

from enum import IntEnum

from msgspec import Struct

Hash = int | bytes  # an engine's own name of a block and all that stands before it; opaque


class Tier(IntEnum):
    """Where a holder keeps a block, fastest first."""

    GPU = 0
    CPU = 1
    STORAGE = 2  # whatever is slower, and every word that is not known


class Stored(Struct, gc=False):
    """A run of blocks that follow each other. `tokens` may be empty: the hashes are then looked up among the blocks of
    other tiers. Block `inexact` and all after it hold something that tokens do not tell (images): None if none does."""

    hashes: list[Hash]
    parent: Hash | None  # None: the run begins a prompt
    tokens: list[int]
    block_size: int
    lora: str | None = None
    salt: str | None = None
    tier: Tier = Tier.GPU
    inexact: int | None = None


class Removed(Struct, gc=False):
    hashes: list[Hash]
    tier: Tier = Tier.GPU


class Cleared(Struct, gc=False):
    """The holder has emptied its cache, all tiers."""


Change = Stored | Removed
Event = Change | Cleared


class Batch(Struct, gc=False):
    """What one message told. `skipped`: events left out on purpose (other cache groups); `undecodable`: events that
    could not be read."""

    events: list[Event]
    rank: int = 0
    skipped: int = 0
    undecodable: int = 0
