"""A router that does as it is told, for tests of what stands between it and its workers."""

from collections.abc import Callable

from forebay.router.routing import (
    Ask,
    Candidate,
    EndpointState,
    Explanation,
    Following,
    Health,
    Outcome,
    Placed,
    Refused,
    Result,
)


class SharedRouter:
    """Places everything on its one endpoint, at once or while it is `busy` when it is told to, and notes what it hears.
    `booked`: the owner of each open booking; `waiting`: who waits to be told, by number."""

    def __init__(self) -> None:
        self.busy = False
        self.waiting: dict[int, tuple[Ask, int, Callable[[Result], None]]] = {}
        self.booked: dict[int, int] = {}
        self.heard: list[tuple[object, ...]] = []
        self.asked: list[Ask] = []
        self.endpoints = {"main": {"e-0": EndpointState("main", "e-0", Health.UP, "", 8192)}}
        self.next_booking = 1
        self.explained = 1
        self.evicting: dict[int, Callable[[int], None]] = {}

    def place(self, ask: Ask, owner: int, tell: Callable[[Result], None]) -> int | None:
        self.asked.append(ask)
        if self.busy:
            self.waiting[len(self.asked)] = (ask, owner, tell)
            return len(self.asked)
        tell(self._booked(ask, owner))
        return None

    def within_s(self, number: int) -> float:
        return self.waiting[number][0].patience_s

    def listen_evictions(self, owner: int, tell: Callable[[int], None]) -> None:
        self.evicting[owner] = tell

    def withdraw(self, number: int) -> None:
        self.heard.append(("withdrawn", number))
        del self.waiting[number]

    def settle(self, refused: Refused | None = None) -> None:
        """Place, or refuse, whoever has waited longest."""
        ask, owner, tell = self.waiting.pop(min(self.waiting))
        tell(refused or self._booked(ask, owner))

    def _booked(self, ask: Ask, owner: int) -> Placed | None:
        if ask.pool not in self.endpoints:
            return None
        booking = self.next_booking
        self.next_booking += 1
        alone = not self.booked
        self.booked[booking] = owner
        return Placed("e-0", booking, len(ask.keys), 0.5, alone)

    def explain(self, ask: Ask) -> Explanation:
        candidate = Candidate("e-0", True, "", Following.NONE, len(self.booked), 0, 0, 0.0, 0.1, 0.1, True)
        return Explanation([candidate] * self.explained, len(self.waiting))

    def begun(self, booking: int) -> None:
        self.heard.append(("begun", booking))

    def ended(self, booking: int, outcome: Outcome) -> None:
        self.booked.pop(booking, None)
        self.heard.append(("ended", booking, outcome))

    def failed(self, pool: str, endpoint: str, reason: str, *, at_once: bool = False) -> None:
        self.heard.append(("failed", pool, endpoint, reason, at_once))

    def answered(self, pool: str, endpoint: str) -> None:
        self.heard.append(("answered", pool, endpoint))

    def states(self, pool: str) -> dict[str, EndpointState]:
        return self.endpoints.get(pool, {})

    def release_owner(self, owner: int) -> None:
        self.booked = {booking: other for booking, other in self.booked.items() if other != owner}
        self.waiting = {number: one for number, one in self.waiting.items() if one[1] != owner}
