"""`/admin/v1/ledger`: periods, corrections and the rollup, for holders of an admin key."""

from typing import Annotated, Any

from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from msgspec import Struct, structs

from forebay.metering import BookError, Books, Difference, Period, named, period_of
from forebay.platform.api.admin import admins_only
from forebay.platform.api.admin_body import body_of
from forebay.platform.errors import ApiError
from forebay.platform.stores.database import reachable
from forebay.platform.tenancy.principal import Principal

Service = NamedDependency[Books]
Month = Annotated[str | None, QueryParameter(max_length=16)]
_STATUS = {"record_not_found": 404, "invalid_period": 400, "invalid_count": 400, "invalid_text": 400}


class Counts(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is billed instead; a class that is left out stays."""

    input_uncached: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    output: int | None = None
    reasoning: int | None = None


class NewCorrection(Struct, forbid_unknown_fields=True):
    request_id: str
    billable: Counts
    reason: str
    attempt: int = 1


class LedgerController(Controller):
    path = "/admin/v1/ledger"
    guards = (admins_only,)

    @get("/periods", operation_id="listPeriods")
    async def periods(self, books: Service) -> dict[str, Any]:
        with reachable():
            return {"object": "list", "data": [_shown(one) for one in await books.periods()]}

    @post("/periods/{period:str}/close", operation_id="closePeriod", status_code=200)
    async def close(
        self, books: Service, principal: NamedDependency[Principal], period: FromPath[str]
    ) -> dict[str, Any]:
        try:
            with reachable():
                return _shown(await books.close(period_of(period), principal.key_id))
        except BookError as error:
            raise _refused(error) from None

    @post("/corrections", operation_id="correctUsage", dependencies=body_of(NewCorrection))
    async def correct(
        self, books: Service, principal: NamedDependency[Principal], given: NamedDependency[NewCorrection]
    ) -> dict[str, Any]:
        changes = {name: count for name, count in structs.asdict(given.billable).items() if count is not None}
        try:
            with reachable():
                found = await books.correct(
                    given.request_id, given.attempt, changes, by=principal.key_id, reason=given.reason
                )
        except BookError as error:
            raise _refused(error) from None
        return {**structs.asdict(found), "period": named(found.period)}

    @get("/verify", operation_id="verifyRollup")
    async def verify(self, books: Service, period: Month = None) -> Difference:
        try:
            with reachable():
                return await books.verify(period_of(period) if period else None)
        except BookError as error:
            raise _refused(error) from None


def _shown(one: Period) -> dict[str, Any]:
    return {**structs.asdict(one), "period": named(one.period), "closed": one.closed_at is not None}


def _refused(error: BookError) -> ApiError:
    return ApiError(_STATUS.get(error.code, 409), error.code, str(error), type="invalid_request_error")
