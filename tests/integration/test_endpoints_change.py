"""Engines that come and go while a front door serves: no request pays for it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from forebay.platform.relay.metrics import ATTEMPTS_FAILED
from forebay.router import EndpointSpec, RouterService
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import SLOW, unbooked

EVENTS = Settings(kv_events="tcp://127.0.0.1:*", kv_replay="tcp://127.0.0.1:*")


def spec(engine: EngineDouble, name: str, **more: Any) -> EndpointSpec:
    addresses = (None, None) if engine.events is None else (engine.events.endpoint, engine.events.replay)
    return EndpointSpec(name, engine.url, "vllm", MODEL, None, False, *addresses, **more)


def routing(door: Door) -> RouterService:
    assert door.service.routing is not None
    return door.service.routing


def asked(engine: EngineDouble) -> int:
    return sum(request.path.startswith("/v1/chat") for request in engine.requests)


async def answered_by(door: Door, contents: Sequence[str]) -> list[str]:
    answers = [await door.chat(content, max_tokens=2) for content in contents]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.headers["x-forebay-endpoint"] for answer in answers]


async def test_one_that_comes_is_used_and_a_stream_of_one_that_goes_ends_whole(open_door: OpenDoor) -> None:
    async with EngineDouble(SLOW) as old, EngineDouble() as new, open_door(old) as door:
        first = door.service.pools[0].endpoints["engine-0"].client
        streaming = asyncio.create_task(door.chat("long", max_tokens=40, stream=True))
        await eventually(lambda: old.scheduler.in_flight)
        routing(door).reconcile("main", [spec(new, "engine-1")])
        assert await answered_by(door, [f"{n}" for n in range(4)]) == ["engine-1"] * 4
        answer = await streaming
        assert answer.status_code == 200
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in answer.text
        assert asked(old) == 1
        assert not first.active
        assert repr(first).endswith("[0 active, 0 idle]>")
        assert len(await door.records(5)) == 5
        assert unbooked(door)
        health = (await door.http.get("/health")).json()
        assert list(health["pools"]["main"]) == ["engine-1"]
        ATTEMPTS_FAILED.labels(endpoint="engine-1", code="engine_error").inc()
        routing(door).reconcile("main", [])
        assert (await door.chat("nobody")).status_code == 503
        assert 'endpoint="engine-1"' not in (await door.http.get("/metrics")).text
        assert 'endpoint="engine-0"' not in "".join(
            line for line in (await door.http.get("/metrics")).text.splitlines() if line.startswith("forebay_endpoint")
        )


async def test_one_that_drains_gets_nothing_new_and_is_no_trouble(open_door: OpenDoor) -> None:
    """kthena#1589, dynamo#13559."""
    async with EngineDouble(SLOW) as old, EngineDouble() as new, open_door(old, new) as door:
        await eventually(lambda: (door.service.router.states("main")["engine-1"].health) == "up")
        before = [spec(old, "engine-0"), spec(new, "engine-1")]
        routing(door).reconcile("main", before)
        clients = {name: one.client for name, one in door.service.pools[0].endpoints.items()}
        streaming = [asyncio.create_task(door.chat(f"long {n}", max_tokens=30, stream=True)) for n in range(2)]
        await eventually(lambda: old.scheduler.in_flight)
        routing(door).reconcile("main", [spec(old, "engine-0", draining="it is replaced"), before[1]])
        assert await answered_by(door, [f"{n}" for n in range(6)]) == ["engine-1"] * 6
        assert {name: one.client for name, one in door.service.pools[0].endpoints.items()} == clients
        health = (await door.http.get("/health")).json()
        assert health["pools"]["main"]["engine-0"].items() >= {"status": "up", "draining": "it is replaced"}.items()
        assert health["status"] == "ok"
        assert {(await one).status_code for one in streaming} == {200}
        assert asked(old) == 1
        await eventually(lambda: unbooked(door))
        routing(door).reconcile("main", before)
        assert set(await answered_by(door, [f"again {n}" for n in range(6)])) == {"engine-0", "engine-1"}


