"""A router that does as it is told, for tests of what stands between it and its workers."""

from forebay.router.routing import Ask, Candidate, EndpointState, Following, Health, Outcome, Placed


class SharedRouter:
    """Places everything on its one endpoint, and notes what it hears. `booked`: the owner of each open booking."""

    def __init__(self) -> None:
        self.booked: dict[int, int] = {}
        self.heard: list[tuple[object, ...]] = []
        self.asked: list[Ask] = []
        self.endpoints = {"main": {"e-0": EndpointState("main", "e-0", Health.UP, "", 8192)}}
        self.next_booking = 1
        self.explained = 1

    def place(self, ask: Ask, owner: int) -> Placed | None:
        self.asked.append(ask)
        if ask.pool not in self.endpoints:
            return None
        booking = self.next_booking
        self.next_booking += 1
        alone = not self.booked
        self.booked[booking] = owner
        return Placed("e-0", booking, len(ask.keys), 0.5, alone)

    def explain(self, ask: Ask) -> list[Candidate]:
        candidate = Candidate("e-0", True, "", Following.NONE, len(self.booked), 0, 0, 0.0, 0.1, 0.1, True)
        return [candidate] * self.explained

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
