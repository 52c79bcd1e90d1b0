"""Statements: an operator's view under `/admin/v1/tenants/…/statements`, and a tenant's of its own under
`/v1/organization/statements`, with a key of scope `usage.read`."""

from collections.abc import Awaitable
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from litestar import Controller, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from msgspec import json

from forebay.metering import StatementError, Statements, Told
from forebay.platform.api.admin import Id, Service, admins_only
from forebay.platform.errors import ApiError, invalid
from forebay.platform.stores.database import reachable
from forebay.platform.tenancy.principal import Principal, Scope

T = TypeVar("T")
Number = FromPath[int]
RECORDS = 10_000  # of a line, in one answer


class TenantStatements(Controller):
    path = "/admin/v1/tenants/{tenant_id:str}/statements"
    guards = (admins_only,)

    @get("/", operation_id="listTenantStatements")
    async def index(self, tenancy: Service, statements: NamedDependency[Statements], tenant_id: Id) -> Response[bytes]:
        return await _index(statements, (await tenancy.tenant(tenant_id)).id)

    @get("/{period:str}", operation_id="getTenantStatement")
    async def show(
        self, tenancy: Service, statements: NamedDependency[Statements], tenant_id: Id, period: Id
    ) -> Response[bytes]:
        return await _show(statements, (await tenancy.tenant(tenant_id)).id, period)

    @get("/{period:str}/lines/{number:int}", operation_id="explainTenantStatementLine")
    async def line(
        self, tenancy: Service, statements: NamedDependency[Statements], tenant_id: Id, period: Id, number: Number
    ) -> Response[bytes]:
        return await _line(statements, (await tenancy.tenant(tenant_id)).id, period, number)


class OwnStatements(Controller):
    path = "/v1/organization/statements"

    @get("/", operation_id="listStatements")
    async def index(
        self, principal: NamedDependency[Principal], statements: NamedDependency[Statements]
    ) -> Response[bytes]:
        return await _index(statements, _reader(principal))

    @get("/{period:str}", operation_id="getStatement")
    async def show(
        self, principal: NamedDependency[Principal], statements: NamedDependency[Statements], period: Id
    ) -> Response[bytes]:
        return await _show(statements, _reader(principal), period)

    @get("/{period:str}/lines/{number:int}", operation_id="explainStatementLine")
    async def line(
        self, principal: NamedDependency[Principal], statements: NamedDependency[Statements], period: Id, number: Number
    ) -> Response[bytes]:
        return await _line(statements, _reader(principal), period, number)


STATEMENT_CONTROLLERS = (TenantStatements, OwnStatements)


async def _index(statements: Statements, tenant_id: str) -> Response[bytes]:
    found = await _asked(statements.all_of(tenant_id))
    return _answer({"object": "list", "data": [_summary(one) for one in found]})


async def _show(statements: Statements, tenant_id: str, period: str) -> Response[bytes]:
    told = await _asked(statements.of(tenant_id, _month(period)))
    return _answer({**_summary(told), "plans": told.statement.plans, "lines": told.statement.lines})


async def _line(statements: Statements, tenant_id: str, period: str, number: int) -> Response[bytes]:
    month = _month(period)
    lines = (await _asked(statements.of(tenant_id, month))).statement.lines
    if not 1 <= number <= len(lines):
        raise invalid(f"The statement has {len(lines)} lines; there is no line {number}.", param="line")
    line = lines[number - 1]
    parts = await _asked(statements.parts(tenant_id, line, month, RECORDS + 1))
    return _answer({
        "object": "statement.line", "line": line, "records": parts[:RECORDS], "has_more": len(parts) > RECORDS
    })  # fmt: skip


async def _asked(question: Awaitable[T]) -> T:
    try:
        with reachable():
            return await question
    except StatementError as error:
        raise ApiError(500, "statement_unavailable", f"The statement cannot be made: {error}.") from None


def _summary(told: Told) -> dict[str, Any]:
    whole = told.statement
    return {
        "object": "statement",
        "period": f"{whole.period:%Y-%m}",
        "status": "closed" if told.closed else "open",
        "currency": whole.currency,
        "total": whole.total,
        "sha256": told.digest,
    }


def _month(text: str) -> date:
    try:
        return datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        raise invalid(f"'{text[:32]}' is not a period like 2026-12.", param="period") from None


def _reader(principal: Principal) -> str:
    if Scope.USAGE_READ not in principal.scopes or not principal.tenant_id:
        raise ApiError(403, "insufficient_scope", "This API key lacks the scope 'usage.read' of a tenant.")
    return principal.tenant_id


def _answer(body: Any) -> Response[bytes]:
    return Response(json.encode(body), media_type="application/json")
