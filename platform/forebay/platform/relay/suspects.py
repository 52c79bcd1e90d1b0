"""Endpoints at which requests failed lately (pure). The request may have been at fault, so that alone takes none out, or
one tenant's poison would. It is enough to retry elsewhere first: an engine that fails at once is always idle, so without
this a few of them draw every attempt of a request that others would answer.
"""

SUSPECT_S = 60.0


class Suspects:
    """By pool and endpoint. `now` is of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}

    def __repr__(self) -> str:
        return f"<Suspects {list(self._until)}>"

    def add(self, pool: str, endpoint: str, now: float) -> None:
        self._until[pool, endpoint] = now + SUSPECT_S

    def clear(self, pool: str, endpoint: str) -> None:
        """It answered a request."""
        self._until.pop((pool, endpoint), None)

    def of(self, pool: str, now: float) -> tuple[str, ...]:
        """Those that have answered nobody since."""
        return tuple(name for (of, name), until in self._until.items() if of == pool and now < until)
