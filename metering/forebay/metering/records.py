"""What is written down about one attempt to answer a request, from dispatch to its end.

An attempt is opened when work is dispatched to an engine, checkpointed while it streams, and closed by exactly one
terminal `UsageRecord`. `(request_id, attempt)` identifies it everywhere and for ever.
"""

from decimal import Decimal
from enum import StrEnum

from msgspec import Struct


class Status(StrEnum):
    """How an attempt ended, as far as the bill is concerned."""

    COMPLETED = "completed"  # the engine finished its answer
    CANCELLED = "cancelled"  # the client left; what was generated until then is billed
    CONTINUED = "continued"  # the engine was lost or taken away; the next attempt went on with its answer
    FAILED = "failed"  # the engine or Forebay failed; nothing is billed
    LOST = "lost"  # the front door died; closed from the last checkpoint, nothing is billed


class TerminatedBy(StrEnum):
    """Who ended the attempt."""

    ENGINE = "engine"
    CLIENT = "client"
    DEADLINE = "deadline"
    FRONT_DOOR = "front_door"


class Quantities(Struct, frozen=True, omit_defaults=True):
    """Token counts in disjoint classes; `reasoning` alone is a part of another class (`output`)."""

    input_uncached: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    @property
    def input_total(self) -> int:
        return self.input_uncached + self.cache_read + self.cache_write


class Attempt(Struct, frozen=True):
    """The open record: everything known about an attempt when it is dispatched.

    `started_at` is Unix time in seconds. `tier_used` differs from `tier_requested` after a downgrade.
    `price_multiplier` is that of `tier_used` at dispatch. What has a default is missing in what older programs
    have spooled.
    """

    request_id: str
    attempt: int
    tenant_id: str
    project_id: str
    key_id: str
    api: str  # "chat.completions", "completions" or "embeddings"
    model: str  # the catalogue's public name
    pool: str
    endpoint: str
    engine: str  # the adapter: "vllm" or "openai"
    stream: bool
    tier_requested: str
    tier_used: str
    price_version: str
    started_at: float
    price_multiplier: Decimal = Decimal(1)
    session: str = ""  # 32 hex digits, where the client named one


class Checkpoint(Struct, frozen=True):
    """What an unfinished attempt had used by `at` (Unix seconds)."""

    request_id: str
    attempt: int
    engine: Quantities
    at: float


class UsageRecord(Struct, frozen=True):
    """The immutable account of one attempt.

    `engine` is what the engine counted, `billable` what the tenant pays for (see `usage.billable`). `measured` is false
    where the engine could not say what it had used, so that `engine` is a lower bound. `estimated`: the front
    door counted a part of `billable` that the engine did not tell.
    """

    attempt: Attempt
    engine: Quantities
    billable: Quantities
    status: Status
    terminated_by: TerminatedBy
    measured: bool
    ended_at: float
    first_byte_s: float | None = None  # seconds from dispatch to the engine's first byte
    finish_reason: str | None = None
    error: str | None = None  # a short code, never a message that could carry tenant data
    estimated: bool = False
