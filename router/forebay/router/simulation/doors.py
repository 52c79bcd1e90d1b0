"""Several front doors before the same engines, as a policy of the simulation: each with a core of its own.

Requests come to any of them, a conversation's next turn too, as behind a load balancer that knows no sessions. All hear
all KV events. What each has booked and what became of contexts the others hear by its reports, as they do live and a
little later; nothing else.
"""

import random
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from forebay.router.peers import Report
from forebay.router.reporting import Reporter
from forebay.router.simulation.blocks import Change
from forebay.router.simulation.engine import Engine, Request
from forebay.router.simulation.live import Forebay, Prompts
from forebay.router.simulation.policies import Send

HEARD_AFTER_S = 0.005  # from a report until others have taken it: Valkey, and two event loops that are busy
_NEVER = float("inf")


class _Door(Struct, eq=False):
    policy: Forebay
    reporter: Reporter
    looked_at: float  # when it last looked whether to report
    stirred: bool = True  # something may have changed since

    def looks_at(self) -> float:
        """When it looks next, as far as it can matter."""
        return self.looked_at + self.reporter.pause_s if self.stirred else max(self.looked_at, self.reporter.due)

    def look(self, now: float) -> Report | None:
        self.stirred = False
        self.looked_at = now
        return self.reporter.report(now)


class Doors:
    """`shares`: whether they report to each other."""

    def __init__(
        self, engines: Sequence[Engine], send: Send, seed: int, *, count: int = 2, shares: bool = True
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 - repeatable
        self._prompts = Prompts(engines[0].spec.block)
        self._shares = shares
        self._coming: deque[tuple[float, _Door, Report]] = deque()  # reports on their way
        self._had: dict[int, tuple[_Door, Request]] = {}
        self._doors = [self._door(Forebay(engines, send, seed, self._prompts), f"door-{at}") for at in range(count)]
        self.wake_at = 0.0

    def _door(self, policy: Forebay, name: str) -> _Door:
        reporter = Reporter(policy.core.peers, name)
        return _Door(policy, reporter, self._random.uniform(-reporter.pause_s, 0))

    @property
    def doors(self) -> list[Forebay]:
        """Those that are there."""
        return [door.policy for door in self._doors]

    def kill(self, number: int) -> list[Request]:
        """It is gone with all that it knew, and the others are not told. Requests that it had."""
        door = self._doors.pop(number)
        lost = [request for had, request in self._had.values() if had is door]
        for request in lost:
            del self._had[request.number]
        return lost

    # -- the policy

    def asked(self, request: Request, now: float) -> None:
        door = self._random.choice(self._doors)
        self._had[request.number] = door, request
        door.policy.asked(request, now)
        self._stir(door, now)

    def begun(self, request: Request, now: float) -> None:
        door, _ = self._had[request.number]
        door.policy.begun(request, now)
        self._stir(door, now)

    def ended(self, request: Request, now: float) -> None:
        door, _ = self._had.pop(request.number)
        door.policy.ended(request, now)
        self._stir(door, now)

    def news(self, engine: int, changes: Sequence[Change], now: float) -> None:
        events = [self._prompts.event(change) for change in changes]
        for door in self._doors:
            door.policy.heard(engine, events)

    def wake(self, now: float) -> None:
        self._deliver(now)
        for door in self._doors:
            if door.policy.wake_at <= now:
                door.policy.wake(now)
                self._stir(door, now)
            if self._shares and door.looks_at() <= now and (report := door.look(now)) is not None:
                self._coming.extend((now + HEARD_AFTER_S, other, report) for other in self._doors if other is not door)
        self._wake_again()

    def _deliver(self, now: float) -> None:
        while self._coming and self._coming[0][0] <= now:
            _, door, report = self._coming.popleft()
            door.reporter.hear(report, now)

    def _stir(self, door: _Door, now: float) -> None:
        """It may have booked something. It looks at a steady pace, whether or not that was simulated."""
        if not door.stirred:
            door.stirred = True
            pause_s = door.reporter.pause_s
            door.looked_at += (now - door.looked_at) // pause_s * pause_s
        self._wake_again()

    def _wake_again(self) -> None:
        at = min(door.policy.wake_at for door in self._doors)
        if self._shares:
            at = min(at, self._coming[0][0] if self._coming else _NEVER, *(door.looks_at() for door in self._doors))
        self.wake_at = at
