"""Limits as a tenant meets them at the front door, and as an operator sets them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openai import RateLimitError
from prometheus_client import REGISTRY

from forebay.platform.limits.rules import Level, Limits
from forebay.platform.tenancy.principal import Scope
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door, config, opened
from tests.integration.observed import SLOW, stopped
from tests.integration.test_openai_client import sdk
from tests.integration.test_waiting import BUSY, long_prefill, prompt, wait_until

LONG = "so it goes on and on and on and on and on, " * 40


_clients: list[httpx.AsyncClient] = []


@pytest.fixture(autouse=True)
async def closed_clients() -> AsyncIterator[None]:
    yield
    while _clients:
        await _clients.pop().aclose()


class Tenant:
    """A tenant's project and key, and what the front door answers it."""

    def __init__(self, door: Door, ids: dict[Level, str], secret: str) -> None:
        self.door = door
        self.ids = ids
        self.key = secret
        self.http = httpx.AsyncClient(base_url=door.url, headers={"authorization": f"Bearer {secret}"}, timeout=30.0)
        _clients.append(self.http)

    async def limit(self, level: Level, model: str = "", **numbers: int) -> None:
        """In force when this returns."""
        await self.door.service.tenancy.limits.set(level, self.ids[level], Limits(**numbers), model)
        await self.followed()

    async def followed(self) -> None:
        """Returns when the front door has heard of all changes."""
        feed, began = self.door.service.auth.feed, time.clock_gettime(time.CLOCK_BOOTTIME)
        await eventually(lambda: feed.contact > began)

    async def chat(self, content: str = "hello", **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": content}]
        return await self.http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": messages, "max_tokens": 2, **body}
        )

    async def spent(self) -> dict[str, int]:
        """What this process has counted of each limit, and the slots that are held."""
        limiter = self.door.service.limiter
        mirror = limiter.mirror
        names = {key: key.decode().rpartition("}:")[2] for key in (*mirror.spent, *mirror.slots)}
        mine = {
            **{names[key]: one.count for key, one in mirror.spent.items()},
            **{names[key]: len(held) for key, held in mirror.slots.items()},
        }
        ids = {owner: level.value for level, owner in self.ids.items()}
        found = {}
        for name, count in mine.items():
            owner, _, rest = name.partition(":")
            if owner in ids and count:
                found[f"{ids[owner]}:{rest}"] = count
        return found


async def tenant(door: Door, name: str = "limited") -> Tenant:
    tenancy = door.service.tenancy
    made = await tenancy.create_tenant(name)
    project = await tenancy.create_project(made.id, "main")
    key = await tenancy.create_key(project.id, scopes=(Scope.INFERENCE, Scope.DEBUG))
    return Tenant(door, {Level.TENANT: made.id, Level.PROJECT: project.id, Level.KEY: key.key.id}, key.secret)


def metadata(answer: httpx.Response) -> Any:
    assert answer.status_code == 429, answer.text
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    return answer.json()["error"]["metadata"]


async def test_requests_of_a_minute_and_the_headers_that_say_so(open_door: OpenDoor) -> None:
    """ai-gateway#2394, #1754."""
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.KEY, requests_per_minute=3)
        await who.limit(Level.TENANT, requests_per_minute=100)
        left = []
        for _ in range(3):
            answer = await who.chat()
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "3"
            left.append(answer.headers["x-ratelimit-remaining-requests"])
            assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
            assert "x-ratelimit-limit-tokens" not in answer.headers
        assert left == ["2", "1", "0"]
        answer = await who.chat()
        said = metadata(answer)
        assert (said["limit"], said["level"], said["limit_value"], said["remaining"]) == (
            "requests_per_minute", "key", 3, 0,
        )  # fmt: skip
        assert 0 < said["reset_s"] <= 60
        assert int(answer.headers["retry-after-ms"]) == round(said["reset_s"] * 1000)
        assert int(answer.headers["retry-after"]) >= said["reset_s"]
        assert answer.headers["x-ratelimit-remaining-requests"] == "0"
        assert await who.spent() == {"key:r:": 3, "tenant:r:": 3}
        assert "x-ratelimit-limit-requests" not in (await door.chat()).headers  # a key without limits


