"""`…/prices` and `…/plans` of a tenant, under `/admin/v1`: what it is charged beside the catalogue's prices.

Both are versions: one is added with POST and never changes. A price reaches every front door within a second.
"""

from datetime import date
from decimal import Decimal
from typing import Any

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from msgspec import Struct, json

from forebay.metering import Included, Plan, Price, Pricing, RefusedError
from forebay.platform.api.admin import Id, Service, admins_only
from forebay.platform.api.admin_body import body_of
from forebay.platform.errors import ApiError, invalid
from forebay.platform.stores.database import reachable
from forebay.platform.tenancy import validate
from forebay.platform.tenancy.service import Tenancy


class NewPrice(Struct, forbid_unknown_fields=True):
    """Amounts per million tokens, as decimal strings; a cache amount left out is the input's. `effective_from`: Unix
    seconds, now or later."""

    model: str
    version: str
    effective_from: float
    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    currency: str | None = None


class NewPlan(Struct, forbid_unknown_fields=True):
    """`effective_from`: the first of a month, as 2026-12-01."""

    version: str
    effective_from: date
    minimum: Decimal = Decimal(0)
    included: tuple[Included, ...] = ()
    session_hour: Decimal | None = None
    currency: str | None = None


class TenantPrices(Controller):
    path = "/admin/v1/tenants/{tenant_id:str}/prices"
    guards = (admins_only,)

    @get("/", operation_id="listTenantPrices")
    async def index(
        self, tenancy: Service, pricing: NamedDependency[Pricing], tenant_id: Id
    ) -> Response[bytes]:
        """Its own alone."""
        found = await tenancy.tenant(tenant_id)
        with reachable():
            own = [one for one in await pricing.prices(tenant_id=found.id) if one.tenant_id]
        return _answer({"object": "list", "data": own})

    @post("/", operation_id="addTenantPrice", dependencies=body_of(NewPrice))
    async def add(
        self, tenancy: Service, pricing: NamedDependency[Pricing], tenant_id: Id, given: NamedDependency[NewPrice]
    ) -> Response[bytes]:
        return _answer(await add_price(tenancy, pricing, tenant_id, given), 201)


class TenantPlans(Controller):
    path = "/admin/v1/tenants/{tenant_id:str}/plans"
    guards = (admins_only,)

    @get("/", operation_id="listTenantPlans")
    async def index(self, tenancy: Service, pricing: NamedDependency[Pricing], tenant_id: Id) -> Response[bytes]:
        found = await tenancy.tenant(tenant_id)
        with reachable():
            return _answer({"object": "list", "data": await pricing.plans(found.id)})

    @post("/", operation_id="addTenantPlan", dependencies=body_of(NewPlan))
    async def add(
        self, tenancy: Service, pricing: NamedDependency[Pricing], tenant_id: Id, given: NamedDependency[NewPlan]
    ) -> Response[bytes]:
        return _answer(await add_plan(tenancy, pricing, tenant_id, given), 201)


PRICING_CONTROLLERS = (TenantPrices, TenantPlans)


async def add_price(tenancy: Tenancy, pricing: Pricing, tenant_id: str, given: NewPrice) -> Price:
    """Raises `ApiError`."""
    owner, model = await _usable(tenancy, tenant_id), _model(tenancy, given.model)
    validate.name(given.version, "price version", "version")
    price = Price(
        model, given.version, given.effective_from, given.currency or pricing.currency, given.input, given.output,
        given.input if given.cache_read is None else given.cache_read,
        given.input if given.cache_write is None else given.cache_write, owner,
    )  # fmt: skip
    try:
        with reachable():
            return await pricing.add_override(price)
    except RefusedError as error:
        raise refused(error) from None


async def add_plan(tenancy: Tenancy, pricing: Pricing, tenant_id: str, given: NewPlan) -> Plan:
    """Raises `ApiError`."""
    owner = await _usable(tenancy, tenant_id)
    included = tuple(Included(_model(tenancy, one.model), one.token_class, one.tokens) for one in given.included)
    currency = given.currency or pricing.currency
    validate.name(given.version, "plan", "version")
    plan = Plan(owner, given.version, given.effective_from, currency, given.minimum, included, given.session_hour)
    try:
        with reachable():
            return await pricing.add_plan(plan)
    except RefusedError as error:
        raise refused(error) from None


def refused(error: RefusedError) -> ApiError:
    return invalid(f"{error}.", param=error.param)


def _model(tenancy: Tenancy, name: str) -> str:
    called = tenancy.offered.called(name)
    tenancy.offered.model(called, ())
    return called


async def _usable(tenancy: Tenancy, tenant_id: str) -> str:
    found = await tenancy.tenant(tenant_id)
    if found.status == "deleted":
        raise validate.conflict("tenant_deleted", f"tenant {tenant_id!r} was deleted")
    return found.id


def _answer(body: Any, status: int = 200) -> Response[bytes]:
    return Response(json.encode(body), status_code=status, media_type="application/json")
