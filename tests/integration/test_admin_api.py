"""The admin API over real Postgres and the real authenticator, called through ASGI."""

import time
from collections.abc import AsyncIterator
from typing import Any, cast

import httpx
import pytest
from litestar import Litestar, Request, Response
from litestar.di import Provide
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Ledger
from forebay.platform.api.admin import ADMIN_CONTROLLERS
from forebay.platform.api.limits import LIMIT_CONTROLLERS
from forebay.platform.errors import ApiError
from forebay.platform.offered import Offered
from forebay.platform.stores.database import create_engine
from forebay.platform.tenancy.auth import Authenticator, bearer
from forebay.platform.tenancy.hasher import Hasher
from forebay.platform.tenancy.keys import generate
from forebay.platform.tenancy.principal import Principal
from forebay.platform.tenancy.service import Tenancy
from tests.metered import attempt, record

OFFERED = Offered({"tiny": "tiny", "small": "tiny", "huge": "huge"}, ("fast", "default", "batch"))
HASHER = Hasher([("one", b"1" * 32)])
PASTED = f"my key is {generate('project')[0]}"


@pytest.fixture
def tenancy(engine: AsyncEngine) -> Tenancy:
    return Tenancy(engine, HASHER, OFFERED)


@pytest.fixture
async def client(engine: AsyncEngine, tenancy: Tenancy) -> AsyncIterator[httpx.AsyncClient]:
    """Holds an admin key. Without the change feed each request asks the database."""
    auth = Authenticator(engine, HASHER)

    async def principal(request: Request[Any, Any, Any]) -> Principal:
        token = request.headers.get("authorization")
        return await auth.authenticate(bearer(token.encode() if token else None))

    def refuse(_: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
        return Response(error.body(), status_code=error.status, media_type="application/json")

    app = Litestar(
        [*ADMIN_CONTROLLERS, *LIMIT_CONTROLLERS],
        dependencies={"principal": Provide(principal), "tenancy": Provide(lambda: tenancy, sync_to_thread=False)},
        exception_handlers={ApiError: refuse},
        openapi_config=None,
    )
    key = await tenancy.create_admin_key()
    headers = {"authorization": f"Bearer {key.secret}"}
    transport = httpx.ASGITransport(cast("Any", app))
    async with httpx.AsyncClient(transport=transport, base_url="http://forebay", headers=headers) as client:
        yield client


async def call(client: httpx.AsyncClient, method: str, path: str, body: Any = None, **headers: str) -> Any:
    answer = await client.request(method, f"/admin/v1{path}", json=body, headers=headers)
    assert answer.headers["content-type"].startswith("application/json")
    return answer.status_code, answer.json()


async def test_life_of_a_tenant(client: httpx.AsyncClient, tenancy: Tenancy, engine: AsyncEngine) -> None:
    status, tenant = await call(client, "POST", "/tenants", {"name": "acme"})
    assert (status, tenant["name"], tenant["status"]) == (201, "acme", "active")
    at = f"/tenants/{tenant['id']}"
    _, project = await call(client, "POST", f"{at}/projects", {"name": "chat", "models": ["tiny"]})
    assert project["models"] == ["tiny"]
    keys = f"{at}/projects/{project['id']}/keys"
    status, issued = await call(client, "POST", keys, {"name": "ci", "expires_at": time.time() + 3600})
    assert (status, issued["key"]["scopes"]) == (201, ["inference"])
    assert issued["secret"].startswith(issued["key"]["prefix"] + "-")

    _, listed = await call(client, "GET", keys)
    assert [key["id"] for key in listed["data"]] == [issued["key"]["id"]]
    assert issued["secret"] not in str(listed)

    status, rotated = await call(client, "POST", f"{keys}/{issued['key']['id']}/rotate", {"grace_seconds": 60})
    assert status == 201
    assert rotated["key"]["expires_at"] == pytest.approx(time.time() + 3600, abs=5)
    _, old = await call(client, "GET", f"{keys}/{issued['key']['id']}")
    assert (old["status"], old["replaced_by"]) == ("active", rotated["key"]["id"])
    assert old["expires_at"] == pytest.approx(time.time() + 60, abs=5)
    status, error = await call(client, "POST", f"{keys}/{issued['key']['id']}/rotate", {})
    assert (status, error["error"]["code"]) == (409, "key_already_rotated")
    _, revoked = await call(client, "DELETE", f"{keys}/{rotated['key']['id']}")
    assert revoked["status"] == "revoked"

    assert (await call(client, "POST", f"{at}/suspend"))[1]["status"] == "suspended"
    assert (await call(client, "POST", f"{at}/resume"))[1]["status"] == "active"
    assert (await call(client, "PATCH", f"{at}/projects/{project['id']}", {"models": None}))[1]["models"] is None

    await Ledger(engine).insert([record(attempt(n, tenant_id=tenant["id"])) for n in (1, 2)] + [record(3)])
    _, export = await call(client, "GET", f"{at}/export")
    assert [len(export[part]) for part in ("projects", "keys", "usage")] == [1, 2, 2]
    assert issued["secret"] not in str(export)

    status, deleted = await call(client, "DELETE", at)
    assert (status, deleted["status"], deleted["name"]) == (200, "deleted", None)
    _, export = await call(client, "GET", f"{at}/export")
    assert "acme" not in str(export)
    assert {key["status"] for key in export["keys"]} == {"revoked"}
    assert (await call(client, "POST", f"{at}/projects", {"name": "x"}))[0] == 409
    assert (await call(client, "POST", "/tenants", {"name": "acme"}))[0] == 201  # the name is free again
    assert [tenant["name"] for tenant in (await call(client, "GET", "/tenants"))[1]["data"]] == ["acme"]
    assert len((await call(client, "GET", "/tenants?deleted=true"))[1]["data"]) == 2


async def test_the_weight_of_a_tenant(client: httpx.AsyncClient) -> None:
    _, tenant = await call(client, "POST", "/tenants", {"name": "acme"})
    assert tenant["weight"] == 1
    at = f"/tenants/{tenant['id']}"
    assert (await call(client, "PATCH", at, {"weight": 2.5}))[1]["weight"] == 2.5
    assert (await call(client, "GET", at))[1]["weight"] == 2.5
    assert (await call(client, "POST", "/tenants", {"name": "globex", "weight": 0.5}))[1]["weight"] == 0.5
    for body in ({"weight": 0}, {"weight": -1}, {"weight": 101}):
        status, answer = await call(client, "PATCH", at, body)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_weight", "weight")
    for odd in ({}, {"weight": None}, {"weight": "x"}, {"weight": 2, "name": "x"}):
        assert (await call(client, "PATCH", at, odd))[0] == 400
    assert (await call(client, "PATCH", "/tenants/ten_000000000000000000000000", {"weight": 2}))[0] == 404
    await call(client, "DELETE", at)
    status, answer = await call(client, "PATCH", at, {"weight": 2})
    assert (status, answer["error"]["code"]) == (409, "tenant_deleted")


async def test_tiers_of_a_project(client: httpx.AsyncClient) -> None:
    _, tenant = await call(client, "POST", "/tenants", {"name": "acme"})
    at = f"/tenants/{tenant['id']}/projects"
    _, project = await call(client, "POST", at, {"name": "a", "models": ["tiny"], "tiers": ["batch", "fast", "fast"]})
    assert project["tiers"] == ["fast", "batch"]
    one = f"{at}/{project['id']}"
    _, changed = await call(client, "PATCH", one, {"tiers": None})
    assert (changed["tiers"], changed["models"]) == (None, ["tiny"])
    _, changed = await call(client, "PATCH", one, {"models": None, "tiers": []})
    assert (changed["tiers"], changed["models"]) == ([], None)
    _, changed = await call(client, "PATCH", one, {"models": ["tiny"]})
    assert (changed["tiers"], changed["models"]) == ([], ["tiny"])
    assert (await call(client, "PATCH", one, {}))[1] == changed == (await call(client, "GET", one))[1]

    created, misspelt = {"name": "b", "tiers": ["bach"]}, {"tiers": ["fast", "bach"]}
    for method, path, body in (("POST", at, created), ("PATCH", one, misspelt)):
        status, answer = await call(client, method, path, body)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_tier", "tiers")
        known = "The tiers are fast, default, batch"
        assert answer["error"]["message"] == f"there is no tier 'bach'; did you mean batch? {known}"
    _, answer = await call(client, "PATCH", one, {"tiers": ["zzz"]})
    assert answer["error"]["message"] == "there is no tier 'zzz'; the tiers are fast, default, batch"
    assert (await call(client, "GET", one))[1] == changed


async def test_models_of_a_project_are_of_the_configuration_or_stand_there_already(
    client: httpx.AsyncClient, tenancy: Tenancy
) -> None:
    _, tenant = await call(client, "POST", "/tenants", {"name": "acme"})
    at = f"/tenants/{tenant['id']}/projects"
    _, project = await call(client, "POST", at, {"name": "a", "models": ["small", "tiny", "huge"], "tiers": ["fast"]})
    assert project["models"] == ["huge", "tiny"]  # an alias stands for its model
    one = f"{at}/{project['id']}"
    for method, path, body in (("POST", at, {"name": "b", "models": ["smal"]}), ("PATCH", one, {"models": ["smal"]})):
        status, answer = await call(client, method, path, body)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "invalid_model", "models")
        assert answer["error"]["message"] == (
            "there is no model 'smal'; did you mean small? The models are huge, tiny (small)"
        )
    assert (await call(client, "GET", one))[1] == project

    tenancy.offered = Offered({"tiny": "tiny"}, ("default", "batch"))  # as after a start without huge and fast
    change = {"models": ["huge", "tiny"], "tiers": ["fast", "batch"]}
    _, changed = await call(client, "PATCH", one, change)
    assert {name: changed[name] for name in change} == {"models": ["huge", "tiny"], "tiers": ["batch", "fast"]}
    _, changed = await call(client, "PATCH", one, {"models": ["tiny"], "tiers": ["batch"]})
    assert (changed["models"], changed["tiers"]) == (["tiny"], ["batch"])
    assert (await call(client, "PATCH", one, {"models": ["huge"]}))[1]["error"]["code"] == "invalid_model"
    assert (await call(client, "PATCH", one, {"tiers": ["fast"]}))[1]["error"]["code"] == "invalid_tier"


