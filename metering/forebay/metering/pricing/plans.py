"""Plans: what a tenant owes each month beside its usage, and what it may use for nothing (pure)."""

from collections.abc import Iterable
from datetime import date
from decimal import Decimal

from msgspec import Struct

from forebay.metering.prices import LINE_PLACES, PRICED
from forebay.metering.pricing.amounts import RefusedError, check_amount, check_currency
from forebay.metering.usage import MAX_TOKENS


class Included(Struct, frozen=True):
    """Tokens of a class of a model that are not charged, each month."""

    model: str
    token_class: str
    tokens: int


class Plan(Struct, frozen=True):
    """One immutable version of a tenant's plan, in force from the first of a month until a newer one is.

    `minimum` is the least total of a month. `session_hour` prices an hour of an agent session; None charges nothing.
    """

    tenant_id: str
    version: str
    effective_from: date
    currency: str
    minimum: Decimal = Decimal(0)
    included: tuple[Included, ...] = ()
    session_hour: Decimal | None = None


def plan_of(plans: Iterable[Plan], month: date) -> Plan | None:
    """The newest of a tenant's plans that is in force in `month`."""
    begun = (plan for plan in plans if plan.effective_from <= month)
    return max(begun, key=lambda plan: plan.effective_from, default=None)


def check_plan(new: Plan, plans: Iterable[Plan], *, currency: str, closed: Iterable[date] = ()) -> bool:
    """Whether `new` is to be added: False where `plans`, the tenant's, have the very same. Raises `RefusedError`.

    It begins in an open month, and after every other: the terms of a month that were told never change behind it.
    """
    known = list(plans)
    if new in known:
        return False
    check_currency(new.currency, currency)
    _check_terms(new)
    begins = new.effective_from
    if begins.day != 1:
        raise RefusedError("effective_from", f"effective_from is {begins}: a plan begins on the first of a month")
    last_closed = max(closed, default=None)
    if last_closed is not None and begins <= last_closed:
        problem = f"effective_from is {begins}: {last_closed:%Y-%m} is closed; begin after it"
        raise RefusedError("effective_from", problem)
    for plan in known:
        if plan.version == new.version:
            raise RefusedError(
                "version", f"the tenant has a plan {new.version!r} with other contents: a plan never changes; rename it"
            )
        if plan.effective_from >= begins:
            raise RefusedError(
                "effective_from",
                f"effective_from is {begins}: plan {plan.version!r} begins on {plan.effective_from}; begin after it",
            )
    return True


def _check_terms(new: Plan) -> None:
    check_amount("minimum", new.minimum)
    if new.minimum % LINE_PLACES:
        raise RefusedError("minimum", f"minimum is {new.minimum}: a month's total has at most six decimal places")
    if new.session_hour is not None:
        check_amount("session_hour", new.session_hour)
    seen = set()
    for one in new.included:
        if one.token_class not in PRICED:
            raise RefusedError(
                "included", f"included has class {one.token_class!r}: the classes are {', '.join(PRICED)}"
            )
        if not 0 < one.tokens <= MAX_TOKENS:
            raise RefusedError("included", f"included has {one.tokens} tokens: give between 1 and {MAX_TOKENS}")
        if (one.model, one.token_class) in seen:
            raise RefusedError("included", f"included has {one.token_class} of {one.model!r} twice")
        seen.add((one.model, one.token_class))
