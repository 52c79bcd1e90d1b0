"""From a request's headers to a Principal, or to the error that says why not.

`cached` answers from memory in a microsecond or two and never waits. `authenticate` asks Postgres when it must, once
for all who wait for the same key. Revocations and other changes arrive through the change feed; while that is broken,
known keys are honoured for `staleness` seconds and then nobody is: with 503, never 401, since the key may be good.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any

import msgspec
from prometheus_client import Counter
from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Price
from forebay.platform.errors import ApiError, unavailable
from forebay.platform.limits.records import parsed
from forebay.platform.stores.database import ERRORS
from forebay.platform.tenancy.cache import KeyCache, Known, Refusal
from forebay.platform.tenancy.feed import ChangeFeed, elapsed
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.keys import prefix_of
from forebay.platform.tenancy.principal import Principal, Scope

logger = logging.getLogger(__name__)

LOADS = Counter("forebay_auth_loads_total", "Keys looked up in Postgres, by outcome", ["outcome"])

_INVALID = "invalid_api_key"
_MISSING = Refusal(401, _INVALID, "No API key was sent. Send it in a header: 'Authorization: Bearer <key>'.")
_SCHEME = Refusal(401, _INVALID, "The Authorization header does not have the form 'Bearer <key>'.")
_MALFORMED = Refusal(401, _INVALID, "This is not an API key of this service; check that it was copied whole.")
_UNKNOWN = Refusal(401, _INVALID, "There is no such API key.")
_AWAY = Refusal(503, "authentication_unavailable", "Keys cannot be checked at the moment. Try again shortly.")
_BUSY = Refusal(503, "authentication_overloaded", "Too many unknown keys are being checked. Try again shortly.")

_SCOPES = {str(scope): scope for scope in Scope}
_ATTEMPTS = 3
_prices = msgspec.json.Decoder(tuple[Price, ...]).decode

_FIND = text("""
    SELECT k.id, k.kind, k.project_id, k.hash, k.pepper_id, k.scopes, k.revoked_at IS NOT NULL AS revoked,
           extract(epoch FROM k.expires_at)::float8 AS expires_at, k.expires_at <= clock_timestamp() AS expired,
           p.tenant_id, p.models, p.tiers, t.status, coalesce(t.weight, 1) AS weight,
           (SELECT json_agg(to_jsonb(l) ORDER BY l.level, l.model)::text FROM limits l
            WHERE l.owner IN (k.id, p.id, t.id)) AS limits,
           (SELECT json_agg(json_build_object(
                'model', v.model, 'version', v.version, 'effective_from', extract(epoch FROM v.effective_from)::float8,
                'currency', v.currency, 'input', v.input::text, 'output', v.output::text,
                'cache_read', v.cache_read::text, 'cache_write', v.cache_write::text, 'tenant_id', v.tenant_id
            ) ORDER BY v.effective_from)::text FROM price_versions v
            WHERE v.tenant_id = t.id AND v.effective_from >= coalesce((
                SELECT max(w.effective_from) FROM price_versions w
                WHERE w.tenant_id = v.tenant_id AND w.model = v.model
                AND w.effective_from <= now() - interval '1 day' -- the clock here may be behind
            ), '-infinity')) AS prices
    FROM api_keys k LEFT JOIN projects p ON p.id = k.project_id LEFT JOIN tenants t ON t.id = p.tenant_id
    WHERE k.prefix = :prefix
