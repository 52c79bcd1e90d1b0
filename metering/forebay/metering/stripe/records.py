"""What is told to Stripe, and how far each telling has come.

A **cell** is one tenant's usage on one meter in one hour of charge. What Stripe should know of it is its sum in the
ledger; what it was told is the sum of its **postings**. The difference is the next posting. Both logs only grow.
"""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Literal

from msgspec import Struct

# The classes of tokens that are billed, as meters are mapped to them.
TOKEN_CLASSES = ("input_uncached", "cache_read", "cache_write", "output")


class Kind(StrEnum):
    """How Stripe is told."""

    EVENT = "event"  # a meter event; its value may be negative
    CREDIT_NOTE = "credit_note"  # on an invoice that is final; its value is negative


class State(StrEnum):
    """Where a posting stands: the newest of its steps. Without one it is `INTENDED`."""

    INTENDED = "intended"  # written down; whether Stripe has it is not known
    DELIVERED = "delivered"  # Stripe took it, or said that it has it already
    REJECTED = "rejected"  # Stripe refused it, at once or later; its cell is parked until somebody decides
    CANCELLING = "cancelling"  # delivered, and to be taken back
    VOID = "void"  # taken back, or given up: counts for nothing, for ever


# A step that changes no state: Stripe's own sums said that the posting is not there.
CHECKED = "checked"


class Key(Struct, frozen=True, order=True):
    """A cell."""

    tenant_id: str
    event_name: str  # the meter's
    hour: datetime  # of charge, in UTC


class Posting(Struct, frozen=True):
    """One thing told to Stripe. `value` is in tokens. `billed_at` is the time that Stripe is told, which decides the
    invoice. Within the dedupe window from `safe_from` on, a repeat cannot count twice."""

    identifier: str
    key: Key
    customer_id: str
    seq: int
    kind: Kind
    value: int
    billed_at: datetime
    safe_from: datetime
    state: State = State.INTENDED
    changed_at: datetime | None = None  # when it came to this state
    code: str = ""  # of a refusal
    reference: str = ""  # Stripe's id of what was made: a credit note


class Cell(Struct, frozen=True):
    key: Key
    customer_id: str
    total: int
    postings: tuple[Posting, ...] = ()

    @property
    def told(self) -> int:
        return sum(one.value for one in self.postings if one.state is not State.VOID)


class Unmapped(Struct, frozen=True):
    """Usage of a model that no meter counts, or else of a tenant that is no customer: `missing` says which."""

    missing: Literal["meter", "customer"]
    tenant_id: str
    model: str
    tier: str
    token_class: str
    tokens: int
    first_hour: datetime
    last_hour: datetime


class Meter(Struct, frozen=True):
    """A meter as Stripe has it. Its payload keys are its own."""

    id: str
    event_name: str
    formula: str
    active: bool
    customer_key: str = "stripe_customer_id"
    value_key: str = "value"


def identifier(key: Key, seq: int) -> str:
    """The same for the same posting, whoever sends it, and however often."""
    parts = (key.tenant_id, key.event_name, key.hour.astimezone(UTC).isoformat(), str(seq))
    return f"fb_{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:40]}"


def delivered(postings: Iterable[Posting]) -> int:
    """What Stripe's own sum of meter events should be, of postings that are known to be there."""
    return sum(
        one.value
        for one in postings
        if one.kind is Kind.EVENT and one.state in {State.DELIVERED, State.CANCELLING}
    )
