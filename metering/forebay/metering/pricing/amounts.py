"""What an amount of money may be, and why a price or plan is refused (pure)."""

from datetime import UTC, date, datetime
from decimal import Decimal

from forebay.metering.prices import plain

MOST = Decimal(10) ** 9  # of anything: a price above it is a slip of the keyboard
PLACES = 12


class RefusedError(ValueError):
    """A price or plan that may not be set. `param` is the field that is wrong."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def check_amount(name: str, amount: Decimal) -> None:
    if not amount.is_finite() or not 0 <= amount <= MOST:
        raise RefusedError(name, f"{name} is {amount}: an amount is between 0 and {MOST}")
    exponent = plain(amount).as_tuple().exponent
    if isinstance(exponent, int) and -exponent > PLACES:
        raise RefusedError(name, f"{name} is {amount}: an amount has at most {PLACES} decimal places")


def check_currency(given: str, deployment: str) -> None:
    if given != deployment:
        raise RefusedError("currency", f"currency is {given}: everything here is priced in {deployment}")


def month_of(seconds: float) -> date:
    """The first of the month, UTC, of Unix seconds."""
    return datetime.fromtimestamp(seconds, UTC).date().replace(day=1)
