"""Endpoints at which requests failed lately (pure). A request may have been at fault itself, so that takes none out, or
one tenant's poison would. It is enough to retry elsewhere first: an engine that fails at once is always idle, and
without this a few of them draw every attempt of a request that others would answer.

One that was silent until a request's time was over gets no first attempts either, but for one now and then: its probes
may be answered by a process whose engine hangs, and whoever has a context there would be sent there for ever.
"""

from msgspec import Struct

SUSPECT_S = 60.0


class _Suspect(Struct):
    until: float
    silent: bool


class Suspects:
    """By pool and endpoint. `now` is of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Suspect] = {}

    def __repr__(self) -> str:
        return f"<Suspects {self._known}>"

    def add(self, pool: str, endpoint: str, now: float, *, silent: bool = False) -> None:
        """A request failed there; `silent`: it was not answered in time."""
        known = self._known.get((pool, endpoint))
        self._known[pool, endpoint] = _Suspect(now + SUSPECT_S, silent or (known is not None and known.silent))

    def clear(self, pool: str, endpoint: str) -> None:
        """It answered a request."""
        self._known.pop((pool, endpoint), None)

    def asked(self, pool: str, endpoint: str, now: float) -> None:
        """A request is sent there. To a silent one no other follows until it is known what became of this."""
        known = self._known.get((pool, endpoint))
        if known is not None and known.silent:
            known.until = now + SUSPECT_S

    def of(self, pool: str, now: float, *, again: bool) -> tuple[str, ...]:
        """Those to keep away from with an attempt, the first one or `again`."""
        if not self._known:
            return ()
        return tuple(
            name
            for (of, name), suspect in self._known.items()
            if of == pool and now < suspect.until and (again or suspect.silent)
        )