async def test_a_group_is_shown_and_what_is_not_unified_gets_no_requests(
    open_door: OpenDoor, caplog: pytest.LogCaptureFixture
) -> None:
    groups = [{"role": "prefill", "accelerator": "h200"}, {"revision": "r7"}]
    async with EngineDouble() as one, EngineDouble() as two, open_door(one, two, endpoints=groups) as door:
        assert await answered_by(door, [f"{n}" for n in range(4)]) == ["engine-1"] * 4
        assert "endpoint engine-0 of pool main gets no requests: role prefill is not placed on yet" in caplog.text
        health = (await door.http.get("/health")).json()
        assert health["status"] == "ok"
        assert health["pools"]["main"] == {
            "engine-0": {
                "status": "up", "unused": "role prefill is not placed on yet", "role": "prefill", "accelerator": "h200",
            },
            "engine-1": {"status": "up", "revision": "r7"},
        }  # fmt: skip
        shown = {
            (sample.name, sample.labels["endpoint"]): (sample.labels, sample.value)
            for family in text_string_to_metric_families((await door.http.get("/metrics")).text)
            for sample in family.samples if sample.name in ("forebay_endpoint_info", "forebay_endpoint_up")
        }  # fmt: skip
        assert shown["forebay_endpoint_info", "engine-0"] == (
            {"pool": "main", "endpoint": "engine-0", "role": "prefill", "revision": "", "accelerator": "h200"}, 1.0,
        )  # fmt: skip
        assert [shown["forebay_endpoint_up", f"engine-{n}"][1] for n in (0, 1)] == [0.0, 1.0]


async def test_a_pick_that_went_before_it_was_dialled_costs_nothing(open_door: OpenDoor) -> None:
    """As in a worker, which hears of a pick and of the removal at once."""
    async with EngineDouble() as old, EngineDouble() as new, open_door(old, new) as door:
        pool = door.service.pools[0]
        gone = pool.endpoints.pop("engine-0")
        assert await answered_by(door, [f"{n}" for n in range(6)]) == ["engine-1"] * 6
        assert unbooked(door)
        assert asked(old) == 0
        assert {record["attempt"] for record in await door.records(6)} == {1}
        pool.endpoints[gone.name] = gone


async def test_what_another_process_under_the_same_name_holds_is_learnt_anew(open_door: OpenDoor) -> None:
    async with EngineDouble(EVENTS) as old, EngineDouble(EVENTS) as new, open_door(old) as door:
        router = routing(door)
        router.reconcile("main", [spec(old, "engine-0")])
        await eventually(lambda: router.router.states("main")["engine-0"].events == "following")
        prompt = "a conversation " * 60
        assert await answered_by(door, [prompt]) == ["engine-0"]
        await eventually(lambda: router.core.pools["main"].index.sizes().blocks["engine-0"])
        router.reconcile("main", [spec(new, "engine-0")])
        assert router.core.pools["main"].index.sizes().blocks == {"engine-0": 0}
        await eventually(lambda: router.router.states("main")["engine-0"].events == "following")
        answer = await door.chat(prompt, max_tokens=2)
        assert (answer.status_code, answer.headers["x-forebay-cached-tokens"]) == (200, "0")
        await eventually(lambda: router.core.pools["main"].index.sizes().blocks["engine-0"])
        assert (asked(old), asked(new)) == (1, 1)


@pytest.mark.parametrize("names", [1, 3])
async def test_a_pool_that_turns_over_all_the_time_answers_everything(open_door: OpenDoor, names: int) -> None:
    """Every few milliseconds other engines under the same few names; each request is answered, and nothing is left."""
    quick = Settings(token_seconds=0.002)
    async with EngineDouble(quick) as one, EngineDouble(quick) as two, open_door(one) as door:
        stop = asyncio.Event()

        async def turn() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                engine = (one, two)[number % 2]
                fresh = spec(engine, f"e-{number % names}", instance=f"{number}")
                routing(door).reconcile("main", [fresh, spec(two, "stays")] if number % 3 else [fresh])
                await asyncio.sleep(0.005)

        turning = asyncio.create_task(turn())
        answers: list[httpx.Response] = []
        for batch in range(6):
            chats = (door.chat(f"{batch} {n}", max_tokens=10, stream=n % 2 == 0) for n in range(12))
            answers += await asyncio.gather(*chats)
        stop.set()
        await turning
        assert [answer.text for answer in answers if answer.status_code != 200 or '"error"' in answer.text] == []
        await door.records(72)
        await eventually(lambda: unbooked(door))
        core = routing(door).core
        assert set(core.pools["main"].index.sizes().blocks) == set(core.pools["main"].members)


def test_a_spec_is_still_the_same_process_while_it_drains_and_not_at_another_address() -> None:
    known = EndpointSpec("e", "http://h:1", "vllm", "m", None, False)
    assert known.is_still(msgspec.structs.replace(known, draining="it goes"))
    assert not known.is_still(msgspec.structs.replace(known, url="http://h:2"))
    assert not known.is_still(msgspec.structs.replace(known, instance="another"))
