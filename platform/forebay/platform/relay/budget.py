"""How many requests may be sent to a second engine (pure): retries must not multiply the load that made them needed."""

from collections import Counter, deque

from msgspec import Struct, field

SHARE = 0.2
SOME = 64  # failovers that there may always be, within a window: about the streams of one engine, when it dies
PART = 0.5  # of all that there may be, those of one tenant: its requests may be what engines fail at
WINDOW_S = 60.0
_SLOT_S = 1.0


class _Slot(Struct):
    began: float
    requests: int = 0
    failovers: int = 0
    by_tenant: Counter[str] = field(default_factory=Counter)


class Budget:
    """In each window as many failovers as `SHARE` of its requests, and `some` more. `now` is of one monotonic clock."""

    def __init__(self, some: int = SOME) -> None:
        self._some = some
        self._slots: deque[_Slot] = deque()

    def __repr__(self) -> str:
        return f"<Budget {self._sums()}>"

    def request(self, now: float) -> None:
        self._slot(now).requests += 1

    def failover(self, now: float, tenant: str = "") -> bool:
        """Whether one more may be made; it counts from here on. Where a tenant is named, it may make `PART` of all."""
        slot = self._slot(now)
        requests, failovers = self._sums()
        most = self._some + SHARE * requests
        its = sum(one.by_tenant[tenant] for one in self._slots) if tenant else 0
        if failovers + 1 > most or its + 1 > PART * most:
            return False
        slot.failovers += 1
        if tenant:
            slot.by_tenant[tenant] += 1
        return True

    def _sums(self) -> tuple[int, int]:
        return sum(slot.requests for slot in self._slots), sum(slot.failovers for slot in self._slots)

    def _slot(self, now: float) -> _Slot:
        slots = self._slots
        while slots and slots[0].began <= now - WINDOW_S:
            slots.popleft()
        if not slots or now - slots[-1].began >= _SLOT_S:
            slots.append(_Slot(now))
        return slots[-1]
