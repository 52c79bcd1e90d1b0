"""`/admin/v1/ledger`."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from litestar import Litestar, Request, Response
from litestar.di import Provide
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Books, Ledger
from forebay.platform.api.ledger import LedgerController
from forebay.platform.errors import ApiError
from forebay.platform.tenancy.principal import Principal, Scope
from tests.metered import attempt, record

ADMIN = Principal("key_admin", "", "", frozenset({Scope.ADMIN}))
REQUEST = f"req_{1:032x}"


@pytest.fixture
async def client(engine: AsyncEngine) -> AsyncIterator[httpx.AsyncClient]:
    await Ledger(engine).insert([record(attempt(1, started_at=1_790_848_800.0))])  # October 2026
    books = Books(engine)

    async def principal(request: Request[Any, Any, Any]) -> Principal:
        if request.headers.get("authorization"):
            return ADMIN
        return Principal("key_a", "ten_a", "proj_a", frozenset({Scope.USAGE_READ}))

    def refuse(_: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
        return Response(error.body(), status_code=error.status, media_type="application/json")

    app = Litestar(
        [LedgerController],
        dependencies={"principal": Provide(principal), "books": Provide(lambda: books, sync_to_thread=False)},
        exception_handlers={ApiError: refuse},
        openapi_config=None,
    )
    transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://forebay/admin/v1/ledger") as one:
        one.headers["authorization"] = "Bearer admin"
        yield one


async def test_a_month_is_closed_and_corrected(client: httpx.AsyncClient) -> None:
    closed = (await client.post("/periods/2026-10/close")).json()
    assert (closed["period"], closed["closed"], closed["closed_by"], closed["requests"]) == (
        "2026-10", True, "key_admin", 1
    )  # fmt: skip
    body = {"request_id": REQUEST, "billable": {"output": 0}, "reason": "empty"}
    corrected = await client.post("/corrections", json=body)
    assert (corrected.status_code, corrected.json()["period"], corrected.json()["entry"]) == (201, "2026-11", 2)
    assert [one["period"] for one in (await client.get("/periods")).json()["data"]] == ["2026-10", "2026-11"]
    assert (await client.get("/verify?period=2026-10")).json() == {"rows": 0, "first_hour": None}


async def test_refusals_have_codes(client: httpx.AsyncClient) -> None:
    for path, status, code in (
        ("/periods/2400-01/close", 409, "period_not_over"),
        ("/periods/october/close", 400, "invalid_period"),
    ):
        answer = await client.post(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    body = {"request_id": "req_0", "billable": {"output": 0}, "reason": "empty"}
    answer = await client.post("/corrections", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "record_not_found")


async def test_it_is_for_admins(client: httpx.AsyncClient) -> None:
    client.headers.pop("authorization")
    assert (await client.get("/periods")).status_code == 403
