"""Keys against real Postgres: who is let in, who is not, and how soon a change is felt everywhere."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from prometheus_client import generate_latest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.platform.errors import ApiError
from forebay.platform.offered import Offered
from forebay.platform.stores import embedded
from forebay.platform.stores.database import create_engine
from forebay.platform.stores.schema import migrate
from forebay.platform.tenancy import auth, feed, keys
from forebay.platform.tenancy.auth import Authenticator
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.keys import generate
from forebay.platform.tenancy.principal import Principal, Scope
from forebay.platform.tenancy.records import IssuedKey
from forebay.platform.tenancy.service import Tenancy
from tests.eventually import eventually
from tests.stores import state_directory

HASHER = Hasher([("one", b"1" * 32)])


@asynccontextmanager
async def authenticator(url: str, hasher: Hasher = HASHER, **options: Any) -> AsyncIterator[Authenticator]:
    """A replica's authenticator on an engine of its own, following changes."""
    engine = create_engine(url)
    result = Authenticator(engine, hasher, **options)
    following = asyncio.create_task(result.run())
    try:
        await eventually(lambda: result.feed.synchronised)
        yield result
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await engine.dispose()


async def tenant_with_key(tenancy: Tenancy, name: str = "acme", **options: Any) -> tuple[str, str, IssuedKey]:
    tenant = await tenancy.create_tenant(name)
    project = await tenancy.create_project(tenant.id, "main")
    return tenant.id, project.id, await tenancy.create_key(project.id, **options)


async def refused(replica: Authenticator, key: IssuedKey | str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await replica.authenticate((key if isinstance(key, str) else key.secret).encode())
    return caught.value


async def verdict(replica: Authenticator, key: IssuedKey) -> int:
    """The status a request with this key would be answered with, as the front door asks."""
    token = key.secret.encode()
    if replica.cached(token) is not None:
        return 200
    try:
        await replica.authenticate(token)
    except ApiError as error:
        return error.status
    return 200


@pytest.fixture
def tenancy(engine: AsyncEngine) -> Tenancy:
    return Tenancy(engine, HASHER)


async def test_known_key_is_authenticated_then_answered_from_memory(database: str, tenancy: Tenancy) -> None:
    tenant, project, key = await tenant_with_key(tenancy, scopes=["inference", "debug"])
    token = key.secret.encode()
    async with authenticator(database) as replica:
        assert replica.cached(token) is None
        principal = await replica.authenticate(token)
        assert principal == Principal(key.key.id, tenant, project, frozenset({Scope.INFERENCE, Scope.DEBUG}))
        assert replica.cached(token) is principal


async def test_the_ways_to_be_refused(database: str, tenancy: Tenancy) -> None:
    _, project, revoked = await tenant_with_key(tenancy)
    await tenancy.revoke_key(revoked.key.id)
    expiring = await tenancy.create_key(project, expires_at=time.time() + 0.3)
    async with authenticator(database) as replica:
        assert await verdict(replica, expiring) == 200
        for bad, said in (
            ("sk-fb-nonsense", "not an API key"),
            (generate("project")[0], "no such"),
            (expiring.secret[:-1] + ("a" if expiring.secret[-1] != "a" else "b"), "not an API key"),
            (revoked.secret, "revoked"),
        ):
            error = await refused(replica, bad)
            assert (error.status, error.code) == (401, "invalid_api_key")
            assert said in error.message
            assert bad not in str(error.body())
        await eventually(lambda: replica.cached(expiring.secret.encode()) is None)
        assert "expired" in (await refused(replica, expiring)).message


async def test_public_id_with_another_secret_is_unknown(database: str, tenancy: Tenancy) -> None:
    """Only the hash decides: a forged key with a real key's public id and a right checksum opens nothing."""
    _, _, key = await tenant_with_key(tenancy)
    body = f"{key.key.prefix}-{'0' * 43}"
    async with authenticator(database) as replica:
        assert "no such" in (await refused(replica, body + keys._checksum(body.encode()))).message


@pytest.mark.parametrize("listen", [True, False], ids=["notified", "polling"])
async def test_a_projects_tiers_reach_every_replica_within_a_second(
    database: str, engine: AsyncEngine, listen: bool
) -> None:
    tenancy = Tenancy(engine, HASHER, Offered(tiers=("fast", "default")))
    _, project, key = await tenant_with_key(tenancy)
    token = key.secret.encode()
    async with authenticator(database, listen=listen) as replica:
        changes: list[tuple[list[str] | None, set[str] | None]] = [(["fast"], {"fast"}), ([], set()), (None, None)]
        for tiers, seen in (*changes, (["fast", "default"], {"default", "fast"})):
            before = replica.cached(token) or await replica.authenticate(token)
            assert before.tiers != seen
            assert (await tenancy.set_tiers(project, tiers)).tiers == tiers

            async def known(seen: set[str] | None = seen) -> bool:
                return (replica.cached(token) or await replica.authenticate(token)).tiers == seen

            await eventually(known, timeout=1.0)


@pytest.mark.parametrize("listen", [True, False], ids=["notified", "polling"])
async def test_a_tenants_weight_reaches_every_replica_within_a_second(
    database: str, tenancy: Tenancy, listen: bool
) -> None:
    tenant, _, key = await tenant_with_key(tenancy)
    token = key.secret.encode()
    async with authenticator(database, listen=listen) as replica:
        assert (await replica.authenticate(token)).weight == 1
        await tenancy.set_weight(tenant, 3)

        async def known() -> bool:
            return (replica.cached(token) or await replica.authenticate(token)).weight == 3

        await eventually(known, timeout=1.0)


@pytest.mark.parametrize("listen", [True, False], ids=["notified", "polling"])
async def test_changes_reach_every_replica_within_a_second(database: str, tenancy: Tenancy, listen: bool) -> None:
    tenant, project, key = await tenant_with_key(tenancy)
    other = await tenancy.create_key(project)
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(authenticator(database, listen=listen)) for _ in range(2)]

        async def all_say(key: IssuedKey, status: int) -> None:
            async def agreed() -> bool:
                return [await verdict(replica, key) for replica in replicas] == [status, status]

            await eventually(agreed, timeout=1.0)

        await all_say(key, 200)
        await all_say(other, 200)
        await tenancy.revoke_key(key.key.id)
        await all_say(key, 401)
        await all_say(other, 200)
        await tenancy.suspend_tenant(tenant)
        await all_say(other, 403)
        await tenancy.resume_tenant(tenant)
        await all_say(other, 200)
        await tenancy.set_models(project, ["tiny"])

        def narrowed() -> bool:
            seen = [replica.cached(other.secret.encode()) for replica in replicas]
            return all(principal is None or principal.models == frozenset({"tiny"}) for principal in seen)

        await eventually(narrowed, timeout=1.0)
        await all_say(other, 200)
        await tenancy.delete_tenant(tenant)
        await all_say(other, 401)