async def test_an_answer_to_what_cannot_be_read_says_what_is_left_too(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.TENANT, output_tokens_per_minute=5000)
        for status, body in ((400, {"temperature": "hot"}), (404, {"model": "gpt-9"})):
            answer = await who.chat(**body)
            assert answer.status_code == status
            assert answer.headers["x-ratelimit-remaining-tokens"] == "5000"
            assert answer.headers["x-ratelimit-reset-tokens"] != "0s"


async def test_openais_client_understands(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.PROJECT, input_tokens_per_minute=30)
        async with sdk(door, who.key) as (client, asked):
            with pytest.raises(RateLimitError) as refused:
                await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG}])
        assert len(asked) == 1  # it can never fit, and is not tried again
        assert "can never fit" in refused.value.message
        assert refused.value.code == "rate_limit_exceeded"
        assert await who.spent() == {}


async def test_tokens_are_reserved_and_become_what_was_used(open_door: OpenDoor) -> None:
    """ai-gateway#2394."""
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.PROJECT, input_tokens_per_minute=10_000, output_tokens_per_minute=5_000)
        answer = await who.chat(LONG, max_tokens=7)
        usage = answer.json()["usage"]
        spent = await who.spent()
        assert spent == {"project:i:": usage["prompt_tokens"], "project:o:": usage["completion_tokens"]}
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) == 5000 - usage["completion_tokens"]
        again = (await who.chat(LONG, max_tokens=7)).json()["usage"]  # most of it is cached
        cached = again["prompt_tokens_details"]["cached_tokens"]
        assert cached > 0
        assert (await who.spent())["project:i:"] == spent["project:i:"] + again["prompt_tokens"] - cached


async def test_a_warm_conversation_is_not_held_to_its_whole_length(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        first = (await who.chat(LONG)).json()["usage"]["prompt_tokens"]
        await who.limit(Level.PROJECT, input_tokens_per_minute=first // 2)
        assert (await who.chat(LONG)).status_code == 200
        said = metadata(await who.chat("something else: " + LONG))
        assert said["limit"] == "input_tokens_per_minute"


async def test_no_max_tokens_is_needed(open_door: OpenDoor) -> None:
    """tensorzero#3648."""
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.PROJECT, output_tokens_per_minute=100)  # less than is guessed of an answer
        answer = await who.chat(max_tokens=None)
        assert answer.status_code == 200
        assert (await who.spent())["project:o:"] == answer.json()["usage"]["completion_tokens"]


async def test_a_limit_for_a_model_is_of_that_model(open_door: OpenDoor) -> None:
    models = [{"name": MODEL, "pool": "main", "aliases": ["alias"]}, {"name": "another", "pool": "main"}]
    async with EngineDouble() as engine, open_door(engine, models=models) as door:
        who = await tenant(door)
        await who.limit(Level.PROJECT, "another", requests_per_minute=0)
        await who.limit(Level.PROJECT, MODEL, requests_per_minute=1)
        assert (await who.chat(model="alias")).status_code == 200
        assert metadata(await who.chat())["model"] == MODEL
        await who.limit(Level.PROJECT, "alias", requests_per_minute=2)  # the same model, whatever it is called
        assert (await who.chat()).status_code == 200
        assert metadata(await who.chat(model="alias"))["limit_value"] == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_concurrent_requests_and_slots_that_come_back(open_door: OpenDoor, stream: bool) -> None:
    async with EngineDouble(SLOW) as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.KEY, concurrent_requests=2, queued_requests=2)
        await who.limit(Level.TENANT, output_tokens_per_minute=5000, input_tokens_per_minute=90_000)
        running = [asyncio.create_task(who.chat(max_tokens=1000, stream=stream)) for _ in range(2)]
        await eventually(lambda: engine.scheduler.in_flight == 2)
        await eventually(lambda: holds(who, {"key:c:": 2}))  # they wait no more
        answer = await who.chat()
        assert metadata(answer)["limit"] == "concurrent_requests"
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["x-ratelimit-limit-tokens"] == "5000"
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(5000 - 2 * 256)  # reserved by those that run
        for task in running:  # the client leaves
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await stopped(engine)
        await eventually(lambda: holds(who, {}))
        assert (await who.chat()).status_code == 200
        await eventually(lambda: holds(who, {}))


