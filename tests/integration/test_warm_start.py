"""What a front door knows of its engines' caches when it starts: from a peer, or from what it wrote when it stopped.

The engines repeat only a few of their latest events, so a cold start knows nothing of an earlier conversation.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from forebay.platform.config.model import Config
from forebay.platform.config.secrets import ensure_secrets
from forebay.platform.server import listening
from forebay.platform.service import running
from forebay.platform.warm import start
from forebay.platform.warm.access import PATH, token_of
from forebay.platform.warm.stream import MAGIC
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.door import MODEL, SCOPES, Door, config
from tests.virtual import tokens

EVENTS = Settings(kv_events="tcp://127.0.0.1:*", kv_replay="tcp://127.0.0.1:*", kv_replay_steps=4)
TALK = tokens(("a conversation", 640)).tolist()
OTHERS = 12
NEXT = [*TALK, *tokens(("its next turn", 64)).tolist()]
LATER = [*NEXT, *tokens(("and one more", 64)).tolist()]
OpenDoor = Callable[..., AbstractAsyncContextManager[Door]]


class Doors:
    """Front doors that share tenants, keys and secrets, each with a state directory of its own."""

    def __init__(self, directory: Path, database: str, valkey: str) -> None:
        self.directory = directory
        self.salt = directory / "cache-salt"
        self._database, self._valkey = database, valkey
        self._key: tuple[str, str] | None = None
        ensure_secrets(self.salt)
        ensure_secrets(directory / "key-hash")

    def config(self, name: str, *engines: EngineDouble, salt: Path | None = None, **changes: Any) -> Config:
        state = self.directory / name
        state.mkdir(exist_ok=True)
        configured = config(
            state, engines, secrets={"cacheSalt": str(salt or self.salt), "keyHash": str(self.directory / "key-hash")},
            **changes,
        )  # fmt: skip
        return _with_events(configured, engines)

    @asynccontextmanager
    async def open(self, name: str, *engines: EngineDouble, **changes: Any) -> AsyncIterator[Door]:
        configured = self.config(name, *engines, **changes)
        async with (
            running(configured, postgres_url=self._database, valkey_url=self._valkey) as service,
            listening(service),
        ):
            if self._key is None:
                tenant = await service.tenancy.create_tenant("acme")
                project = await service.tenancy.create_project(tenant.id, "main")
                issued = await service.tenancy.create_key(project.id, scopes=SCOPES)
                self._key = issued.secret, issued.key.id
            door = Door(service, *self._key)
            try:
                await eventually(lambda: _ready(door), timeout=15.0)
                yield door
            finally:
                await door.http.aclose()
                await door.openai.close()


def _with_events(configured: Config, engines: tuple[EngineDouble, ...]) -> Config:
    """The addresses of their events, which are known once they run."""
    (pool,) = configured.pools
    endpoints = tuple(
        msgspec.structs.replace(endpoint, kv_events=engine.events.endpoint, kv_replay=engine.events.replay)
        for endpoint, engine in zip(pool.endpoints, engines, strict=True)
        if engine.events is not None
    )
    return msgspec.structs.replace(configured, pools=(msgspec.structs.replace(pool, endpoints=endpoints),))


async def _ready(door: Door) -> bool:
    return (await door.http.get("/ready")).status_code == 200


@pytest.fixture
def doors(tmp_path: Path, database: str, valkey: str) -> Doors:
    return Doors(tmp_path, database, valkey)


async def complete(door: Door, prompt: list[int]) -> tuple[str, int]:
    """The endpoint that answers, and how many of the prompt's tokens were taken to be cached there."""
    response = await door.http.post("/v1/completions", json={"model": MODEL, "prompt": prompt, "max_tokens": 1})
    assert response.status_code == 200, response.text
    return response.headers["x-forebay-endpoint"], int(response.headers["x-forebay-cached-tokens"])


async def known(door: Door, prompt: list[int]) -> dict[str, int]:
    """Tokens of the prompt that are taken to be cached, by endpoint that has any."""
    response = await door.http.post("/v1/explain/completions", json={"model": MODEL, "prompt": prompt})
    return {one["endpoint"]: one["cached"] for one in response.json()["candidates"] if one["cached"]}


async def talk(door: Door) -> str:
    """A conversation's first turn, and enough of others' that no replay reaches back to it. Returns where it is."""
    endpoint, _ = await complete(door, TALK)
    for number in range(OTHERS):
        await complete(door, tokens((f"somebody else {number}", 64)).tolist())
    assert door.service.routing is not None
    index = door.service.routing.core.pools["main"].index
    await eventually(lambda: sum(index.sizes().blocks.values()) == (640 + OTHERS * 64) / 32)
    assert await known(door, NEXT) == {endpoint: 640}
    return endpoint


async def test_a_front_door_that_starts_knows_what_only_its_peer_saw(doors: Doors) -> None:
    async with EngineDouble(EVENTS) as one, EngineDouble(EVENTS) as two, doors.open("a", one, two) as a:
        endpoint = await talk(a)
        async with doors.open("cold", one, two) as cold:
            assert await known(cold, NEXT) == {}
        async with doors.open("b", one, two, router={"peers": ["http://127.0.0.1:1", a.url]}) as b:
            assert await known(b, NEXT) == {endpoint: 640}
            assert await complete(b, NEXT) == (endpoint, 640)
            await eventually(lambda: _both(a, b, {endpoint: 704}))


async def _both(a: Door, b: Door, expected: dict[str, int]) -> bool:
    return await known(a, LATER) == expected == await known(b, LATER)


