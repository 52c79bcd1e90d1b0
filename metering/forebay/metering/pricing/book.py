"""Which override of a price a tenant may be given (pure).

Usage is charged the version in force when it was dispatched, so a version never reaches back: it begins now or later,
after every one of that tenant and model that has begun, and in a month that is open.
"""

from collections.abc import Iterable
from datetime import UTC, date, datetime

from forebay.metering.prices import PRICED, Price
from forebay.metering.pricing.amounts import RefusedError, check_amount, check_currency, month_of

# Between the clocks of who asks and of the database; what is dispatched meanwhile may have either price.
CLOCKS_S = 60.0
LATEST = 253_402_300_799.0  # the year 9999


def check_override(
    new: Price, book: Iterable[Price], *, currency: str, now: float, closed: Iterable[date] = ()
) -> bool:
    """Whether `new` is to be added: False where `book` has the very same. Raises `RefusedError`.

    `book` are all versions of the model, the catalogue's included. `closed` are first days of months; what is before
    one of them is closed too.
    """
    versions = [price for price in book if price.model == new.model]
    if new in versions:
        return False
    check_currency(new.currency, currency)
    for name in PRICED.values():
        check_amount(name, getattr(new, name))
    taken = next((price for price in versions if price.version == new.version), None)
    if taken is not None:
        whose = f"of tenant {taken.tenant_id}" if taken.tenant_id else "of the catalogue"
        raise RefusedError(
            "version",
            f"model {new.model!r} has a version {new.version!r} already, {whose}, with other contents: "
            "a version never changes; give the new price another name",
        )
    _check_time(new, [price for price in versions if price.tenant_id == new.tenant_id], now, max(closed, default=None))
    return True


def _check_time(new: Price, own: list[Price], now: float, closed: date | None) -> None:
    if not 0 <= new.effective_from <= LATEST:
        raise RefusedError("effective_from", "effective_from is Unix seconds, before the year 10000")
    begins = _shown(new.effective_from)
    month = month_of(new.effective_from)
    if closed is not None and month <= closed:
        problem = f"effective_from is {begins}: {month:%Y-%m} is closed; begin in an open month"
        raise RefusedError("effective_from", problem)
    if new.effective_from < now - CLOCKS_S:
        raise RefusedError(
            "effective_from",
            f"effective_from is {begins}, which has passed: usage keeps the price it was dispatched at; "
            "begin now or later",
        )
    for price in own:
        if price.effective_from == new.effective_from:
            raise RefusedError("effective_from", f"effective_from is {begins}: version {price.version!r} begins then")
        if new.effective_from < price.effective_from <= now:
            raise RefusedError(
                "effective_from",
                f"effective_from is {begins}: version {price.version!r}, in force since "
                f"{_shown(price.effective_from)}, is newer; begin after it",
            )


def _shown(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