@pytest.mark.parametrize(
    ("path", "what", "asked"),
    [
        ("/tenants/{gone}", "tenant", "ten_{0}"),
        ("/tenants/{gone}/projects", "tenant", "ten_{0}"),
        ("/tenants/{gone}/limits", "tenant", "ten_{0}"),
        ("/tenants/acme", "tenant", "acme"),
        ("/tenants/{tenant}/projects/proj_{0}", "project", "proj_{0}"),
        ("/tenants/{tenant}/projects/proj_{0}/keys", "project", "proj_{0}"),
        ("/tenants/{tenant}/projects/proj_{0}/keys/key_{0}", "key", "key_{0}"),
        ("/tenants/{tenant}/projects/proj_{0}/limits", "project", "proj_{0}"),
        ("/tenants/{tenant}/projects/proj_{0}/keys/key_{0}/limits", "key", "key_{0}"),
    ],
)
async def test_what_is_not_found_is_named(
    client: httpx.AsyncClient, tenancy: Tenancy, path: str, what: str, asked: str
) -> None:
    tenant = await tenancy.create_tenant("real")
    zeros = "0" * 24
    filled = path.format(zeros, tenant=tenant.id, gone=f"ten_{zeros}")
    status, answer = await call(client, "GET", filled)
    assert (status, answer["error"]["code"]) == (404, f"{what}_not_found")
    assert answer["error"]["message"] == f"there is no {what} '{asked.format(zeros)}'"


