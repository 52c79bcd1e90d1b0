"""Requests that wait for an engine (pure): in the router, where their order and their place can still change.

An engine gets work only when it will start it soon. Tiers go by rank, but for those that would starve; in a rank the
tenant goes first that was served least, and of its requests the one that is due first: after the longer the more
prefill it is predicted to take and the more of its session is before it, but within half of what it may wait. So short
ones pass long ones, a session that runs one request passes a swarm, and nobody waits for ever.
"""

from collections.abc import Callable

from msgspec import Struct

from forebay.router.loads import NO_KEYS
from forebay.router.prefix.index import Match
from forebay.router.prefix.keys import Keys
from forebay.router.routing import Ask
from forebay.router.tiers import Tier

AGEING = 0.3  # seconds of prefill that a second of waiting is worth
EVEN_S = 30.0  # after which the longest prompt is due, as the shortest of those who come then
EVEN = 0.5  # of what it may wait, where that is sooner: it must begin while there is patience left
BEHIND_S = 5.0  # of prefill, that each request of the same session before it counts
START_S = 0.25  # an engine that is predicted to begin within this gets more work

_NEVER = float("inf")


class Waiting(Struct, eq=False):
    """`held`: what each endpoint has of the prompt, as of `held_at`. `home` and `prefill_s`: where it would go, and
    what it would take there. `until`: its deadline. `tier`: as it is served. `cost`: tokens that its tenant is charged.
    `cold_until`: how long it waits in a pool without endpoints, if it does. `turn`: of its session's requests in the
    line; `behind`: how many of those are before it, there or at engines. `due`: what it is ordered by."""

    number: int
    owner: int
    ask: Ask
    since: float
    until: float
    keys: Keys = NO_KEYS
    held: dict[str, Match] = {}
    held_at: float = float("-inf")
    weighed_at: float = float("-inf")
    home: str = ""
    prefill_s: float = 0.0
    tier: Tier = Tier()
    cost: float = 0.0
    turn: int = 0
    behind: int = 0
    due: float = 0.0
    cold_until: float = _NEVER
    came_s: float = 0.0  # of prefill, as it was let in
    came_at: float = 0.0

    @property
    def promised(self) -> bool:
        """It was admitted once, and had an engine."""
        return self.ask.promised

    @property
    def latest(self) -> float:
        """That its deadline can be put off to, however often the pool has no endpoint."""
        return self.since + self.ask.waited_s + self.ask.patience_s + self.tier.cold_s


Order = Callable[[Waiting], float]


def shortest_first(waiting: Waiting) -> float:
    seconds = waiting.prefill_s + BEHIND_S * waiting.behind
    even = max(1e-3, min(EVEN_S, EVEN * (waiting.until - waiting.since)))
    return waiting.since + seconds / (AGEING + max(0.0, seconds) / even)
