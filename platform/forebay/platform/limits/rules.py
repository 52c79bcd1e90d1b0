"""What is limited, and what a request asks of each limit (pure)."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

MOST = 10**12
ALL_MODELS = ""
Number = Annotated[int, Meta(ge=0, le=MOST)]


class Level(StrEnum):
    KEY = "key"
    PROJECT = "project"
    TENANT = "tenant"


class Kind(StrEnum):
    """Named like the members of `Limits`. The last two are of slots, which are held; the others of windows."""

    REQUESTS = "requests_per_minute"
    INPUT = "input_tokens_per_minute"
    OUTPUT = "output_tokens_per_minute"
    CONCURRENT = "concurrent_requests"
    QUEUED = "queued_requests"

    @property
    def held(self) -> bool:
        return self in _SLOTS


_SLOTS = (Kind.CONCURRENT, Kind.QUEUED)
_GATE = (Kind.REQUESTS, Kind.CONCURRENT)
_SHORT = {Kind.REQUESTS: b"r", Kind.INPUT: b"i", Kind.OUTPUT: b"o", Kind.CONCURRENT: b"c", Kind.QUEUED: b"q"}


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """None: unlimited; 0: nothing passes. Input tokens are those that no cache holds. `concurrent_requests`: from their
    arrival to the end of their answer; `queued_requests`: of these, those that no engine has been given yet."""

    requests_per_minute: Number | None = None
    input_tokens_per_minute: Number | None = None
    output_tokens_per_minute: Number | None = None
    concurrent_requests: Number | None = None
    queued_requests: Number | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, kind) is not None for kind in Kind)


class Limit(Struct, frozen=True):
    """The limits of one key, project or tenant (`owner` is its id), for one model or, with an empty name, for all of
    them together."""

    level: Level
    owner: str
    model: str
    limits: Limits


class Check(Struct, frozen=True):
    """What a request asks of one limit. `key` names the limit's count in Valkey."""

    kind: Kind
    level: Level
    model: str
    limit: int
    cost: int
    key: bytes

    @property
    def never(self) -> bool:
        """Not even an empty window has room for it."""
        return self.cost > self.limit


def gate(limits: Iterable[Limit], root: bytes) -> list[Check]:
    """What is asked before the body is read, when the model is not known."""
    return [
        _check(one, kind, 1, root)
        for one in limits
        if one.model == ALL_MODELS
        for kind in _GATE
        if getattr(one.limits, kind) is not None
    ]


def whole(limits: Iterable[Limit], root: bytes, model: str, costs: dict[Kind, int]) -> list[Check]:
    """What else is asked when the prompt is known. Kinds that cost nothing are left out. How long an answer becomes is
    a guess, which alone shall refuse nobody: it costs no more than a whole window has."""
    found = []
    for one in limits:
        if one.model not in (ALL_MODELS, model):
            continue
        for kind in Kind:
            limit = getattr(one.limits, kind)
            if limit is None or (one.model == ALL_MODELS and kind in _GATE):
                continue
            cost = costs.get(kind, 1 if kind.held or kind is Kind.REQUESTS else 0)
            if cost and kind is Kind.OUTPUT and limit:
                cost = min(cost, limit)
            if cost:
                found.append(_check(one, kind, cost, root))
    return found


def unread(limits: Iterable[Limit], root: bytes) -> list[Check]:
    """Those on tokens that hold whatever the model, of a request that has asked nothing of them yet."""
    return [
        _check(one, kind, 0, root)
        for one in limits
        if one.model == ALL_MODELS
        for kind in (Kind.INPUT, Kind.OUTPUT)
        if getattr(one.limits, kind) is not None
    ]


def counts_input(limits: Iterable[Limit], model: str) -> bool:
    return any(one.model in (ALL_MODELS, model) and one.limits.input_tokens_per_minute is not None for one in limits)


def _check(one: Limit, kind: Kind, cost: int, root: bytes) -> Check:
    key = b":".join((root, one.owner.encode(), _SHORT[kind], one.model.encode()))
    return Check(kind, one.level, one.model, getattr(one.limits, kind), cost, key)
