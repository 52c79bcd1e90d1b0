"""What an index counts."""

from msgspec import Struct


class Counts(Struct):
    """What was odd. Only grows, and goes on when a holder is cleared."""

    malformed: int = 0  # events that cannot be true
    duplicates: int = 0  # blocks announced while they were held in the same tier
    unknown: int = 0  # removals of blocks that were not held
    dropped: int = 0  # blocks beyond a holder's bound
    orphans: int = 0  # events dropped while they waited for their parent
    lapsed: int = 0  # keys that were expected, beyond a holder's bound
    healed: int = 0  # keys that an engine had without a known event
    mismatches: int = 0  # answers with clearly fewer cached tokens than were claimed


class Sizes(Struct, frozen=True):
    """What an index has."""

    blocks: dict[str, int]  # by holder
    keys: int  # that some holder claims, those of each tier by themselves
    parked: int  # events whose parent is not known
    expected: int  # pairs of a key and a holder that is taken to have it
    unswept: int  # blocks of holders that were cleared or detached
    counts: Counts
