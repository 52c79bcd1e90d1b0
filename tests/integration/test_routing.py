"""What the router hears of requests, and what tenants and operators see of its choices."""

import asyncio
import json
from typing import Any

from click.testing import CliRunner

from forebay.platform.cli.explain import explain
from forebay.router import Ask, Candidate, RouterUnavailable
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.doubles.engine.settings import Settings
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door
from tests.integration.observed import unbooked


def load(door: Door, endpoint: str = "engine-0") -> Any:
    routing = door.service.routing
    assert routing is not None
    return routing.core.pools["main"].members[endpoint].load


async def metric(door: Door, name: str, *labels: str) -> float:
    """The value of a metric whose line holds each of `labels`."""
    lines = (await door.http.get("/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith(name) and all(label in line for label in labels)]
    assert len(found) == 1, found
    return float(found[0].split()[-1])


async def test_prefill_is_booked_until_the_first_token_and_the_rest_until_the_end(open_door: OpenDoor) -> None:
    slow = Settings(prefill_rate=200.0, token_seconds=0.02, answer_tokens=None)
    async with EngineDouble(slow) as engine, open_door(engine) as door:
        running = asyncio.create_task(door.chat("word " * 60, stream=True, max_tokens=40))
        await eventually(lambda: load(door).in_flight)
        assert load(door).prefill > 0
        assert load(door).output > 0
        assert await metric(door, "forebay_endpoint_booked_seconds", 'endpoint="engine-0"') > 0
        await eventually(lambda: not load(door).prefill)
        assert load(door).in_flight == 1
        assert load(door).output > 0
        assert (await running).status_code == 200
        assert unbooked(door)


async def test_a_tenant_who_leaves_while_the_engine_is_silent_leaves_no_load(open_door: OpenDoor) -> None:
    fault = Fault(kind="hang_before_headers", path="/v1/chat")
    async with EngineDouble(faults=(fault,)) as engine, open_door(engine) as door:
        running = asyncio.create_task(door.chat(stream=True))
        await eventually(lambda: load(door).in_flight)
        running.cancel()
        await eventually(lambda: unbooked(door), 10.0)


async def test_predicted_and_observed_cached_tokens_are_counted(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        names = ("forebay_prompt_tokens_total", "forebay_cached_tokens_total")
        first = await door.chat("hello " * 80, max_tokens=2)
        again = await door.chat("hello " * 80, max_tokens=2)
        prompts = first.json()["usage"]["prompt_tokens"] + again.json()["usage"]["prompt_tokens"]
        cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        assert await metric(door, names[0], 'pool="main"') == prompts
        assert await metric(door, names[1], 'kind="observed"') == cached
        assert await metric(door, "forebay_endpoint_up", 'endpoint="engine-0"') == 1


async def test_ranks_behind_one_url_are_endpoints_and_told_apart_by_a_header(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine, endpoint={"dataParallelRanks": 2}) as door:
        answers = [await door.chat(f"conversation {n}", max_tokens=1) for n in range(4)]
        chosen = {answer.headers["x-forebay-endpoint"] for answer in answers}
        ranks = {r.headers.get("x-data-parallel-rank") for r in engine.requests if r.path.startswith("/v1/chat")}
        assert (chosen, ranks) == ({"engine-0/0", "engine-0/1"}, {"0", "1"})
        assert set((await door.http.get("/health")).json()["pools"]["main"]) == chosen
        assert {r["endpoint"] for r in await door.records(4)} == chosen


async def test_a_router_that_is_away_is_a_503_that_says_when_to_retry(open_door: OpenDoor) -> None:
    class Away:
        async def place(self, ask: Ask) -> None:
            raise RouterUnavailable("the router does not answer")

        async def explain(self, ask: Ask) -> list[Candidate]:
            raise RouterUnavailable("the router does not answer")

    async with EngineDouble() as engine, open_door(engine) as door:
        door.service.inferences._relay._means.router = Away()  # type: ignore[assignment]
        answer = await door.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "router_unavailable")
        assert int(answer.headers["retry-after"]) >= 1
        assert "x-forebay-endpoint" not in answer.headers


async def test_explaining_shows_what_a_placement_costs_others_where_it_does(open_door: OpenDoor) -> None:
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "word " * 2000}]})

    async def explained(door: Door, *options: str) -> str:
        where = ("-", "--base-url", door.url, "--key", door.key, *options)
        result = await asyncio.to_thread(CliRunner().invoke, explain, where, input=body)
        assert result.exit_code == 0, result.output
        return result.output

    async with EngineDouble() as one, EngineDouble() as two, open_door(one, two) as door:
        assert "costs others" not in await explained(door), "nobody else is there"
        for number in range(24):
            assert (await door.chat(f"{number} " * 800, max_tokens=2)).status_code == 200
        table, answer = await explained(door), json.loads(await explained(door, "--json"))
        heading, *rows = table.splitlines()[-3:]
        assert heading.split("predicted s")[1].split() == ["costs", "others", "s"]
        shown = {row.split()[0]: float(row.split()[-1]) for row in rows}
        told = {one["endpoint"]: one["displaced_s"] + one["delayed_s"] for one in answer["candidates"]}
        assert shown.keys() == told.keys() == {"engine-0", "engine-1"}
        assert max(shown.values()) > 0, (table, told)
        for name, seconds in told.items():
            assert abs(shown[name] - seconds) <= 0.001, (table, told)