async def test_listening_connection_that_dies_is_replaced(database: str, engine: AsyncEngine, tenancy: Tenancy) -> None:
    _, _, key = await tenant_with_key(tenancy)
    async with authenticator(database, poll_every=60.0) as replica:  # so slow that only a notification can be seen
        async def listeners() -> list[int]:
            async with engine.connect() as db:
                rows = await db.execute(text("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR "
                                             "application_name = 'forebay-listen'"))  # fmt: skip
                return [row.pid for row in rows]

        [first] = await eventually(listeners)
        async with engine.begin() as db:
            await db.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": first})

        async def replaced() -> bool:
            return first not in (pids := await listeners()) and bool(pids)

        await eventually(replaced)
        await asyncio.sleep(0.1)
        assert await verdict(replica, key) == 200
        await tenancy.revoke_key(key.key.id)

        async def gone() -> bool:
            return await verdict(replica, key) == 401

        await eventually(gone, timeout=1.0)


async def test_new_key_works_at_once_where_it_was_refused_before(database: str, tenancy: Tenancy,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    _, project, _ = await tenant_with_key(tenancy)
    made = generate("project")
    monkeypatch.setattr("forebay.platform.tenancy.service.generate", lambda kind: made)
    async with authenticator(database, refusal_ttl=60.0) as replica:
        assert (await refused(replica, made[0])).status == 401
        key = await tenancy.create_key(project)

        async def works() -> bool:
            return await verdict(replica, key) == 200

        await eventually(works, timeout=1.0)


async def test_rotation_with_grace(database: str, tenancy: Tenancy) -> None:
    _, _, old = await tenant_with_key(tenancy, name="acme", scopes=["inference", "usage.read"])
    async with authenticator(database) as replica:
        assert await verdict(replica, old) == 200
        new = await tenancy.rotate_key(old.key.id, grace=1.0)
        assert new.key.scopes == old.key.scopes
        assert (await verdict(replica, old), await verdict(replica, new)) == (200, 200)
        await asyncio.sleep(0.4)
        assert await verdict(replica, old) == 200

        async def over() -> bool:
            return await verdict(replica, old) == 401

        await eventually(over, timeout=2.0)
        assert await verdict(replica, new) == 200
        newest = await tenancy.rotate_key(new.key.id)  # no grace

        async def replaced() -> bool:
            return await verdict(replica, new) == 401

        await eventually(replaced, timeout=1.0)
        assert await verdict(replica, newest) == 200


async def test_pepper_rotation_recognises_and_rehashes(database: str, engine: AsyncEngine, tenancy: Tenancy) -> None:
    _, _, key = await tenant_with_key(tenancy)
    both = Hasher([("two", b"2" * 32), ("one", b"1" * 32)])
    async with authenticator(database, both) as replica:
        assert await verdict(replica, key) == 200

        async def rehashed() -> bool:
            async with engine.connect() as db:
                return bool((await db.execute(text("SELECT pepper_id = 'two' FROM api_keys"))).scalar_one())

        await eventually(rehashed)
    async with authenticator(database, Hasher([("two", b"2" * 32)])) as replica:
        assert await verdict(replica, key) == 200
    async with authenticator(database) as replica:  # only the old pepper: the key has moved on
        assert await verdict(replica, key) == 401


async def test_many_waiting_for_one_key_cost_one_query(database: str, tenancy: Tenancy) -> None:
    _, _, key = await tenant_with_key(tenancy)
    async with authenticator(database) as replica:
        before = auth.LOADS.labels("known")._value.get()
        principals = await asyncio.gather(*(replica.authenticate(key.secret.encode()) for _ in range(50)))
        assert len(set(map(id, principals))) == 1
        assert auth.LOADS.labels("known")._value.get() == before + 1


async def test_flood_of_strangers_is_bounded_and_known_keys_pass(database: str, tenancy: Tenancy) -> None:
    _, _, key = await tenant_with_key(tenancy)
    async with authenticator(database, max_waiting=8, max_lookups=2) as replica:
        assert await verdict(replica, key) == 200
        strangers = [generate("project")[0].encode() for _ in range(100)]
        answers = await asyncio.gather(*(replica.authenticate(one) for one in strangers), return_exceptions=True)
        codes = [answer.code for answer in answers if isinstance(answer, ApiError)]
        assert (codes.count("invalid_api_key"), codes.count("authentication_overloaded")) == (8, 92)
        assert replica.cached(key.secret.encode()) is not None


async def test_database_outage_is_503_for_strangers_and_bounded_grace_for_the_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now: Callable[[], float] = feed.elapsed
    skipped = 0.0
    with state_directory() as state:
        server = await asyncio.to_thread(lambda: embedded.start_postgres(state, fast=True))
        engine = create_engine(server.url)
        await migrate(engine)
        tenancy = Tenancy(engine, HASHER)
        _, project, known = await tenant_with_key(tenancy)
        stranger = await tenancy.create_key(project)
        for module in (feed, auth):
            monkeypatch.setattr(module, "elapsed", lambda: now() + skipped)
        async with authenticator(server.url, staleness=300.0) as replica:
            assert await verdict(replica, known) == 200
            await asyncio.to_thread(server.stop)
            await eventually(lambda: replica.feed.failing)

            assert await verdict(replica, known) == 200
            started = time.perf_counter()
            error = await refused(replica, stranger)
            assert (error.status, error.code) == (503, "authentication_unavailable")
            assert "retry-after" in error.headers
            assert time.perf_counter() - started < 0.1
            assert await verdict(replica, known) == 200

            skipped = 301.0
            assert (await refused(replica, known)).status == 503

            again = await asyncio.to_thread(lambda: embedded.start_postgres(state, fast=True))
            await eventually(lambda: not replica.feed.failing)
            assert await verdict(replica, known) == 200
            assert await verdict(replica, stranger) == 200
            await tenancy.revoke_key(known.key.id)

            async def gone() -> bool:
                return await verdict(replica, known) == 401

            await eventually(gone, timeout=1.0)
        await engine.dispose()
        await asyncio.to_thread(server.release)
        await asyncio.to_thread(again.release)


async def test_revocation_during_an_outage_of_the_feed_is_applied_on_reconnect(
    database: str, tenancy: Tenancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, project, key = await tenant_with_key(tenancy)
    untouched = await tenancy.create_key(project)
    async with authenticator(database, listen=False, poll_every=0.05) as replica:
        assert [await verdict(replica, each) for each in (key, untouched)] == [200, 200]

        async def broken() -> None:
            raise ConnectionError

        with monkeypatch.context() as patch:
            patch.setattr(replica.feed, "read", broken)
            await eventually(lambda: replica.feed.failing)
            await tenancy.revoke_key(key.key.id)
        await eventually(lambda: not replica.feed.failing)
        assert await verdict(replica, key) == 401
        assert replica.cached(untouched.secret.encode()) is not None


async def test_clock_set_back_does_not_resurrect_a_key(
    database: str, tenancy: Tenancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, key = await tenant_with_key(tenancy, expires_at=time.time() + 0.3)
    async with authenticator(database) as replica:
        assert await verdict(replica, key) == 200
        real = time.time()
        monkeypatch.setattr(time, "time", lambda: real - 86_400)

        async def over() -> bool:
            return await verdict(replica, key) == 401

        await eventually(over, timeout=2.0)


async def test_without_the_feed_nothing_is_remembered(engine: AsyncEngine, tenancy: Tenancy) -> None:
    _, _, key = await tenant_with_key(tenancy)
    lonely = Authenticator(engine, HASHER)
    assert (await lonely.authenticate(key.secret.encode())).key_id == key.key.id
    assert lonely.cached(key.secret.encode()) is None


async def test_no_key_text_anywhere(
    database: str, engine: AsyncEngine, tenancy: Tenancy, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs at the lowest level, errors, reprs, metrics and every row of every table."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("sqlalchemy.engine").setLevel(logging.DEBUG)
    try:
        _, _, key = await tenant_with_key(tenancy, name="acme")
        admin = await tenancy.create_admin_key()
        async with authenticator(database) as replica:
            seen = [repr(key), str(key), repr(replica), repr(HASHER)]
            await replica.authenticate(key.secret.encode())
            await tenancy.revoke_key(key.key.id)
            await asyncio.sleep(0.05)
            seen.append(repr(await refused(replica, key)))
            stranger = generate("admin")[0]
            seen.append(str((await refused(replica, stranger)).body()))
        async with engine.connect() as db:
            tables = await db.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
            for (table,) in tables.all():
                rows = await db.execute(text(f"SELECT row_to_json(t)::text FROM {table} t"))
                seen += rows.scalars()
        seen += [caplog.text, generate_latest().decode()]
        for whole in (key.secret, admin.secret, stranger):
            secret = whole.rsplit("-", 1)[1]
            assert not [text for text in seen if secret in text or secret[:43] in text]
    finally:
        logging.getLogger("sqlalchemy.engine").setLevel(logging.NOTSET)


async def test_lost_changes_empty_the_cache(database: str, engine: AsyncEngine, tenancy: Tenancy) -> None:
    """A restored backup counts from an earlier number; a replica that slept for a week finds its place pruned."""
    _, _, key = await tenant_with_key(tenancy)
    async with authenticator(database, listen=False, poll_every=60.0) as replica:
        for loss in ("TRUNCATE auth_changes RESTART IDENTITY", "DELETE FROM auth_changes"):
            assert await verdict(replica, key) == 200
            await tenancy.create_admin_key()
            await tenancy.create_admin_key()
            async with engine.begin() as db:
                await db.execute(text(loss))
            await tenancy.create_admin_key()
            await replica.feed.read()
            assert replica.cached(key.secret.encode()) is None
        assert await verdict(replica, key) == 200
        await replica.feed.read()
        assert replica.cached(key.secret.encode()) is not None