async def holds(who: Tenant, slots: dict[str, int]) -> bool:
    return {name: count for name, count in (await who.spent()).items() if name[-2] in "cq"} == slots


async def test_queued_requests_are_those_that_no_engine_has(open_door: OpenDoor) -> None:
    async with EngineDouble(BUSY) as engine, open_door(engine) as door, long_prefill(door, engine) as long:
        who = await tenant(door)
        await who.limit(Level.KEY, queued_requests=1, requests_per_minute=9)
        waiting = asyncio.create_task(who.chat(prompt(900)))
        await wait_until(door, 1)
        assert metadata(await who.chat())["limit"] == "queued_requests"
        waiting.cancel()  # its place is free again
        await wait_until(door, 0)
        await eventually(lambda: holds(who, {}))
        waiting = asyncio.create_task(who.chat(prompt(900)))
        await wait_until(door, 1)
        await long
        assert (await waiting).status_code == 200
        assert await holds(who, {})


async def test_what_we_fail_to_answer_does_not_count_and_what_is_wrong_does(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.TENANT, requests_per_minute=50, input_tokens_per_minute=9000,
                        output_tokens_per_minute=9000, concurrent_requests=5)  # fmt: skip
        engine.faults.add(msgspec.json.encode(Fault(kind="status", status=500, path="/v1/chat")))
        assert (await who.chat()).status_code == 503
        assert await who.spent() == {}
        engine.faults.clear()
        assert (await who.chat(temperature="hot")).status_code == 400
        assert await who.spent() == {"tenant:r:": 1}


async def test_a_request_that_moves_to_another_engine_counts_once(open_door: OpenDoor) -> None:
    """litellm#39455."""
    fault = Fault(kind="status", status=500, path="/v1/chat")
    async with EngineDouble(faults=(fault,)) as broken, EngineDouble() as well, open_door(broken, well) as door:
        who = await tenant(door)
        await who.limit(Level.TENANT, requests_per_minute=50, input_tokens_per_minute=9000,
                        output_tokens_per_minute=9000, concurrent_requests=1)  # fmt: skip
        used: list[dict[str, int]] = []
        while not any(one.path.startswith("/v1/chat") for one in broken.requests):
            answer = await who.chat(f"conversation {len(used)}")
            assert answer.status_code == 200
            used.append(answer.json()["usage"])
        spent = await who.spent()
        assert spent["tenant:r:"] == len(used)
        assert spent["tenant:o:"] == sum(usage["completion_tokens"] for usage in used)
        assert await holds(who, {})


async def test_every_way_out_gives_back_what_was_held(open_door: OpenDoor) -> None:
    """otari#128, eliza#9904; litellm#28160, #40846, #27955: an error before the first byte leaks no slot and no
    reservation."""
    changes = {
        "timeouts": {"firstByte": 0.5, "heartbeatAfter": 5.0, "connect": 0.2}, "server": {"bodyLimit": 100_000},
        "models": [{"name": name, "pool": "main"} for name in (MODEL, "another")],
    }  # fmt: skip
    async with EngineDouble(max_model_len=512) as engine, open_door(engine, **changes) as door:
        who = await tenant(door)
        await who.limit(Level.TENANT, requests_per_minute=999, input_tokens_per_minute=99_000,
                        output_tokens_per_minute=99_000, concurrent_requests=1, queued_requests=1)  # fmt: skip
        await who.limit(Level.KEY, "another", input_tokens_per_minute=0)

        async def out(status: int, fault: Fault | None = None, **body: Any) -> None:
            engine.faults.clear()
            if fault is not None:
                engine.faults.add(msgspec.json.encode(fault))
            for stream in (False, True):
                answer = await who.chat(stream=stream, **body)
                assert answer.status_code == status, answer.text
                await eventually(lambda: holds(who, {}))
                assert set(await who.spent()) <= {"tenant:r:"}, body

        await out(404, model="gpt-9")
        await out(400, temperature="hot")
        await out(400, content="word " * 4000)
        await out(413, content="x" * 200_000)
        await out(429, model="another")
        for fault in (
            Fault(kind="status", status=400, path="/v1/chat"), Fault(kind="status", status=503, path="/v1/chat"),
            Fault(kind="close_before_headers", path="/v1/chat"), Fault(kind="close_after_headers", path="/v1/chat"),
        ):  # fmt: skip
            await out(400 if fault.status == 400 else 503, fault)
        await out(504, Fault(kind="hang_before_headers", path="/v1/chat"))
        for stream in (False, True):  # who leaves before anything came
            with pytest.raises(httpx.ReadTimeout):
                await who.http.post("/v1/chat/completions", timeout=0.2, json={
                    "model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": stream})  # fmt: skip
            await eventually(lambda: holds(who, {}))
        engine.faults.clear()
        assert (await who.chat()).status_code == 200  # with room for one at a time


