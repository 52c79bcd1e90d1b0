"""What is asked of a router and what it answers: the same whether it runs in this process or behind a socket."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from math import inf
from typing import Protocol

from msgspec import Struct

from forebay.router.tiers import DEFAULT


class Health(StrEnum):
    UNKNOWN = "unknown"  # not probed yet; may be tried
    UP = "up"
    DOWN = "down"  # does not answer
    EJECTED = "ejected"  # answers probes, and fails requests
    RETURNING = "returning"  # was out, and is well by its probes: gets one request at a time until some are answered
    MISCONFIGURED = "misconfigured"  # answers, but does not serve the model


class Role(StrEnum):
    """What the endpoints of a group do of a request."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class Group(Struct, frozen=True):
    """Which of its pool's endpoints are alike: those of one role, revision and accelerator. Of the latter two, empty
    where nothing is said."""

    role: Role = Role.UNIFIED
    revision: str = ""
    accelerator: str = ""


class Following(StrEnum):
    """How well an endpoint's KV events are known."""

    NONE = "none"  # it publishes none: what it holds is guessed from what was sent to it
    STARTING = "starting"  # connected; what came before is being replayed
    FOLLOWING = "following"
    UNDECODABLE = "undecodable"  # its events cannot be read: nothing is known of what it holds
    AWAY = "away"


class EndpointState(Struct, frozen=True):
    """An endpoint as the router knows it. `lora` is set where the served model is a LoRA adapter. `draining`: why it is
    sent nothing new, however well it is, but for its role, which is in `group`. `open`: it may be sent something new.
    `back_at`: when, on this machine's monotonic clock, it may be let back in at the earliest; 0 where it is not out."""

    pool: str
    name: str
    health: Health = Health.UNKNOWN
    reason: str = "not probed yet"
    max_model_len: int | None = None
    lora: str | None = None
    events: Following = Following.NONE
    in_flight: int = 0
    draining: str = ""
    group: Group = Group()
    open: bool = True
    back_at: float = 0.0

    @property
    def available(self) -> bool:
        return self.health in (Health.UNKNOWN, Health.UP, Health.RETURNING)

    @property
    def shut(self) -> str:
        """Why it is sent nothing new, however well it is; empty where it is."""
        return self.draining or unplaced(self.group.role)


class Ask(Struct, frozen=True):
    """What a placement needs to know of a request. `keys`: the prompt's seeded prefix keys, one for each 32nd token,
    as little-endian uint64. `tokens`: of the whole prompt. `output`: tokens expected of the answer. `stream`: its first
    token will be seen when it comes; of a whole answer only the end is. Not `exact`: the keys are of no tokens that
    engines know, so KV events never match them. `session`: an opaque id of the conversation, of fixed size, that no two
    projects share; empty where the client named none. `patience_s`: how long it may wait for an engine; `waited_s`: how
    long it has waited already, at earlier attempts; `left_s`: what it may take in all still, in whatever tier. `tier`:
    as asked for and allowed, or as it was served before; then `asked` is the former. `tenant`: whose work it is, an
    opaque id; `weight`: how much it is served beside others, whose weight is 1. `promised`: it was let in before, and
    is not refused for what is predicted now."""

    pool: str
    keys: bytes
    tokens: int
    output: int
    exclude: tuple[str, ...] = ()
    stream: bool = True
    exact: bool = True
    session: str = ""
    patience_s: float = 60.0
    waited_s: float = 0.0
    tier: str = DEFAULT
    asked: str = ""
    tenant: str = ""
    weight: float = 1.0
    promised: bool = False
    left_s: float = inf


class Placed(Struct, frozen=True):
    """Where the request goes. Its load is booked there until `ended` is told its `booking`."""

    endpoint: str
    booking: int
    cached: int  # prompt tokens taken to be cached there
    predicted_s: float  # seconds until its first token
    alone: bool  # nothing else was in flight there: its times say something about rates
    tier: str = DEFAULT  # as it is served: it may be a lower one than was asked for


