"""The router of a process, over engine doubles: what it hears by probes and KV events decides where it sends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from forebay.router import Ask, EndpointSpec, EndpointState, Following, Health, Outcome, Placed, RouterService, Weights
from forebay.router.clocked import SharedRouter
from forebay.router.remote.server import Shared
from forebay.router.routing import Result, Router
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.virtual import tokens

EVENTS = Settings(kv_events="tcp://127.0.0.1:*", kv_replay="tcp://127.0.0.1:*")
SALT = "of a project"
WEIGHTS = Weights(b"a secret of the tests")
PROMPT = tokens(("a conversation", 640))


def spec(name: str, engine: EngineDouble) -> EndpointSpec:
    addresses = (None, None) if engine.events is None else (engine.events.endpoint, engine.events.replay)
    return EndpointSpec(name, engine.url, "vllm", engine.settings.model, None, False, *addresses)


@asynccontextmanager
async def routed(*engines: EngineDouble) -> AsyncIterator[RouterService]:
    specs = [spec(f"engine-{n}", engine) for n, engine in enumerate(engines)]
    service = RouterService({"main": specs}, WEIGHTS, connect_timeout=1.0)
    running = asyncio.create_task(service.run())
    try:
        await eventually(lambda: service.ready and all(s.health is Health.UP for s in states(service).values()))
        yield service
    finally:
        running.cancel()
        await asyncio.wait((running,))
        service.close()


def states(service: RouterService) -> dict[str, EndpointState]:
    return service.router.states("main")


def ask(*, exclude: tuple[str, ...] = ()) -> Ask:
    keys = WEIGHTS.extend(WEIGHTS.seed(salt=SALT), 0, PROMPT)[1]
    return Ask("main", keys.tobytes(), len(PROMPT), 16, exclude)


async def serve(engine: EngineDouble) -> None:
    """The prompt comes to an engine by another way than this router."""
    body = {"model": engine.settings.model, "prompt": PROMPT.tolist(), "max_tokens": 1, "cache_salt": SALT}
    async with httpx.AsyncClient(base_url=engine.url) as client:
        assert (await client.post("/v1/completions", json=body)).status_code == 200


async def cached(service: RouterService) -> dict[str, int]:
    return {one.endpoint: one.cached for one in (await service.router.explain(ask())).candidates if one.cached}


async def test_what_events_tell_decides_and_a_restart_is_noticed() -> None:
    async with EngineDouble(EVENTS) as one, EngineDouble(EVENTS) as two, routed(one, two) as service:
        assert {state.events for state in states(service).values()} == {Following.FOLLOWING}
        assert await cached(service) == {}
        await serve(two)
        await eventually(lambda: service.core.pools["main"].index.sizes().keys)
        assert await cached(service) == {"engine-1": 608}
        placed = await service.router.place(ask())
        assert isinstance(placed, Placed)
        assert (placed.endpoint, placed.cached) == ("engine-1", 608)
        service.router.begun(placed.booking)
        service.router.ended(placed.booking, Outcome())
        await two.restart()
        await serve(one)
        await eventually(lambda: not service.core.pools["main"].index.sizes().blocks["engine-1"])
        assert await cached(service) == {"engine-0": 608}


async def test_what_was_cached_before_the_start_is_known_once_it_is_ready() -> None:
    async with EngineDouble(EVENTS) as engine:
        await serve(engine)
        async with routed(engine) as service:
            assert await cached(service) == {"engine-0": 608}


async def test_engines_without_events_hold_up_nothing() -> None:
    async with EngineDouble() as engine, routed(engine) as service:
        assert states(service)["engine-0"].events is Following.NONE
        assert states(service)["engine-0"].max_model_len == engine.settings.max_model_len


async def test_an_engine_that_is_gone_is_down_and_has_nothing() -> None:
    async with EngineDouble() as engine, routed(engine) as service:
        placed = await service.router.place(ask())
        assert isinstance(placed, Placed)
        service.router.begun(placed.booking)
        assert await cached(service) == {"engine-0": 608}
        await engine.refuse()
        service.router.failed("main", "engine-0", "connection refused", at_once=True)
        assert await service.router.place(ask()) is None
        assert await cached(service) == {}
        await engine.listen()
        await eventually(lambda: states(service)["engine-0"].available)
        service.router.ended(placed.booking, Outcome())


async def test_it_is_what_workers_and_relays_ask_for() -> None:
    service = RouterService({"main": []}, WEIGHTS, connect_timeout=1.0)
    router: Router = service.router
    shared: Shared = service.shared
    assert isinstance(shared, SharedRouter)
    assert await router.place(ask()) is None
    told: list[Result] = []
    assert shared.place(ask(), 1, told.append) is None
    assert told == [None]
    assert service.ready
    service.close()
