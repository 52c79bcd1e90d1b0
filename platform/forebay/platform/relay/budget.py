"""How many requests may be sent to a second engine (pure): retries must not multiply the load that made them needed."""

from collections import deque

SHARE = 0.2
SOME = 64  # failovers that there may always be, within a window: about the streams of one engine, when it dies
WINDOW_S = 60.0
_SLOT_S = 1.0


class Budget:
    """In each window as many failovers as `SHARE` of its requests, and `SOME` more. `now` is of one monotonic clock."""

    def __init__(self) -> None:
        self._slots: deque[list[float]] = deque()  # when it began, requests, failovers

    def __repr__(self) -> str:
        return f"<Budget {self._sums()}>"

    def request(self, now: float) -> None:
        self._slot(now)[1] += 1

    def failover(self, now: float) -> bool:
        """Whether one more may be made; it counts from here on."""
        slot = self._slot(now)
        requests, failovers = self._sums()
        if failovers + 1 > SOME + SHARE * requests:
            return False
        slot[2] += 1
        return True

    def _sums(self) -> tuple[float, float]:
        return sum(slot[1] for slot in self._slots), sum(slot[2] for slot in self._slots)

    def _slot(self, now: float) -> list[float]:
        slots = self._slots
        while slots and slots[0][0] <= now - WINDOW_S:
            slots.popleft()
        if not slots or now - slots[-1][0] >= _SLOT_S:
            slots.append([now, 0, 0])
        return slots[-1]