class Why(StrEnum):
    """Why a request gets no engine."""

    FULL = "full"  # as many wait as may
    LATE = "late"  # it has waited as long as it may
    DEADLINE = "deadline"  # it would wait longer than it may, or its objective would be missed
    CAPACITY = "capacity"  # what there is goes to higher tiers


class Refused(Struct, frozen=True):
    """No engine will take the request soon. `retry_s`: seconds until it is worth another try. `tier`: in which it was
    refused."""

    why: Why
    retry_s: float
    tier: str = DEFAULT


Result = Placed | Refused | None  # None: no endpoint is available


class Candidate(Struct, frozen=True):
    """One endpoint as a placement sees it. Seconds are predictions: until the first token, by how much the answers that
    are generated there lengthen this one, what it costs those whose context is pushed
    out of the cache there, and how long those wait who come while it is computed."""

    endpoint: str
    available: bool
    reason: str
    events: Following
    in_flight: int
    cached: int
    cached_slow: int  # of those, tokens that lie in a slower tier than the accelerator's memory
    queued_s: float
    prefill_s: float
    predicted_s: float
    chosen: bool
    interference_s: float = 0.0
    displaced_s: float = 0.0
    delayed_s: float = 0.0
    group: Group = Group()


class Explanation(Struct, frozen=True):
    """What a placement would weigh. `before`: how many requests wait in the pool that would be placed before it.
    `predicted_s`: to its first token, with those. `refused`: why it would not be let in, if so."""

    candidates: list[Candidate]
    before: int = 0
    tier: str = DEFAULT  # that it would be served in
    weight: float = 1.0  # of its tenant
    predicted_s: float = 0.0
    refused: Refused | None = None


class Outcome(Struct, frozen=True):
    """How an attempt ended. What was not seen is None; seconds are from dispatch to first token, and from there on.
    `returns`: the answer ended in a tool call, whose result the agent will come back with; False where it ended
    otherwise."""

    prompt_tokens: int | None = None
    cached: int | None = None
    output: int | None = None
    first_token_s: float | None = None
    decode_s: float | None = None
    returns: bool | None = None


class Reading(Struct, frozen=True):
    """`context_length`: tokens that every endpoint of a pool that told of its own can take; None where none has.
    `lora`: the adapter that the pool serves, where it does."""

    context_length: int | None = None
    lora: str | None = None


class _Told(Protocol):
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def lora(self) -> str | None: ...


def reading(endpoints: Iterable[_Told]) -> Reading:
    length: int | None = None
    lora: str | None = None
    for one in endpoints:
        if one.max_model_len and (length is None or one.max_model_len < length):
            length = one.max_model_len
        lora = lora or one.lora
    return Reading(length, lora)


class Router(Protocol):
    """`place` and `explain` may wait for another process; the others only tell, and never raise."""

    async def place(self, ask: Ask) -> Result:
        """The endpoint to send the request to, its load booked; None when no endpoint is available. It may wait for one
        as long as `ask.patience_s`; cancelling it leaves nothing booked."""

    async def explain(self, ask: Ask) -> Explanation:
        """What `place` would weigh; books nothing."""

    def begun(self, booking: int) -> None:
        """The first token came: the request's prefill is in nobody's way any more."""

    def ended(self, booking: int, outcome: Outcome) -> None:
        """The attempt is over, however it ended. Telling it twice changes nothing."""

    def failed(self, pool: str, endpoint: str, reason: str, *, at_once: bool = False) -> None:
        """An exchange failed for the endpoint's fault. `at_once`: it is certainly gone (connection refused)."""

    def answered(self, pool: str, endpoint: str) -> None:
        """The endpoint answered a request."""

    def listen_evictions(self, tell: Callable[[int], None]) -> None:
        """Call `tell` with each booking that is to be stopped for a request of a higher tier. It stays booked until
        `ended` is told of it."""

    def states(self, pool: str) -> dict[str, EndpointState]:
        """The endpoints of a pool by name, as last heard."""

    def reading(self, pool: str) -> Reading:
        """What the endpoints of a pool say that concerns its prompts."""


def unplaced(role: Role) -> str:
    """Why nothing is placed on endpoints of a role; empty where requests are."""
    return "" if role is Role.UNIFIED else f"role {role} is not placed on yet"