async def test_a_front_door_that_was_stopped_knows_what_it_knew(doors: Doors) -> None:
    async with EngineDouble(EVENTS) as one, EngineDouble(EVENTS) as two:
        async with doors.open("a", one, two) as a:
            endpoint = await talk(a)
        (file,) = (doors.directory / "a" / "router").iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        await _directly(one, tokens(("meanwhile", 64)).tolist())
        async with doors.open("a", one, two) as a:
            assert await complete(a, NEXT) == (endpoint, 640)


async def _directly(engine: EngineDouble, prompt: list[int]) -> None:
    async with httpx.AsyncClient(base_url=engine.url) as client:
        body = {"model": engine.settings.model, "prompt": prompt, "max_tokens": 1}
        assert (await client.post("/v1/completions", json=body)).status_code == 200


async def test_a_front_door_that_was_killed_knows_what_it_last_wrote_down(
    doors: Doors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "KEEP_EVERY_S", 0.2)
    async with EngineDouble(EVENTS) as one, EngineDouble(EVENTS) as two:
        async with doors.open("a", one, two) as a:
            endpoint = await talk(a)
            (file,) = await eventually(lambda: [*(doors.directory / "a" / "router").glob("*.snapshot")])
            before = file.stat().st_mtime_ns
            await eventually(lambda: file.stat().st_mtime_ns > before)
            written = file.read_bytes()
        file.write_bytes(written)  # in place of what a stop in order has written
        async with doors.open("a", one, two) as a:
            assert await complete(a, NEXT) == (endpoint, 640)


async def test_without_a_snapshot_the_engines_tell_what_they_still_remember(doors: Doors) -> None:
    """As after a SIGKILL."""
    async with EngineDouble(EVENTS, kv_replay_steps=1000) as engine:
        async with doors.open("a", engine) as a:
            await talk(a)
        (file,) = (doors.directory / "a" / "router").iterdir()
        file.unlink()
        async with doors.open("a", engine) as a:
            assert await complete(a, NEXT) == ("engine-0", 640)


@pytest.mark.parametrize("prompts_since", [0, 3, 40])
async def test_an_engine_that_was_restarted_meanwhile_is_not_taken_for_the_one_before(
    doors: Doors, prompts_since: int
) -> None:
    async with AsyncExitStack() as stack:
        engine = EngineDouble(EVENTS)
        async with engine:
            async with doors.open("a", engine) as a:
                await talk(a)
            port, events, replay = engine.port, engine.events.endpoint, engine.events.replay  # type: ignore[union-attr]
        again = EngineDouble(EVENTS, port=port, kv_events=events, kv_replay=replay)
        await stack.enter_async_context(again)
        for number in range(prompts_since):
            await _directly(again, tokens((f"a new life {number}", 64)).tolist())
        async with doors.open("a", again) as a:
            assert await known(a, NEXT) == {}
            assert await complete(a, NEXT) == ("engine-0", 0)


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    "damage", [flipped, lambda data: data[: len(data) // 2], lambda _: b"", lambda _: b"forebay router snapshot 9\n"]
)
async def test_a_damaged_snapshot_is_refused_and_the_start_goes_on_cold(
    doors: Doors, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async with EngineDouble(EVENTS) as engine:
        async with doors.open("a", engine) as a:
            await talk(a)
        (file,) = (doors.directory / "a" / "router").iterdir()
        file.write_bytes(damage(file.read_bytes()))
        async with doors.open("a", engine) as a:
            assert "is of no use for a warm start" in caplog.text
            assert await known(a, NEXT) == {}
            assert await complete(a, NEXT) == ("engine-0", 0)


async def test_a_snapshot_made_with_another_secret_is_refused(doors: Doors, caplog: pytest.LogCaptureFixture) -> None:
    other = doors.directory / "other"
    ensure_secrets(other)
    async with EngineDouble(EVENTS) as engine:
        async with doors.open("a", engine) as a:
            await talk(a)
        async with doors.open("a", engine, salt=other) as a:
            assert "made with another secret" in caplog.text
            assert await complete(a, NEXT) == ("engine-0", 0)


async def test_a_stranger_is_not_even_told_that_there_is_a_snapshot(doors: Doors) -> None:
    async with EngineDouble(EVENTS) as engine, doors.open("a", engine) as a:
        token = token_of(a.service.config)
        unknown = await a.http.get("/internal/router/nothing", headers={"authorization": f"Bearer {token}"})
        for authorization in ("", f"Bearer {a.key}", "Bearer " + "0" * 64, f"bearer {token}x", "Bearer \xe9"):
            refused = await a.http.get(PATH, headers={b"authorization": authorization.encode("latin-1")})
            assert refused.status_code == unknown.status_code == 404
            assert refused.text.replace(PATH, "?") == unknown.text.replace("/internal/router/nothing", "?")
        answer = await a.http.get(PATH, headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == 200
        assert answer.content.startswith(MAGIC)


async def test_a_peer_with_another_secret_does_not_help_and_does_not_harm(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    other = doors.directory / "other"
    ensure_secrets(other)
    async with EngineDouble(EVENTS) as engine, doors.open("a", engine) as a:
        await talk(a)
        async with doors.open("b", engine, salt=other, router={"peers": [a.url]}) as b:
            assert "both need the same secrets.cacheSalt" in caplog.text
            assert await complete(b, NEXT) == ("engine-0", 0)


@asynccontextmanager
async def hanging() -> AsyncIterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


async def test_a_peer_that_hangs_is_waited_for_as_long_as_configured(
    doors: Doors, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        hanging() as url,
        EngineDouble(EVENTS) as engine,
        doors.open("b", engine, router={"peers": [url], "warmStartTimeout": 0.5}) as b,
    ):
        await eventually(lambda: "the start goes on without what 1 endpoints hold" in caplog.text)
        assert await complete(b, NEXT) == ("engine-0", 0)