async def test_a_stream_that_breaks_is_not_charged(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.TENANT, output_tokens_per_minute=9000)
        engine.faults.add(msgspec.json.encode(Fault(kind="close", after=3, path="/v1/chat")))
        answer = await who.chat(stream=True, max_tokens=50)
        assert '"error"' in answer.text
        assert await who.spent() == {}


async def test_nothing_is_read_of_what_the_gate_refuses(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.KEY, requests_per_minute=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", door.service.config.server.port)
        writer.write((f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {who.key}\r\n"
                      "content-length: 1000\r\n\r\n").encode())  # fmt: skip
        async with asyncio.timeout(5):
            head = await reader.readuntil(b"\r\n\r\n")
        assert b" 429 " in head
        assert b"x-should-retry: false" in head
        writer.close()


async def test_a_change_holds_within_a_second_and_counts_go_on(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        tenancy = door.service.tenancy
        assert (await who.chat()).status_code == 200

        async def until(status: int) -> None:
            async def answered() -> bool:
                return (await who.chat()).status_code == status

            await eventually(answered, timeout=1.0)

        await tenancy.limits.set(Level.PROJECT, who.ids[Level.PROJECT], Limits(requests_per_minute=0))
        await until(429)
        await tenancy.limits.clear(who.ids[Level.PROJECT])
        await until(200)


async def test_two_front_doors_count_together(open_door: OpenDoor, database: str, valkey: str, tmp_path: Path) -> None:
    """litellm#18730, #27736, #40291."""
    async with EngineDouble() as engine, open_door(engine) as door:
        (tmp_path / "other").mkdir()
        secrets = {"cacheSalt": str(tmp_path / "secrets/cache-salt"), "keyHash": str(tmp_path / "secrets/key-hash")}
        other = config(tmp_path / "other", [engine], secrets=secrets)
        async with opened(other, database, valkey, "beta") as second:
            who = await tenant(door)
            await who.limit(Level.TENANT, requests_per_minute=5)
            there = Tenant(second, who.ids, who.key)
            await there.followed()
            answers = await asyncio.gather(*(one.chat() for one in (who, there) * 6))
            assert sorted(answer.status_code for answer in answers) == [200] * 5 + [429] * 7


async def test_refusals_and_leases_are_metrics(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        await who.limit(Level.PROJECT, requests_per_minute=0)
        labels = {"limit": "requests_per_minute", "level": "project"}
        before = REGISTRY.get_sample_value("forebay_limit_refusals_total", labels) or 0
        await who.chat()
        text = (await who.http.get("/metrics")).text
        assert f'forebay_limit_refusals_total{{level="project",limit="requests_per_minute"}} {before + 1}' in text
        assert "forebay_limit_leases 0.0" in text
        assert "forebay_limits_shared 1.0" in text
        assert who.ids[Level.PROJECT] not in text
        health = (await who.http.get("/health")).json()
        assert health["status"] == "ok"
        assert (health["limits"]["status"], health["limits"]["processes"]) == ("shared", 1)


async def test_without_valkey_limits_hold_by_a_share_and_health_says_so(
    database: str, tmp_path: Path
) -> None:
    """litellm#35528."""
    async with EngineDouble() as engine, opened(config(tmp_path, [engine]), database, "valkey://127.0.0.1:1/0") as door:
        who = await tenant(door)
        await who.limit(Level.KEY, requests_per_minute=3)
        answers = [await who.chat() for _ in range(5)]
        assert [one.status_code for one in answers] == [200, 200, 200, 429, 429]
        assert answers[1].headers["x-ratelimit-remaining-requests"] == "1"
        health = (await who.http.get("/health")).json()
        assert health["status"] == "degraded"
        assert health["limits"]["status"] == "local share"
        assert "forebay_limits_shared 0.0" in (await who.http.get("/metrics")).text


async def test_set_shown_and_cleared_through_the_admin_api(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        admin = (await door.service.tenancy.create_admin_key()).secret
        base = f"/admin/v1/tenants/{who.ids[Level.TENANT]}"
        paths = {
            Level.TENANT: f"{base}/limits",
            Level.PROJECT: f"{base}/projects/{who.ids[Level.PROJECT]}/limits",
            Level.KEY: f"{base}/projects/{who.ids[Level.PROJECT]}/keys/{who.ids[Level.KEY]}/limits",
        }
        async with httpx.AsyncClient(base_url=door.url, headers={"authorization": f"Bearer {admin}"}) as http:
            for level, path in paths.items():
                assert (await http.get(path)).json()["data"] == []
                answer = await http.put(path, json={"requests_per_minute": 7, "queued_requests": None})
                assert answer.status_code == 200, answer.text
                assert answer.json()["limits"]["requests_per_minute"] == 7
                assert answer.json()["limits"]["queued_requests"] is None
                answer = await http.put(path, params={"model": "alias"}, json={"concurrent_requests": 2})
                assert answer.json()["model"] == MODEL
                found = (await http.get(path)).json()["data"]
                assert [(one["level"], one["model"]) for one in found] == [(level, None), (level, MODEL)]
            await who.followed()
            assert (await who.chat()).headers["x-ratelimit-limit-requests"] == "7"

            rotated = await http.post(f"{paths[Level.KEY].removesuffix('limits')}rotate", json={})
            heir = paths[Level.KEY].replace(who.ids[Level.KEY], rotated.json()["key"]["id"])
            assert len((await http.get(heir)).json()["data"]) == 2
            exported = (await http.get(f"{base}/export")).json()
            assert len(exported["limits"]) == 8

            assert (await http.put(paths[Level.TENANT], json={})).status_code == 200  # nothing is limited: none is kept
            assert [one["model"] for one in (await http.get(paths[Level.TENANT])).json()["data"]] == [MODEL]
            assert (await http.delete(paths[Level.TENANT], params={"model": "alias"})).json()["data"] == []
            assert (await http.delete(paths[Level.PROJECT])).json()["data"] == []
            other = await door.service.tenancy.create_tenant("other")
            stranger = paths[Level.PROJECT].replace(who.ids[Level.TENANT], other.id)
            for method in ("GET", "PUT", "DELETE"):
                answer = await http.request(method, stranger, json={} if method == "PUT" else None)
                assert answer.status_code == 404
        assert (await who.http.get(paths[Level.KEY])).status_code in (401, 403)


WRONG: list[tuple[bytes, str | None, str]] = [
    (b'{"requests_per_minute": -1}', "requests_per_minute", "expected `int` >= 0"),
    (b'{"requests_per_minute": 2.5}', "requests_per_minute", "expected an integer, but got a number"),
    (b'{"requests_per_minute": 2.0}', "requests_per_minute", "expected an integer, but got a number"),
    (b'{"requests_per_minute": 1000000000001}', "requests_per_minute", "expected `int` <= 1000000000000"),
    (b'{"requests_per_minute": 1' + b"0" * 400 + b"}", "requests_per_minute", "expected `int` <= 1000000000000"),
    (b'{"requests_per_minute": true}', "requests_per_minute", "expected an integer, but got a boolean"),
    (b'{"requests_per_minute": "5"}', "requests_per_minute", "expected an integer, but got a string"),
    (b'{"requests_per_minute": "null"}', "requests_per_minute", "expected an integer, but got a string"),
    (b'{"requests_per_minute": [1]}', "requests_per_minute", "expected an integer, but got an array"),
    (b'{"requests_per_minute": NaN}', None, "could not parse the JSON body"),
    (b'{"requests_per_minute": 1e999}', "requests_per_minute", "Invalid type for 'requests_per_minute'"),
    (b'{"queued_requests": 1, "queued_requests": null}', None, "could not parse the JSON body"),
    (b'{"rpm": 1}', "rpm", "The parameters are requests_per_minute, input_tokens_per_minute"),
    (b'{"requestPerMinute": 1}', "requestPerMinute", "Did you mean 'requests_per_minute'?"),
    (b'{"requests_p\xc3\xa9r_minute": 1}', "requests_p\u00e9r_minute", "Did you mean 'requests_per_minute'?"),
    (b"[]", None, "The body of a request is a JSON object; this one is an array"),
    (b"null", None, "The body of a request is a JSON object; this one is null"),
    (b"", None, "could not parse the JSON body"),
    (b'{"queued_requests": 1', None, "could not parse the JSON body"),
    (b"\xff", None, "could not parse the JSON body"),
]


async def too_large(http: httpx.AsyncClient, path: str) -> httpx.Response:
    """It is answered unread, and the connection closed: now and then a client that still writes does not hear why."""
    for _ in range(4):
        try:
            return await http.put(path, content=b" " * (2 << 20), headers={"content-type": "application/json"})
        except httpx.TransportError:
            continue
    raise AssertionError("never answered")


async def test_what_cannot_be_a_limit_is_refused_and_changes_nothing(open_door: OpenDoor) -> None:
    """litellm#22726, #20615: null is unlimited, and nothing else is taken for it."""
    async with EngineDouble() as engine, open_door(engine) as door:
        who = await tenant(door)
        admin = (await door.service.tenancy.create_admin_key()).secret
        path = f"/admin/v1/tenants/{who.ids[Level.TENANT]}/limits"
        async with httpx.AsyncClient(base_url=door.url, headers={"authorization": f"Bearer {admin}"}) as http:
            set_ = {"requests_per_minute": 0, "queued_requests": 10**12}
            before = (await http.put(path, json=set_)).json()["limits"]
            assert {name: before[name] for name in set_} == set_

            async def refused(method: str, query: str, body: bytes, param: str | None, said: str) -> None:
                headers = {"content-type": "application/json"}
                answer = await http.request(method, f"{path}{query}", content=body, headers=headers)
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, param), (query, body, answer.text)
                assert said in error["message"]

            for body, param, said in WRONG:
                await refused("PUT", "", body, param, said)
            for method, body in (("PUT", b'{"requests_per_minute": 1}'), ("DELETE", b"")):
                await refused(method, "?modle=alias", body, "modle", "This takes one, model, and once.")
                await refused(method, "?model=alias&model=x", body, "model", "This takes one, model, and once.")
                await refused(method, "?model=%00", body, "model", "printable")
                await refused(method, f"?model={'x' * 129}", body, None, "length <= 128")
            await refused("PUT", "?model=alais", b'{"queued_requests": 1}', "model", "did you mean alias?")
            await refused("PUT", "?model=*", b'{"queued_requests": 1}', "model", f"the models are {MODEL} (alias)")
            await refused("GET", "?model=alias", b"", "model", "This takes none.")
            too_much = await too_large(http, path)
            assert (too_much.status_code, too_much.json()["error"]["code"]) == (413, "request_too_large")
            (found,) = (await http.get(path)).json()["data"]
            assert found["limits"] == before
            assert (await http.delete(path, params={"model": "gone"})).status_code == 200


async def test_a_key_shows_nothing_of_other_tenants_limits(open_door: OpenDoor) -> None:
    """Each counts for itself, and hears of its own."""
    async with EngineDouble() as engine, open_door(engine) as door:
        mine, other = await tenant(door, "one"), await tenant(door, "two")
        await mine.limit(Level.TENANT, requests_per_minute=2)
        await other.limit(Level.TENANT, requests_per_minute=2)
        assert [(await mine.chat()).status_code for _ in range(3)] == [200, 200, 429]
        answer = await other.chat()
        assert answer.headers["x-ratelimit-remaining-requests"] == "1"
        assert json.dumps(mine.ids) not in answer.text
