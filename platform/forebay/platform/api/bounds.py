"""What keeps one project from taking what all share: requests in flight, memory for bodies and whole answers, turns at
decoding."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from forebay.platform.errors import ApiError, unavailable


class Gate:
    """Bounds on what is being answered at once, in all and per project, here and by other workers as last heard."""

    def __init__(self, total: int, per_project: int) -> None:
        self._total = total
        self._per_project = per_project
        self._projects: dict[str, int] = {}
        self._elsewhere: dict[str, int] = {}
        self._elsewhere_in_all = 0
        self.in_flight = 0
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()

    def enter(self, project_id: str) -> None:
        """Raises `ApiError` 503 or 429; otherwise `leave` must follow."""
        if self.draining:
            raise unavailable("shutting_down", "This server is shutting down. Please try again.", retry_after=1)
        if self.in_flight + self._elsewhere_in_all >= self._total:
            raise _overloaded()
        mine = self._projects.get(project_id, 0)
        everywhere = mine + self._elsewhere.get(project_id, 0)
        if everywhere >= self._per_project:
            raise _too_much(
                f"Your project has {everywhere} requests in flight; the limit is {self._per_project}.",
                "project_concurrency",
                self._per_project,
            )
        self._projects[project_id] = mine + 1
        self.in_flight += 1
        self.idle.clear()

    def leave(self, project_id: str) -> None:
        self.in_flight -= 1
        left = self._projects[project_id] - 1
        if left:
            self._projects[project_id] = left
        else:
            del self._projects[project_id]
        if not self.in_flight:
            self.idle.set()

    @property
    def by_project(self) -> dict[str, int]:
        """Requests in flight here."""
        return self._projects

    def hear(self, elsewhere: dict[str, int]) -> None:
        """Other workers' requests in flight by project."""
        self._elsewhere = elsewhere
        self._elsewhere_in_all = sum(elsewhere.values())


class Memory:
    """Bytes of bodies and of whole answers that are held at once, in all and per project; one body of the largest size
    always fits."""

    def __init__(self, total: int, per_project: int, *, body_limit: int) -> None:
        self._total = max(total, body_limit)
        self._per_project = max(per_project, body_limit)
        self._projects: Counter[str] = Counter()
        self.held = 0

    def hold(self, project_id: str) -> "Held":
        return Held(self, project_id)

    def take(self, project_id: str, size: int) -> None:
        """Raises `ApiError` 503 or 429."""
        mine = self._projects[project_id] + size
        if mine > self._per_project:
            raise _too_much(
                f"The bodies and whole answers of your project's requests in flight exceed {self._per_project} bytes.",
                "project_body_bytes",
                self._per_project,
            )
        if self.held + size > self._total:
            raise _overloaded()
        self._projects[project_id] = mine
        self.held += size

    def give(self, project_id: str, size: int) -> None:
        self.held -= size
        self._projects[project_id] -= size
        if not self._projects[project_id]:
            del self._projects[project_id]


class Held:
    """One request's share of the memory, given back when the block ends."""

    def __init__(self, memory: Memory, project_id: str) -> None:
        self._memory = memory
        self._project_id = project_id
        self._size = 0

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.give(self._project_id, self._size)

    def at_least(self, size: int) -> None:
        """Raises `ApiError` 503 or 429."""
        if size > self._size:
            self.more(size - self._size)

    def more(self, size: int) -> None:
        """Raises `ApiError` 503 or 429."""
        self._memory.take(self._project_id, size)
        self._size += size


class Turns:
    """So many at a time. Of a project's requests only one stands in the queue or has a turn, so that another project's
    is soon next."""

    def __init__(self, width: int = 1) -> None:
        self._some = asyncio.Semaphore(width)
        self._projects: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def take(self, project_id: str) -> AsyncIterator[None]:
        mine = self._projects.get(project_id)
        if mine is None:
            mine = self._projects[project_id] = asyncio.Lock()
        async with mine, self._some:
            yield


def _overloaded() -> ApiError:
    return unavailable("server_overloaded", "The server is at capacity. Please try again.", retry_after=1)


def _too_much(message: str, limit: str, value: int) -> ApiError:
    return ApiError(
        429,
        "concurrency_limit_exceeded",
        message,
        headers={"retry-after": "1"},
        metadata={"limit": limit, "value": value},
    )
