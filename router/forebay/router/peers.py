"""What other front doors have booked on the same endpoints, by their reports (pure).

A report is everything that one process has booked at one moment, and replaces the one before. Its age is reckoned from
when it is heard, on our own clock: what clocks say elsewhere does not matter. A peer that is silent is let go of. Until
then its queue becomes shorter with time as ours does, since it is the same engine that works it off.

With it go the steps that contexts have taken since the last one. They are told once: one that is lost leaves a price a
little wrong, and the context's next step sets it right.

The sums that placement reads are changed when a report is heard, so a placement costs the same whatever the peers.
"""

import logging
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, field

from forebay.router.contexts import MOST_STEPS, Step
from forebay.router.core_pool import CorePool
from forebay.router.loads import NOTHING, Load, Share
from forebay.router.member import Member

log = logging.getLogger(__name__)

LASTING_S = 3.0  # that a report counts for, unless another comes
MOST_PEERS = 64
MOST_ENTRIES = 4096  # endpoints in one report
_MOST_REQUESTS = 1 << 20  # at one endpoint, of one front door
_MOST_TOKENS = 1 << 40


class Entry(Struct, frozen=True, array_like=True):
    pool: str
    endpoint: str
    share: Share


class Report(Struct, frozen=True, array_like=True):
    """What a front door has booked: an endpoint that is left out has nothing. `replica` is of one life of one process,
    and `number` grows with each of its reports. `steps`: what its requests made of contexts since the one before, by
    pool; what is lost of them is not told again."""

    replica: Annotated[str, Meta(min_length=1, max_length=200)]
    number: int
    entries: list[Entry]
    steps: dict[str, list[Step]] = {}


class Refusal(StrEnum):
    """Why a report was not taken."""

    LATE = "late"  # a later one was heard before it
    MANY = "many"  # it is of one peer too many
    LONG = "long"  # it names more endpoints than anybody has


class Sharing(StrEnum):
    OFF = "off"
    STARTING = "starting"
    UP = "up"
    DOWN = "down"


class Contact(Struct, frozen=True):
    """How reports come and go, as who carries them says it. `since`: Unix seconds."""

    sharing: Sharing = Sharing.OFF
    since: float = 0.0
    error: str = ""


class _Peer(Struct):
    number: int
    heard_at: float
    held: dict[tuple[str, str], tuple[Load, Share]] = field(default_factory=dict)  # its part of which load


class Peers:
    """`pools` are the core's own, and may change."""

    def __init__(self, pools: Mapping[str, CorePool]) -> None:
        self.contact = Contact()
        self._pools = pools
        self._peers: dict[str, _Peer] = {}

    def __repr__(self) -> str:
        return f"<Peers {sorted(self._peers)} {self.contact.sharing}>"

    def __len__(self) -> int:
        return len(self._peers)

    def own(self) -> list[Entry]:
        """What to report."""
        loads = ((pool.name, member.load) for pool in self._pools.values() for member in pool.members.values())
        entries = [
            Entry(pool, load.endpoint, load.own) for pool, load in loads if load.in_flight > load.peers.in_flight
        ]
        return entries[:MOST_ENTRIES]

    def steps(self) -> dict[str, list[Step]]:
        """To report with it, once."""
        found: dict[str, list[Step]] = {}
        for name, pool in self._pools.items():
            steps = pool.contexts.steps
            if steps and sum(map(len, found.values())) + len(steps) <= MOST_STEPS:
                found[name] = list(steps)
                steps.clear()
        return found

    def hear(self, report: Report, now: float) -> Refusal | None:
        """Take a peer's report. Entries of endpoints that are not known here, and numbers that cannot be, are left
        out."""
        peer = self._peers.get(report.replica)
        if len(report.entries) > MOST_ENTRIES:
            return Refusal.LONG
        if peer is None and len(self._peers) >= MOST_PEERS:
            return Refusal.MANY
        if peer is not None and report.number <= peer.number:
            return Refusal.LATE
        if peer is None:
            peer = self._peers[report.replica] = _Peer(report.number, now)
            log.info("front door %r is there: its load is reckoned with", report.replica)
        peer.number, peer.heard_at = report.number, now
        self._replace(peer, report.entries, now)
        for name, steps in report.steps.items():
            if (pool := self._pools.get(name)) is not None:
                pool.stepped(steps[-MOST_STEPS:], now)
        return None

    def expire(self, now: float) -> None:
        """Let go of peers that are silent."""
        for replica in [name for name, peer in self._peers.items() if now - peer.heard_at > LASTING_S]:
            for load, share in self._peers.pop(replica).held.values():
                load.forget(share)
            log.info("front door %r is silent: its load is let go of", replica)

    def _replace(self, peer: _Peer, entries: Iterable[Entry], now: float) -> None:
        before, peer.held = peer.held, {}
        for key, (pool, member, share) in self._found(entries).items():
            load, held = before.get(key, (member.load, NOTHING))
            if load is not member.load:  # the endpoint was taken away, and another one came under its name
                held = NOTHING
            else:
                before.pop(key, None)
            if share != held:
                pool.heard(member, held, share, now)
            peer.held[key] = member.load, share
        for load, held in before.values():
            load.forget(held)

    def _found(self, entries: Iterable[Entry]) -> dict[tuple[str, str], tuple[CorePool, Member, Share]]:
        found = {}
        for entry in entries:
            pool = self._pools.get(entry.pool)
            member = pool.members.get(entry.endpoint) if pool is not None else None
            if pool is not None and member is not None and _possible(entry.share):
                found[entry.pool, entry.endpoint] = pool, member, entry.share
        return found


def _possible(share: Share) -> bool:
    return (
        0 < share.in_flight <= _MOST_REQUESTS
        and 0 <= share.output <= _MOST_TOKENS
        and 0 <= share.silent <= share.prefill <= _MOST_TOKENS
        and share.booked >= share.prefill
        and share.came >= 0
    )
