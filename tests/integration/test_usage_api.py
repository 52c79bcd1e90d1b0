"""The unmodified OpenAI SDK reads a tenant's usage and costs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import httpx2
import msgspec
import pytest
from litestar import Litestar, Request, Response
from litestar.di import Provide
from openai import AsyncOpenAI, BadRequestError, InternalServerError, PermissionDeniedError
from sqlalchemy.ext.asyncio import AsyncEngine

from forebay.metering import Ledger, Price, Quantities
from forebay.platform.api.usage import UsageController
from forebay.platform.errors import ApiError
from forebay.platform.stores.database import create_engine
from forebay.platform.tenancy.principal import Principal, Scope
from tests.metered import T0, attempt, record

START = int(T0)
READER = Principal("key_a", "ten_a", "proj_a", frozenset({Scope.USAGE_READ}))


@asynccontextmanager
async def sdk(engine: AsyncEngine, principal: Principal = READER) -> AsyncIterator[AsyncOpenAI]:
    """A client of a small application that holds the controller alone."""

    def refuse(_: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
        return Response(error.body(), status_code=error.status, media_type="application/json")

    ledger = Ledger(engine)
    app = Litestar(
        [UsageController],
        dependencies={
            "principal": Provide(lambda: principal, sync_to_thread=False),
            "ledger": Provide(lambda: ledger, sync_to_thread=False),
        },
        exception_handlers={ApiError: refuse},
        openapi_config=None,
    )
    transport = httpx2.ASGITransport(app=app)  # type: ignore[arg-type]
    async with AsyncOpenAI(
        base_url="http://forebay/v1", api_key="unused", admin_api_key="unused", max_retries=0,
        http_client=httpx2.AsyncClient(transport=transport),
    ) as client:  # fmt: skip
        yield client


@pytest.fixture
async def ledger(engine: AsyncEngine) -> Ledger:
    ledger = Ledger(engine)
    charged, output, read, write = (Decimal(text) for text in ("1", "10", "0.1", "1.25"))
    await ledger.register_prices(
        [Price(model, "v1", 0.0, "EUR", charged, output, read, write) for model in ("smol", "big")]
    )
    await ledger.insert([
        record(attempt(1), Quantities(20, 10, 4, 5, 2)),
        record(attempt(2, project_id="proj_b", key_id="key_b", tier_used="priority"), Quantities(6, 0, 0, 1)),
        record(attempt(3, model="big", started_at=T0 + 2 * 86400), Quantities(1_000_000, 0, 0, 100_000)),
        record(attempt(4, api="embeddings"), Quantities(300)),
        record(attempt(5, tenant_id="ten_b"), Quantities(1000, 0, 0, 1000)),
    ])  # fmt: skip
    return ledger


@pytest.mark.usefixtures("ledger")
async def test_usage_comes_in_daily_buckets_of_the_own_tenant(engine: AsyncEngine) -> None:
    async with sdk(engine) as client:
        page = await client.admin.organization.usage.completions(start_time=START, end_time=START + 3 * 86400)
    assert (page.has_more, page.next_page, page.object) == (False, None, "page")
    assert [(bucket.start_time - START, len(bucket.results)) for bucket in page.data] == [
        (0, 1), (86400, 0), (2 * 86400, 1)
    ]  # fmt: skip
    result: Any = page.data[0].results[0]
    assert (result.input_tokens, result.input_uncached_tokens, result.input_cached_tokens) == (40, 26, 10)
    assert (result.input_cache_write_tokens, result.output_tokens, result.num_model_requests) == (4, 6, 2)
    assert (result.model, result.project_id, result.service_tier, result.batch) == (None, None, None, None)


@pytest.mark.usefixtures("ledger")
async def test_usage_can_be_grouped_filtered_and_paged(engine: AsyncEngine) -> None:
    async with sdk(engine) as client:
        usage = client.admin.organization.usage
        page = await usage.completions(
            start_time=START, end_time=START + 3600, bucket_width="1h",
            group_by=["project_id", "api_key_id", "model", "service_tier", "batch", "api_source"],
        )  # fmt: skip
        found: list[Any] = list(page.data[0].results)
        assert [(one.project_id, one.api_key_id, one.service_tier, one.output_tokens) for one in found] == [
            ("proj_a", "key_a", "default", 5), ("proj_b", "key_b", "priority", 1)
        ]  # fmt: skip
        assert {(one.model, one.batch, one.api_source) for one in found} == {("smol", False, "unlabeled")}

        page = await usage.completions(start_time=START, end_time=START + 3600, project_ids=["proj_b"], models=["smol"])
        assert [result.input_tokens for result in page.data[0].results] == [6]  # type: ignore[union-attr]

        seen: list[int] = []
        cursor: dict[str, Any] = {}
        while True:
            page = await usage.completions(start_time=START, end_time=START + 3 * 86400, limit=2, **cursor)
            seen += [bucket.start_time - START for bucket in page.data]
            if not page.has_more:
                break
            cursor = {"page": page.next_page or ""}
        assert seen == [0, 86400, 2 * 86400]

        minutes = await usage.completions(start_time=START, end_time=START + 120, bucket_width="1m")
        assert [len(bucket.results) for bucket in minutes.data] == [1, 0]


@pytest.mark.usefixtures("ledger")
async def test_embeddings_and_costs_have_pages_of_their_own(engine: AsyncEngine) -> None:
    async with sdk(engine) as client:
        usage = client.admin.organization.usage
        page = await usage.embeddings(start_time=START, end_time=START + 86400)
        result: Any = page.data[0].results[0]
        assert (result.object, result.input_tokens) == ("organization.usage.embeddings.result", 300)

        costs = await usage.costs(start_time=START, end_time=START + 3 * 86400)
        amount: Any = costs.data[2].results[0]
        assert (amount.amount.value, amount.amount.currency) == (2.0, "eur")
        # 326 uncached, 10 cached, 4 written, 6 output: 0.000326 + 0.000001 + 0.000005 + 0.000060
        assert costs.data[0].results[0].amount.value == 0.000392  # type: ignore[union-attr]

        items = await usage.costs(start_time=START, end_time=START + 86400, group_by=["line_item"])
        found: list[Any] = list(items.data[0].results)
        assert {one.line_item: (one.quantity, one.quantity_unit) for one in found} == {
            "smol, input_tokens": (326, "tokens"), "smol, cached_input_tokens": (10, "tokens"),
            "smol, cache_write_input_tokens": (4, "tokens"), "smol, output_tokens": (6, "tokens"),
        }  # fmt: skip


@pytest.mark.parametrize("changes", [
    {"scopes": frozenset({Scope.INFERENCE})},
    {"scopes": frozenset({Scope.ADMIN, Scope.USAGE_READ}), "tenant_id": "", "project_id": ""},
])  # fmt: skip
async def test_a_key_without_the_scope_or_without_a_tenant_reads_nothing(
    engine: AsyncEngine, changes: dict[str, Any]
) -> None:
    async with sdk(engine, msgspec.structs.replace(READER, **changes)) as client:
        with pytest.raises(PermissionDeniedError) as refused:
            await client.admin.organization.usage.completions(start_time=START)
    assert refused.value.code == "insufficient_scope"


async def test_nonsense_is_refused_by_parameter(engine: AsyncEngine) -> None:
    async with sdk(engine) as client:
        with pytest.raises(BadRequestError) as refused:
            await client.admin.organization.usage.completions(start_time=START, limit=10_000)
    assert refused.value.param == "limit"


async def test_without_postgres_the_answer_is_503_and_says_when_to_retry() -> None:
    away = create_engine("postgresql://forebay@127.0.0.1:1/forebay")
    async with sdk(away) as client:
        with pytest.raises(InternalServerError) as caught:
            await client.admin.organization.usage.completions(start_time=START)
    assert (caught.value.status_code, caught.value.code) == (503, "database_unavailable")
    await away.dispose()
