"""A tenant from the first admin call to the last, over HTTP alone, and what each tenant sees of the bill."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from openai import AsyncOpenAI, AuthenticationError, PermissionDeniedError

from forebay.platform.config.model import Config
from forebay.platform.limits.rules import Level, Limits
from forebay.platform.server import listening
from forebay.platform.service import running
from forebay.platform.tenancy.principal import Scope
from tests.doubles.engine.faults import Fault
from tests.doubles.engine.server import EngineDouble
from tests.eventually import eventually
from tests.integration.conftest import OpenDoor
from tests.integration.door import MODEL, Door, config, opened
from tests.processes import front_door
from tests.stores import state_directory

HELLO: Any = [{"role": "user", "content": "hello"}]


class Admin:
    """Calls of `/admin/v1` with an admin key."""

    def __init__(self, door: Door, secret: str) -> None:
        self._http = door.http
        self.secret = secret

    async def __call__(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        headers = {"authorization": f"Bearer {self.secret}"}
        answer = await self._http.request(method, f"/admin/v1{path}", json=body, headers=headers)
        assert answer.status_code == status, answer.text
        return answer.json()


async def admin_of(door: Door) -> Admin:
    return Admin(door, (await door.service.tenancy.create_admin_key()).secret)


@asynccontextmanager
async def client(door: Door, key: str) -> AsyncIterator[AsyncOpenAI]:
    """As a tenant makes it: its key also reads its usage."""
    async with AsyncOpenAI(base_url=f"{door.url}/v1", api_key=key, admin_api_key=key, max_retries=0) as made:
        yield made


async def ask(door: Door, key: str, content: str = "hello", model: str = MODEL) -> Any:
    async with client(door, key) as made:
        return await made.chat.completions.create(
            model=model, messages=[{"role": "user", "content": content}], max_tokens=4
        )


async def usage(door: Door, key: str, **query: Any) -> list[Any]:
    """All results of the last hours, from every bucket."""
    async with client(door, key) as made:
        page = await made.admin.organization.usage.completions(start_time=int(time.time()) - 7200, **query)
    return [result for bucket in page.data for result in bucket.results]


async def used_by(door: Door, key: str, requests: int) -> list[Any]:
    """The usage once it counts `requests`."""

    async def complete() -> list[Any] | None:
        found = await usage(door, key)
        return found if sum(one.num_model_requests for one in found) >= requests else None

    found: list[Any] | None = await eventually(complete, 10.0, every=0.05)
    assert found is not None
    return found


async def refusal(door: Door, key: str) -> tuple[int, str | None]:
    """How `key` is refused, within a second."""

    async def refused() -> tuple[int, str | None] | None:
        try:
            await ask(door, key)
        except (AuthenticationError, PermissionDeniedError) as error:
            return error.status_code, error.code
        return None

    found: tuple[int, str | None] | None = await eventually(refused, 1.0)
    assert found is not None
    return found


async def works(door: Door, key: str) -> None:
    """Returns once `key` does; raises if that takes more than a second."""

    async def answered() -> bool:
        try:
            return bool((await ask(door, key)).choices)
        except (AuthenticationError, PermissionDeniedError):
            return False

    await eventually(answered, 1.0)


async def test_the_life_of_a_tenant_over_http(open_door: OpenDoor) -> None:
    async with EngineDouble() as engine, open_door(engine) as door:
        admin = await admin_of(door)
        at = f"/tenants/{(tenant := (await admin('POST', '/tenants', {'name': 'globex'}, 201))['id'])}"
        project = (await admin("POST", f"{at}/projects", {"name": "chat", "models": [MODEL]}, 201))["id"]
        keys = f"{at}/projects/{project}/keys"
        first = await admin("POST", keys, {"scopes": ["inference", "usage.read"]}, 201)
        secret = first["secret"]

        answer = await ask(door, secret)
        (used,) = await used_by(door, secret, 1)
        assert (used.input_tokens, used.output_tokens) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)

        await admin("POST", f"{at}/suspend")
        assert await refusal(door, secret) == (403, "tenant_suspended")
        await admin("POST", f"{at}/resume")
        await works(door, secret)

        second = await admin("POST", f"{keys}/{first['key']['id']}/rotate", {"grace_seconds": 1.5}, 201)
        await ask(door, second["secret"])
        await ask(door, secret)  # in its grace
        await asyncio.sleep(1.5)
        assert await refusal(door, secret) == (401, "invalid_api_key")
        await ask(door, second["secret"])
        await admin("DELETE", f"{keys}/{second['key']['id']}")
        assert await refusal(door, second["secret"]) == (401, "invalid_api_key")

        export = await admin("GET", f"{at}/export")
        assert [p["id"] for p in export["projects"]] == [project]
        assert {key["status"] for key in export["keys"]} == {"expired", "revoked"}
        assert answer._request_id in {record["request_id"] for record in export["usage"]}
        assert {record["tenant_id"] for record in export["usage"]} == {tenant}

        third = (await admin("POST", keys, {}, 201))["secret"]
        await ask(door, third)
        await admin("DELETE", at)
        assert (await refusal(door, third))[0] == 401
        assert (await ask(door, door.key)).choices  # of another tenant
        for shown in (str(export), str(await admin("GET", "/tenants?deleted=true"))):
            assert not [s for s in (secret, second["secret"], third, admin.secret) if s in shown]


async def test_usage_is_grouped_and_never_anothers(open_door: OpenDoor) -> None:
    models = [{"name": name, "pool": "main", "apis": ["chat", "completions"]} for name in (MODEL, "second")]
    async with EngineDouble() as engine, open_door(engine, models=models) as door:
        tenancy = door.service.tenancy
        tenant = await tenancy.create_tenant("globex")
        projects = [(await tenancy.create_project(tenant.id, name)).id for name in ("one", "two")]
        made = [await tenancy.create_key(project, scopes=[Scope.INFERENCE]) for project in (*projects, projects[0])]
        reader = (await tenancy.create_key(projects[1], scopes=[Scope.USAGE_READ])).secret
        for key, model in ((0, MODEL), (0, "second"), (1, MODEL), (2, MODEL), (2, MODEL)):
            await ask(door, made[key].secret, model=model)
        for _ in range(3):
            await ask(door, door.key, "a longer question of another tenant")
        assert [one.num_model_requests for one in await used_by(door, reader, 5)] == [5]
        await used_by(door, door.key, 3)

        async def counts(*groups: Any) -> dict[Any, int]:
            found = await usage(door, reader, group_by=list(groups))
            return {tuple(getattr(one, group) for group in groups): one.num_model_requests for one in found}

        assert await counts("project_id") == {(projects[0],): 4, (projects[1],): 1}
        assert await counts("model") == {(MODEL,): 4, ("second",): 1}
        assert await counts("api_key_id") == {(key.key.id,): n for key, n in zip(made, (2, 1, 2), strict=True)}
        assert await counts("project_id", "model") == {
            (projects[0], MODEL): 3, (projects[0], "second"): 1, (projects[1], MODEL): 1
        }  # fmt: skip

        (mine,) = await usage(door, door.key)
        assert mine.num_model_requests == 3
        other = (await tenancy.tenants())[0]
        theirs = (await tenancy.projects(other.id))[0].id
        assert await usage(door, reader, project_ids=[theirs]) == []  # asked for by name, too
        assert await usage(door, reader, api_key_ids=[door.key_id]) == []
        with pytest.raises(PermissionDeniedError):
            await ask(door, reader)
        with pytest.raises(PermissionDeniedError):
            await usage(door, made[0].secret)


async def test_the_other_key_reads_usage_through_the_admin_client(open_door: OpenDoor) -> None:
    """As OpenAI's documentation shows it: a client with an admin key only. An operator's own key has no tenant."""
    async with EngineDouble() as engine, open_door(engine) as door:
        await ask(door, door.key)
        await used_by(door, door.key, 1)
        async with AsyncOpenAI(base_url=f"{door.url}/v1", admin_api_key=door.key, api_key="unused") as made:
            page = await made.admin.organization.usage.completions(start_time=int(time.time()) - 60)
            assert sum(len(bucket.results) for bucket in page.data) == 1
            costs = await made.admin.organization.usage.costs(start_time=int(time.time()) - 60)
            assert costs.data[0].results[0].amount.value > 0  # type: ignore[union-attr,operator]
        operator = (await admin_of(door)).secret
        with pytest.raises(PermissionDeniedError):
            await usage(door, operator)


async def test_a_new_price_is_for_new_requests(database: str, valkey: str, tmp_path: Path) -> None:
    """Versions are chosen at dispatch; what was recorded keeps its price, whatever the file says later."""
    old = {"version": "v1", "effectiveFrom": "2026-01-01T00:00:00Z", "input": "1", "output": "1"}
    new = {"version": "v2", "effectiveFrom": "2026-02-01T00:00:00Z", "input": "1000", "output": "1000"}

    async def spent(door: Door, requests: int) -> float:
        await used_by(door, door.key, requests)
        async with client(door, door.key) as made:
            page = await made.admin.organization.usage.costs(start_time=int(time.time()) - 60)
        amount: Any = page.data[-1].results[0]
        return float(amount.amount.value)

    async with EngineDouble() as engine:
        first = config(tmp_path, [engine], models=[{"name": MODEL, "pool": "main", "prices": [old]}])
        async with opened(first, database, valkey) as door:
            tokens = (await ask(door, door.key)).usage.total_tokens
            assert await spent(door, 1) == pytest.approx(tokens / 1e6)
            key = door.key
        second = config(tmp_path, [engine], models=[{"name": MODEL, "pool": "main", "prices": [old, new]}])
        async with reopened(second, database, valkey, key) as door:
            assert await spent(door, 1) == pytest.approx(tokens / 1e6)
            assert (await ask(door, key)).usage.total_tokens == tokens
            assert await spent(door, 2) == pytest.approx(tokens * 1001 / 1e6)
            assert [record["price_version"] for record in await door.ledger()] == ["v1", "v2"]


@asynccontextmanager
async def reopened(configured: Config, postgres: str, valkey: str, key: str) -> AsyncIterator[Door]:
    """A front door on stores that have tenants already."""
    async with running(configured, postgres_url=postgres, valkey_url=valkey) as service, listening(service):
        door = Door(service, key, "")
        try:
            yield door
        finally:
            await door.http.aclose()
            await door.openai.close()


async def test_metrics_name_no_tenant_key_or_request(open_door: OpenDoor) -> None:
    """litellm#12159, #39136: whatever tenants send, the number of series does not grow with them."""
    async with EngineDouble() as engine, open_door(engine) as door:
        admin = await admin_of(door)

        async def session(number: int) -> None:
            key = await door.new_key()
            await ask(door, key)
            limited, tenant = await door.new_key(), (await door.service.tenancy.tenants())[-1]
            await door.service.tenancy.limits.set(Level.TENANT, tenant.id, Limits(requests_per_minute=0))
            body: Any = {"model": MODEL, "messages": HELLO}
            headers = {"authorization": f"Bearer {limited}"}
            assert (await door.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 429
            for body in (
                {"model": f"model-{number}", "messages": HELLO}, {"model": MODEL, f"field{number}": 1},
                {"model": MODEL, "messages": HELLO, "service_tier": f"tier{number}"},
            ):  # fmt: skip
                await door.http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
            for path in (f"/v1/path{number}", f"/v1/models/m{number}", f"/admin/v1/tenants/ten_{number}"):
                await door.http.get(path, headers={"authorization": f"Bearer {admin.secret}"})
            await door.http.get("/v1/models", headers={"authorization": f"Bearer sk-{number}"})

        await session(0)
        before = (await door.http.get("/metrics")).text
        for number in range(1, 8):
            await session(number)
        after = (await door.http.get("/metrics")).text
        assert series(after) == series(before)
        assert "forebay_requests_total" in after
        for trace in ("ten_", "proj_", "key_", "req_", "sk-", "model-", door.key, admin.secret):
            assert trace not in after, trace


def series(exposition: str) -> set[str]:
    """Names with their labels, values left out."""
    return {line.rpartition(" ")[0] for line in exposition.splitlines() if not line.startswith("#")}


async def test_no_key_in_what_a_front_door_says(
    database: str, valkey: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """All output of a process, all its answers and all its files, over a session in which all goes wrong that can."""
    with state_directory() as state:
        async with (
            EngineDouble() as engine,
            front_door(state, [engine.url], model=MODEL, postgres=database, valkey=valkey) as door,
        ):
            stranger = door.key[:-3] + "xyz"
            said = await everything_wrong(door.url, engine, door.key, stranger)
        assert door.process.stdout is not None
        said += (await door.process.stdout.read()).decode() + (output := capfd.readouterr().err)
        said += "".join(file.read_bytes().decode("latin-1") for file in state.rglob("*") if file.is_file())
        assert "engine-0" in output
        for key in (door.key, stranger):
            assert key not in said
            assert key.rpartition("-")[2] not in said


async def everything_wrong(url: str, engine: EngineDouble, key: str, stranger: str) -> str:
    """A session of requests that are refused, fail, break off or repeat their key where it does not belong; all that
    was answered."""
    engine.faults.add(msgspec.json.encode(Fault(kind="close", after=3, stream=True, path="/v1/chat")))
    said = ""
    async with httpx.AsyncClient(base_url=url, timeout=30.0) as http:
        for one in (key, stranger):
            for headers in ({"authorization": f"Bearer {one}"}, {"x-api-key": one}, {"authorization": one}):
                for body in (
                    {"model": MODEL, "messages": HELLO, "max_tokens": 2},
                    {"model": MODEL, "messages": HELLO, "stream": True},
                    {"model": one, "messages": HELLO},
                    {"model": MODEL, "messages": HELLO, "user": one, one: 1},
                ):
                    answer = await http.post("/v1/chat/completions", json=body, headers=headers)
                    said += answer.text + str(answer.headers)
                for path in ("/v1/models", "/admin/v1/tenants", f"/v1/nothing?api_key={one}", f"/{one}"):
                    answer = await http.get(path, headers=headers)
                    said += answer.text + str(answer.headers)
        said += (await http.get("/metrics")).text + (await http.get("/health")).text
        await engine.refuse()
        body = {"model": MODEL, "messages": HELLO}
        said += (await http.post("/v1/chat/completions", json=body, headers={"x-api-key": key})).text
    assert "engine_error" in said
    assert "model_not_found" in said
    return said
