"""Reports over the ledger: tokens by class, requests and costs, by time and by whatever they are grouped by.

A record belongs to the time at which its attempt ended. Costs are computed here, from the records, their
multipliers and the price versions they name, and rounded once, on the line.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from msgspec import Struct, field
from sqlalchemy import ColumnElement, Select, Table, and_, distinct, func, literal, select, tuple_

from forebay.metering.prices import Price, cost, rounded
from forebay.metering.prices import total as exact_total
from forebay.metering.records import Quantities
from forebay.metering.tables import CLASSES
from forebay.metering.usage import add

# What a report can be grouped by, and the columns these are.
DIMENSIONS: Mapping[str, str] = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model",
    "tier": "tier_used",
    "api": "api",
}


class UsageQuery(Struct, frozen=True, kw_only=True):
    """Records that ended in [start, end), Unix seconds. An empty filter lets everything pass.

    `bucket` is the width of the time buckets in seconds, aligned to the epoch (so days are UTC days); None gives one
    line for the whole time.
    """

    start: float
    end: float
    bucket: int | None = None
    group_by: tuple[str, ...] = ()  # keys of DIMENSIONS
    tenants: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()


class Line(Struct, kw_only=True):
    """One line of a report. `start` is the bucket's, Unix seconds, clipped to the query.

    `requests` counts logical requests, however many attempts each took. `exact` holds the unrounded cost in each
    currency, `costs` the rounded one; `unpriced` counts billable tokens of records without a price.
    """

    start: float
    group: dict[str, str] = field(default_factory=dict)
    requests: int = 0
    attempts: int = 0
    used: Quantities = field(default_factory=Quantities)
    exact: dict[str, Decimal] = field(default_factory=dict)
    by_class: dict[tuple[str, str, str], tuple[int, Decimal]] = field(default_factory=dict)
    unpriced: int = 0

    @property
    def costs(self) -> dict[str, Decimal]:
        return {currency: rounded(amount) for currency, amount in sorted(self.exact.items())}


def statement(table: Table, query: UsageQuery) -> Select[Any]:
    """Rows of (bucket, group…, model_, price_version_, multiplier_, requests, attempts, tokens by class, is_total).

    Requests cannot be summed over price versions, so each line comes once as a total and once per model, price and
    multiplier.
    """
    bucket = _bucket(table, query).label("bucket")
    groups = [table.c[DIMENSIONS[name]].label(f"by_{name}") for name in query.group_by]
    outer = [bucket, *groups]
    inner = [table.c.model.label("model_"), table.c.price_version.label("price_version_"),
             table.c.price_multiplier.label("multiplier_")]  # fmt: skip
    tokens = [table.c[f"billable_{name}"].label(name) for name in CLASSES]
    base = select(*outer, *inner, table.c.request_id, *tokens).where(_filter(table, query)).subquery()
    keys = [base.c[column.name] for column in outer]
    details = [base.c.model_, base.c.price_version_, base.c.multiplier_]
    is_total = func.grouping(base.c.price_version_).label("is_total")
    sums = [func.sum(base.c[name]).label(name) for name in CLASSES]
    model = func.max(base.c.model_).label("model_")
    return (
        select(*keys, model, *details[1:], func.count(distinct(base.c.request_id)).label("requests"),
               func.count().label("attempts"), *sums, is_total)
        .group_by(func.grouping_sets(tuple_(*keys), tuple_(*keys, *details)))
        .order_by(*keys)
    )  # fmt: skip


def fold(query: UsageQuery, rows: Iterable[Any], prices: Mapping[tuple[str, str], Price]) -> list[Line]:
    """Put the two kinds of rows together into lines, in order, and price them."""
    lines: dict[tuple[Any, ...], Line] = {}
    for row in rows:
        group = {name: getattr(row, f"by_{name}") for name in query.group_by}
        start = max(float(row.bucket), query.start)
        found = lines.setdefault((row.bucket, *group.values()), Line(start=start, group=group))
        used = Quantities(*(int(getattr(row, name)) for name in CLASSES))
        if row.is_total:
            found.requests, found.attempts, found.used = row.requests, row.attempts, used
        else:
            price = prices.get((row.model_, row.price_version_))
            _charge(found, row.model_, used, price, row.multiplier_)
    return list(lines.values())


def total(lines: Sequence[Line]) -> Line:
    """All lines as one. Its cost is rounded from the exact sum, so it may differ from the sum of rounded lines."""
    result = Line(start=min((item.start for item in lines), default=0.0))
    for item in lines:
        result.requests += item.requests
        result.attempts += item.attempts
        result.used = add(result.used, item.used)
        result.unpriced += item.unpriced
        for currency, amount in item.exact.items():
            result.exact[currency] = exact_total((result.exact.get(currency, Decimal(0)), amount))
    return result


def _charge(found: Line, model: str, used: Quantities, price: Price | None, multiplier: Decimal) -> None:
    if price is None:
        found.unpriced += used.input_total + used.output
        return
    currency = price.currency
    for name in ("input_uncached", "cache_read", "cache_write", "output"):
        tokens = getattr(used, name)
        if not tokens:
            continue
        amount = cost(Quantities(**{name: tokens}), price, multiplier)
        before, so_far = found.by_class.get((model, name, currency), (0, Decimal(0)))
        found.by_class[model, name, currency] = (before + tokens, exact_total((so_far, amount)))
        found.exact[currency] = exact_total((found.exact.get(currency, Decimal(0)), amount))


def _bucket(table: Table, query: UsageQuery) -> ColumnElement[Any]:
    if query.bucket is None:
        return literal(query.start)
    seconds = func.extract("epoch", table.c.ended_at)
    return func.floor(seconds / query.bucket) * query.bucket


def _filter(table: Table, query: UsageQuery) -> ColumnElement[bool]:
    clauses = [table.c.ended_at >= _time(query.start), table.c.ended_at < _time(query.end)]
    for column, values in (
        ("tenant_id", query.tenants),
        ("project_id", query.projects),
        ("key_id", query.keys),
        ("model", query.models),
        ("api", query.apis),
    ):
        if values:
            clauses.append(table.c[column].in_(values))
    return and_(*clauses)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
