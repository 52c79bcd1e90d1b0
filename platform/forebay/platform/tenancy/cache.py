"""What a process remembers about keys. Pure: no clock, no socket; seconds come in as arguments.

Two bounded tables, least recently used out first: keys that authenticate, and refusals, which last only moments. They
are apart so that a stranger who guesses keys cannot push known ones out.

A load that reads the database while a change arrives must not be remembered if the change concerns it. Loads therefore
announce themselves with `begin`, and `finish` says whether what was read may still be believed.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

from forebay.platform.errors import ApiError
from forebay.platform.tenancy.principal import Principal

Kind = Literal["tenant", "project", "key"]


class Change(NamedTuple):
    kind: str  # a Kind, or one that a newer program has added
    id: str


class Refusal(Struct, frozen=True):
    """Why a key is turned away. Its ids are empty if no key of that name exists."""

    status: int
    code: str
    message: str
    ids: tuple[str, ...] = ()

    def error(self) -> ApiError:
        headers = {"www-authenticate": "Bearer"} if self.status == 401 else None
        return ApiError(self.status, self.code, self.message, headers=headers)


class Known(Struct):
    """A key that authenticates. `ended` is set when its expiry has been seen to pass, and never unset."""

    principal: Principal
    expires_at: float | None
    ended: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        return (self.principal.key_id, self.principal.project_id, self.principal.tenant_id)


class Load:
    """A database read in progress, and what changed during it."""

    __slots__ = ("changed", "cleared")

    def __init__(self) -> None:
        self.changed: set[Change] = set()
        self.cleared = False

    def overtaken(self, found: Known | Refusal) -> bool:
        if self.cleared:
            return True
        if not found.ids:
            return any(change.kind == "key" for change in self.changed)  # it may have been created meanwhile
        return any(change.id in found.ids for change in self.changed)


class KeyCache:
    """Keyed by a digest of the key's text."""

    def __init__(self, capacity: int, refusals: int, refusal_ttl: float) -> None:
        self._capacity = capacity
        self._refusal_capacity = refusals
        self._refusal_ttl = refusal_ttl
        self._known: dict[bytes, Known] = {}
        self._refused: dict[bytes, tuple[float, Refusal]] = {}
        self._by_id: defaultdict[str, set[bytes]] = defaultdict(set)
        self._loads: set[Load] = set()

    def __repr__(self) -> str:
        return f"<KeyCache {len(self._known)} known, {len(self._refused)} refused, {len(self._loads)} loading>"

    def __len__(self) -> int:
        return len(self._known)

    def known(self, digest: bytes) -> Known | None:
        entry = self._known.get(digest)
        if entry is not None:
            self._known[digest] = self._known.pop(digest)  # newest last
        return entry

    def refused(self, digest: bytes, now: float) -> Refusal | None:
        found = self._refused.get(digest)
        if found is None:
            return None
        if found[0] <= now:
            del self._refused[digest]
            return None
        return found[1]

    def begin(self) -> Load:
        load = Load()
        self._loads.add(load)
        return load

    def finish(
        self, load: Load, digest: bytes, found: Known | Refusal | None, now: float, *, keep: bool = True
    ) -> bool:
        """End a load; remember what it found if `keep`. False: changes overtook it, so it has to be read again."""
        self._loads.discard(load)
        if found is None or load.overtaken(found):
            return False
        if keep:
            self._remember(digest, found, now)
        return True

    def apply(self, changes: Iterable[Change] | None) -> None:
        """Forget whatever the changes concern; None: everything, because changes may have been missed."""
        if changes is None:
            self._known.clear()
            self._refused.clear()
            self._by_id.clear()
            for load in self._loads:
                load.cleared = True
            return
        for change in changes:
            for digest in self._by_id.pop(change.id, ()):
                self._forget(digest)
            for load in self._loads:
                load.changed.add(change)
            if change.kind == "key":
                self._refused.clear()  # a key that was refused as unknown may exist now

    def _remember(self, digest: bytes, found: Known | Refusal, now: float) -> None:
        self._forget(digest)
        if isinstance(found, Refusal):
            self._refused[digest] = (now + self._refusal_ttl, found)
            if len(self._refused) > self._refusal_capacity:
                self._forget(next(iter(self._refused)))
        else:
            self._known[digest] = found
            if len(self._known) > self._capacity:
                self._forget(next(iter(self._known)))
        for identifier in found.ids:
            if identifier:
                self._by_id[identifier].add(digest)

    def _forget(self, digest: bytes) -> None:
        known = self._known.pop(digest, None)
        refused = self._refused.pop(digest, None)
        for entry in (known, refused and refused[1]):
            for identifier in entry.ids if entry else ():
                digests = self._by_id.get(identifier)
                if digests is not None:
                    digests.discard(digest)
                    if not digests:
                        del self._by_id[identifier]
