"""Reports over the ledger: tokens by class, requests and costs, by time and by whatever they are grouped by.

A record belongs to the time at which its attempt ended. Costs are computed here, from the records, their
multipliers and the price versions they name, and rounded once, on the line.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from msgspec import Struct, field
from sqlalchemy import ColumnElement, Select, Table, and_, case, func, literal, select, union_all

from forebay.metering.prices import Price, cost, rounded
from forebay.metering.prices import total as exact_total
from forebay.metering.records import Quantities
from forebay.metering.tables import CLASSES, usage_hourly, usage_records
from forebay.metering.usage import add

# What a report can be grouped by, and the columns these are.
DIMENSIONS: Mapping[str, str] = {
    "tenant": "tenant_id",
    "project": "project_id",
    "key": "key_id",
    "model": "model",
    "tier": "tier_used",
    "api": "api",
    "session": "session",
}
_HOUR = 3600


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

    `requests` counts logical requests, however many attempts each took, where the first of them belongs, so that lines
    add up. `exact` holds the unrounded cost in each
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


def statement(query: UsageQuery) -> Select[Any]:
    """Rows of (bucket, group…, model_, price_version_, multiplier_, requests, attempts, tokens by class): one for each
    price of a line. Whole hours come from the rollup, where that knows what is asked; what it does not, from records.
    """
    parts = [_part(source, query, start, end) for source, start, end in _sources(query)]
    rows = (union_all(*parts) if len(parts) > 1 else parts[0]).subquery()
    keys = [rows.c[name] for name in ("bucket", *(f"by_{name}" for name in query.group_by))]
    details = [rows.c[name] for name in ("model_", "price_version_", "multiplier_")]
    measures = [func.sum(rows.c[name]).label(name) for name in ("requests", "attempts", *CLASSES)]
    return select(*keys, *details, *measures).group_by(*keys, *details).order_by(*keys, *details)


def fold(query: UsageQuery, rows: Iterable[Any], prices: Mapping[tuple[str, str], Price]) -> list[Line]:
    """Put the rows together into lines, in order, and price them."""
    lines: dict[tuple[Any, ...], Line] = {}
    for row in rows:
        group = {name: getattr(row, f"by_{name}") for name in query.group_by}
        start = max(float(row.bucket), query.start)
        found = lines.setdefault((row.bucket, *group.values()), Line(start=start, group=group))
        used = Quantities(*(int(getattr(row, name)) for name in CLASSES))
        found.requests += int(row.requests)
        found.attempts += int(row.attempts)
        found.used = add(found.used, used)
        _charge(found, row.model_, used, prices.get((row.model_, row.price_version_)), row.multiplier_)
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


def _sources(query: UsageQuery) -> list[tuple[Table, float, float]]:
    """Which table answers for which time."""
    first, last = -(-query.start // _HOUR) * _HOUR, query.end // _HOUR * _HOUR
    if "session" in query.group_by or (query.bucket or _HOUR) % _HOUR or first >= last:
        return [(usage_records, query.start, query.end)]
    edges = [(usage_records, query.start, first), (usage_records, last, query.end)]
    return [(usage_hourly, first, last), *(edge for edge in edges if edge[1] < edge[2])]


def _part(table: Table, query: UsageQuery, start: float, end: float) -> Select[Any]:
    time = table.c.ended_at if table is usage_records else table.c.charge_hour
    groups = [table.c[DIMENSIONS[name]].label(f"by_{name}") for name in query.group_by]
    return select(
        _bucket(time, query).label("bucket"),
        *groups,
        table.c.model.label("model_"),
        table.c.price_version.label("price_version_"),
        table.c.price_multiplier.label("multiplier_"),
        *(_signed(table) if table is usage_records else (table.c.requests, table.c.attempts)),
        *(table.c[f"billable_{name}"].label(name) for name in CLASSES),
    ).where(_filter(table, time, query, start, end))


def _signed(table: Table) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    sign = case((table.c.entry % 2 == 0, 1), else_=-1)
    return case((table.c.attempt == 1, sign), else_=0).label("requests"), sign.label("attempts")


def _bucket(time: ColumnElement[Any], query: UsageQuery) -> ColumnElement[Any]:
    if query.bucket is None:
        return literal(query.start)
    return func.floor(func.extract("epoch", time) / query.bucket) * query.bucket


def _filter(
    table: Table, time: ColumnElement[Any], query: UsageQuery, start: float, end: float
) -> ColumnElement[bool]:
    clauses = [time >= _time(start), time < _time(end)]
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