""")
_REHASH = text("UPDATE api_keys SET hash = :hash, pepper_id = :new WHERE id = :id AND pepper_id = :old")


def bearer(authorization: bytes | None, api_key: bytes | None = None) -> bytes:
    """The key in `Authorization: Bearer …` or, without that header, in `x-api-key`. Raises ApiError 401."""
    if authorization:
        if authorization[:7].lower() != b"bearer ":
            raise _SCHEME.error()
        token = authorization[7:].strip()
    else:
        token = (api_key or b"").strip()
    if not token:
        raise _MISSING.error()
    return token


def require(principal: Principal, scope: Scope) -> None:
    """Raise ApiError 403 unless the key has `scope`."""
    if scope not in principal.scopes:
        raise ApiError(403, "insufficient_scope", f"This API key does not have the scope '{scope}'.")


class Authenticator:
    """Give it an engine of its own, with more connections than `max_lookups`, so that strangers' keys can neither wait
    out other queries nor hold up the change feed. `run` it in the background; without, nothing is remembered."""

    def __init__(
        self,
        engine: AsyncEngine,
        hasher: Hasher,
        *,
        staleness: float = 300.0,
        capacity: int = 50_000,
        refusals: int = 10_000,
        refusal_ttl: float = 5.0,
        max_lookups: int = 4,
        max_waiting: int = 256,
        timeout: float = 2.0,
        poll_every: float = 0.5,
        listen: bool = True,
    ) -> None:
        self._engine = engine
        self._hasher = hasher
        self._staleness = staleness
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._cache = KeyCache(capacity, refusals, refusal_ttl)
        self.feed = ChangeFeed(engine, self._cache.apply, poll_every=poll_every, timeout=timeout, listen=listen)
        self._seed = os.urandom(32)  # digests mean nothing outside this process
        self._lookups = asyncio.Semaphore(max_lookups)
        self._loading: dict[bytes, asyncio.Task[Known | Refusal]] = {}
        self._rehashing: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Authenticator {self._cache!r} {self.feed!r}>"

    async def run(self) -> None:
        """Follow changes until cancelled."""
        try:
            await self.feed.run()
        finally:
            for task in (*self._loading.values(), *self._rehashing):
                task.cancel()

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Whose request has these headers (names in lower case). Raises ApiError as `authenticate` does."""
        token = bearer(headers.get(b"authorization"), headers.get(b"x-api-key"))
        return self.cached(token) or await self.authenticate(token)

    def cached(self, token: bytes) -> Principal | None:
        """The key's principal if that is known here and now. None says nothing: ask `authenticate`."""
        entry = self._cache.known(self._digest(token))
        if entry is None or self._outdated() or self._ended(entry):
            return None
        return entry.principal

    async def authenticate(self, token: bytes) -> Principal:
        """Raises ApiError: 401 for a key that is malformed, unknown, revoked or expired, 403 where its tenant is
        suspended, 503 where that cannot be found out."""
        digest = self._digest(token)
        found = self._remembered(token, digest) or await self._load_once(token, digest)
        if isinstance(found, Refusal):
            raise _error(found)
        return found.principal

    def _remembered(self, token: bytes, digest: bytes) -> Known | Refusal | None:
        entry = self._cache.known(digest)
        if entry is not None and self._ended(entry):
            return _expired(entry.ids)
        if entry is not None and not self._outdated():
            return entry
        if prefix_of(token) is None:
            return _MALFORMED
        return self._cache.refused(digest, elapsed())

    async def _load_once(self, token: bytes, digest: bytes) -> Known | Refusal:
        task = self._loading.get(digest)
        if task is None:
            if self.feed.failing:
                return _AWAY
            if len(self._loading) >= self._max_waiting:
                return _BUSY
            task = asyncio.create_task(self._load(token, digest))
            self._loading[digest] = task
            task.add_done_callback(lambda _: self._loading.pop(digest, None))
        return await asyncio.shield(task)  # one caller leaving does not fail the others

    async def _load(self, token: bytes, digest: bytes) -> Known | Refusal:
        try:
            async with asyncio.timeout(self._timeout), self._lookups:
                found = await self._read(token, digest)
        except ERRORS as error:
            logger.warning("a key could not be looked up: %s", type(error).__name__)
            found = _AWAY
        LOADS.labels("known" if isinstance(found, Known) else "away" if found is _AWAY else "refused").inc()
        return found

    async def _read(self, token: bytes, digest: bytes) -> Known | Refusal:
        found: Known | Refusal = _UNKNOWN
        for _ in range(_ATTEMPTS):
            load = self._cache.begin()
            fresh = None
            try:
                async with self._engine.connect() as db:
                    row = (await db.execute(_FIND, {"prefix": prefix_of(token)})).one_or_none()
                fresh = found = judge(row, token, self._hasher)
            finally:
                keep = self.feed.synchronised and not self._outdated()
                settled = self._cache.finish(load, digest, fresh, elapsed(), keep=keep)
            if row is not None and isinstance(found, Known) and row.pepper_id != self._hasher.newest:
                self._rehash(row.id, row.pepper_id, token)
            if settled:
                break
        return found

    def _rehash(self, key_id: str, old: str, token: bytes) -> None:
        if len(self._rehashing) >= 2:
            return  # the next load of this key tries again
        new, digest = self._hasher.hash(token)
        task = asyncio.create_task(self._store_hash({"id": key_id, "old": old, "new": new, "hash": digest}))
        self._rehashing.add(task)
        task.add_done_callback(self._rehashing.discard)

    async def _store_hash(self, values: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(self._timeout), self._lookups, self._engine.begin() as db:
                await db.execute(_REHASH, values)
        except ERRORS as error:
            logger.warning("key %s could not be hashed anew: %s", values["id"], type(error).__name__)

    def _digest(self, token: bytes) -> bytes:
        return hashlib.blake2b(token, key=self._seed, digest_size=16).digest()

    def _outdated(self) -> bool:
        return elapsed() - self.feed.contact > self._staleness

    def _ended(self, entry: Known) -> bool:
        if not entry.ended and entry.expires_at is not None and self.feed.now() >= entry.expires_at:
            entry.ended = True
        return entry.ended


def judge(row: Row[Any] | None, token: bytes, hasher: Hasher) -> Known | Refusal:
    """What a row of _FIND says about `token`."""
    if row is None or not hasher.matches(token, row.pepper_id, row.hash):
        return _UNKNOWN
    ids = tuple(identifier for identifier in (row.id, row.project_id, row.tenant_id) if identifier)
    if row.revoked or row.status == "deleted":
        return Refusal(401, _INVALID, "This API key was revoked.", ids)
    if row.expired:
        return _expired(ids)
    if row.status == "suspended":
        return Refusal(403, "tenant_suspended", "This account is suspended. Ask whoever runs this service.", ids)
    principal = Principal(
        key_id=row.id,
        tenant_id=row.tenant_id or "",
        project_id=row.project_id or "",
        scopes=frozenset(_SCOPES[scope] for scope in row.scopes if scope in _SCOPES),
        models=None if row.models is None else frozenset(row.models),
        expires_at=row.expires_at,
        tiers=None if row.tiers is None else frozenset(row.tiers),
        weight=row.weight,
        limits=parsed(row.limits),
        prices=_prices(row.prices) if row.prices else (),
    )
    return Known(principal, row.expires_at)


def _expired(ids: tuple[str, ...]) -> Refusal:
    return Refusal(401, _INVALID, "This API key has expired.", ids)


def _error(refusal: Refusal) -> ApiError:
    if refusal.status == 503:
        return unavailable(refusal.code, refusal.message, retry_after=1.0)
    return refusal.error()