async def test_another_tenants_project_does_not_exist(client: httpx.AsyncClient, tenancy: Tenancy) -> None:
    mine, other = await tenancy.create_tenant("mine"), await tenancy.create_tenant("other")
    project = await tenancy.create_project(mine.id, "p")
    elsewhere = await tenancy.create_project(mine.id, "q")
    key = (await tenancy.create_key(project.id)).key.id
    wrong = f"/tenants/{other.id}/projects/{project.id}"
    beside = f"/tenants/{mine.id}/projects/{elsewhere.id}"
    for method, path, body in (
        ("GET", wrong, None),
        ("PATCH", wrong, {"models": []}),
        ("GET", f"{wrong}/keys", None),
        ("POST", f"{wrong}/keys", {}),
        ("GET", f"{wrong}/keys/{key}", None),
        ("DELETE", f"{wrong}/keys/{key}", None),
        ("POST", f"{wrong}/keys/{key}/rotate", {}),
        ("DELETE", f"{beside}/keys/{key}", None),
        ("DELETE", f"/admin_keys/{key}", None),
    ):
        status, answer = await call(client, method, path, body)
        assert (status, answer["error"]["type"]) == (404, "not_found_error"), (method, path)
    assert (await tenancy.key(key)).status == "active"
    assert (await tenancy.project(project.id)).models is None


