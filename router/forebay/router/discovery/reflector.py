"""Keeps a list of the Kubernetes API as it is now: listed once, then watched, in a thread of its own.

While the API server is away, or answers nonsense, what was known last stays.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from forebay.router.discovery.store import ContentError, ExpiredError, Store

log = logging.getLogger(__name__)
T = TypeVar("T")

PAUSES_S = (0.5, 30.0)  # after a failure, doubled each time
SHORT_S = 1.0  # a watch that ends sooner, without a word, counts as a failure


class AwayError(Exception):
    """The API server does not answer, or refuses."""


class Watching(Protocol):
    """Lines of a watch until the server ends it. Raises `AwayError`, `ExpiredError`."""

    def __iter__(self) -> Iterator[bytes]: ...

    def close(self) -> None:
        """Also from another thread: then it ends."""


class Source(Protocol):
    """One kind of objects. Both raise `AwayError`, `ExpiredError`."""

    def page(self, token: str) -> bytes:
        """A page of the list: the first one, or the one that `token` asks for."""

    def watch(self, version: str) -> Watching: ...


class Reflector(Generic[T]):
    """`what` it is called in logs. `changed` is called in the reflector's thread, whenever there is something new."""

    def __init__(
        self,
        what: str,
        source: Source,
        kind: type[T],
        changed: Callable[[], None],
        *,
        pauses: tuple[float, float] = PAUSES_S,
    ) -> None:
        self.what = what
        self.synced = False
        self.away = ""  # why the API cannot be followed at the moment
        self.away_at = 0.0  # since when, on the monotonic clock
        self.lists = 0
        self._source = source
        self._store: Store[T] = Store(kind)
        self._changed = changed
        self._pauses = pauses
        self._pause = pauses[0]
        self._ending = threading.Event()
        self._watching: Watching | None = None
        self._thread = threading.Thread(target=self._run, name=f"kubernetes {what}", daemon=True)

    def __repr__(self) -> str:
        return f"<Reflector of {self.what}: {self._store}{f', away: {self.away}' if self.away else ''}>"

    @property
    def items(self) -> dict[str, T]:
        """By name, as known last."""
        return self._store.items

    @property
    def odd(self) -> int:
        """Objects that could not be read."""
        return self._store.odd

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Its thread ends soon; it is never waited for."""
        self._ending.set()
        if (watching := self._watching) is not None:
            watching.close()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                if not self._store.version:
                    self._list()
                self._watch()
            except ExpiredError as error:
                log.info("%s are listed anew: %s", self.what, error)
                self._store.expire()
                self._rest()
            except (AwayError, ContentError) as error:
                self._failed(str(error))
            except Exception as error:
                log.exception("following %s failed", self.what)
                self._failed(f"{type(error).__name__}: {error}")

    def _list(self) -> None:
        self._store.begin()
        token = self._store.page(self._source.page(""))
        while token and not self._ending.is_set():
            token = self._store.page(self._source.page(token))
        self.lists += 1
        self.synced = True
        self._heard()
        self._changed()

    def _watch(self) -> None:
        began, said = time.monotonic(), False
        watching = self._watching = self._source.watch(self._store.version)
        try:
            self._heard()
            for line in watching:
                if self._ending.is_set():
                    return
                if line.strip():
                    said = True
                    changed = self._store.event(line)
                    self._pause = self._pauses[0]
                    self._heard()
                    if changed:
                        self._changed()
        finally:
            self._watching = None
            watching.close()
        if not said and time.monotonic() - began < SHORT_S:
            self._rest()
        else:
            self._pause = self._pauses[0]

    def _heard(self) -> None:
        if self.away:
            log.info("%s can be followed again", self.what)
            self.away = ""
            self._changed()

    def _failed(self, reason: str) -> None:
        if self._ending.is_set():
            return
        if self.away != reason:
            log.warning("%s cannot be followed, and stay as they were known last: %s", self.what, reason[:500])
        if not self.away:
            self.away_at = time.monotonic()
        self.away = reason[:500]
        self._changed()
        self._rest()

    def _rest(self) -> None:
        self._ending.wait(self._pause * random.uniform(0.7, 1.3))  # noqa: S311 - replicas should not come all at once
        self._pause = min(2 * self._pause, self._pauses[1])