async def test_only_admin_keys_and_before_the_body_is_looked_at(
    client: httpx.AsyncClient, tenancy: Tenancy
) -> None:
    tenant = await tenancy.create_tenant("acme")
    project = await tenancy.create_project(tenant.id, "p")
    ordinary = await tenancy.create_key(project.id, scopes=["inference", "usage.read", "debug"])
    for header, expected in (
        ("", (401, "invalid_api_key")),
        ("Basic abc", (401, "invalid_api_key")),
        (f"Bearer {ordinary.secret}", (403, "insufficient_scope")),
    ):
        status, answer = await call(client, "POST", "/tenants", ["nonsense"], authorization=header)
        assert (status, answer["error"]["code"]) == expected
    assert len(await tenancy.tenants()) == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/tenants", {"name": ""}, 400, "invalid_request"),
        ("/tenants", {"name": "taken"}, 409, "name_taken"),
        ("/tenants", {"name": "ten_x"}, 400, "invalid_request"),
        ("/tenants", {"name": "line\nbreak"}, 400, "invalid_request"),
        ("/tenants", {"name": "nul\x00"}, 400, "invalid_request"),
        ("/tenants/ten_000000000000000000000000/suspend", None, 404, "tenant_not_found"),
        ("/tenants/ten_%00/suspend", None, 404, "tenant_not_found"),
        ("/tenants/{tenant}/projects", {"name": "p"}, 409, "name_taken"),
        ("/tenants/{tenant}/projects/{project}/keys", {"scopes": ["admin"]}, 400, "invalid_scope"),
        ("/tenants/{tenant}/projects/{project}/keys", {"scopes": []}, 400, "invalid_scope"),
        ("/tenants/{tenant}/projects/{project}/keys", {"expires_at": 1.0}, 400, "invalid_expiry"),
        ("/tenants/{tenant}/projects/{project}/keys", {"expires_at": 1e300}, 400, "invalid_expiry"),
        ("/tenants/{tenant}/projects/{project}/keys", {"name": PASTED}, 400, "invalid_request"),
        ("/admin_keys", {"scopes": ["inference"]}, 400, "invalid_scope"),
        # a text is never taken for null, which would be for ever, or everything
        ("/tenants/{tenant}/projects", {"name": "q", "models": "null"}, 400, "invalid_type"),
        ("/tenants/{tenant}/projects/{project}/keys", {"expires_at": "null"}, 400, "invalid_type"),
        ("/tenants/{tenant}/projects/{project}/keys", {"scopes": "null"}, 400, "invalid_type"),
        ("/admin_keys", {"expires_at": "1e10"}, 400, "invalid_type"),
        ("/admin_keys", [], 400, "invalid_json"),
        ("/tenants", {}, 400, "missing_required_parameter"),
    ],
)  # fmt: skip
async def test_refusals_say_why(
    client: httpx.AsyncClient, tenancy: Tenancy, path: str, body: Any, status: int, code: str
) -> None:
    tenant = await tenancy.create_tenant("taken")
    project = await tenancy.create_project(tenant.id, "p")
    found, answer = await call(client, "POST", path.format(tenant=tenant.id, project=project.id), body)
    assert (found, answer["error"]["code"]) == (status, code)
    assert (await call(client, "GET", f"/tenants/{tenant.id}"))[0] == 200


async def test_unknown_fields_are_refused(client: httpx.AsyncClient, tenancy: Tenancy) -> None:
    answer = await client.post("/admin/v1/tenants", json={"name": "a", "nmae": "b"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "Unknown parameter: 'nmae'. Did you mean 'name'?"
    assert not await tenancy.tenants()


async def test_lists_page(client: httpx.AsyncClient, tenancy: Tenancy) -> None:
    made = [(await tenancy.create_tenant(f"t{number}")).id for number in range(5)]
    _, first = await call(client, "GET", "/tenants?limit=3")
    assert ([entry["id"] for entry in first["data"]], first["has_more"]) == (made[:3], True)
    _, rest = await call(client, "GET", f"/tenants?limit=3&after={first['last_id']}")
    assert ([entry["id"] for entry in rest["data"]], rest["has_more"]) == (made[3:], False)
    assert (await client.get("/admin/v1/tenants?limit=0")).status_code == 400


async def test_admin_keys_rotate_and_are_revoked(client: httpx.AsyncClient) -> None:
    _, issued = await call(client, "POST", "/admin_keys", {"name": "ops"})
    _, rotated = await call(client, "POST", f"/admin_keys/{issued['key']['id']}/rotate", {})
    old, new = f"Bearer {issued['secret']}", f"Bearer {rotated['secret']}"
    assert (await call(client, "GET", "/tenants", authorization=old))[0] == 401
    assert (await call(client, "GET", "/tenants", authorization=new))[0] == 200
    assert (await call(client, "DELETE", f"/admin_keys/{rotated['key']['id']}"))[0] == 200
    assert (await call(client, "GET", "/tenants", authorization=new))[0] == 401


async def test_database_away_is_503() -> None:
    engine = create_engine("postgresql://forebay@/forebay?host=/nowhere")
    with pytest.raises(ApiError) as caught:
        await Tenancy(engine, HASHER).create_tenant("x")
    assert (caught.value.status, caught.value.code) == (503, "database_unavailable")
    await engine.dispose()
