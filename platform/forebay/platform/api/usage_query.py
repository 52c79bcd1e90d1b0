"""The query parameters of OpenAI's usage endpoints, as a report's query and its pages of time buckets."""

import math
from collections.abc import Mapping, Sequence

from msgspec import Struct

from forebay.metering import UsageQuery
from forebay.platform.errors import ApiError, invalid

# Width in seconds, default and greatest number of buckets on a page: OpenAI's.
_WIDTHS = {"1m": (60, 60, 1440), "1h": (3600, 24, 168), "1d": (86400, 7, 31)}
_COST_LIMITS = (86400, 7, 180)
# OpenAI's names for what we record; those without one are accepted, and are the same for all usage here.
GROUPS: Mapping[str, str | None] = {
    "project_id": "project",
    "api_key_id": "key",
    "model": "model",
    "service_tier": "tier",
    "user_id": None,
    "batch": None,
    "api_source": None,
    "line_item": None,
}
_COST_GROUPS = {"project_id", "api_key_id", "user_id", "line_item", "api_source"}
_FILTERS = {"project_ids": "projects", "api_key_ids": "keys", "models": "models"}
_KNOWN = frozenset({"start_time", "end_time", "bucket_width", "limit", "page", "group_by", "batch", *_FILTERS})
_LATEST = 253_402_300_799  # the year 9999

Params = Mapping[str, Sequence[str]]


class Page(Struct, frozen=True):
    """One page: its `buckets` as (start, end) in Unix seconds, the query for all of them, and the next page's cursor.

    `query` is None when no usage can match.
    """

    buckets: tuple[tuple[int, int], ...]
    query: UsageQuery | None
    next_page: str | None
    groups: tuple[str, ...]  # as OpenAI names them


def parse(params: Params, *, tenant: str, apis: tuple[str, ...], now: float, costs: bool = False) -> Page:
    """The page asked for, of `tenant`'s usage alone. Raises ApiError 400 for anything that cannot be meant."""
    given = {name.removesuffix("[]"): [*values] for name, values in params.items()}
    unknown = sorted(given.keys() - _KNOWN - {"user_ids", "line_items"})
    if unknown:
        raise invalid(f"Unknown parameter: '{unknown[0]}'.", param=unknown[0], code="unknown_parameter")
    width, default, greatest = _COST_LIMITS if costs else _WIDTHS[_choice(given, "bucket_width", tuple(_WIDTHS), "1d")]
    start = _integer(given, "start_time", None, 0, _LATEST - 1)
    end = _integer(given, "end_time", max(math.ceil(now), start + 1), 0, _LATEST)
    if end <= start:
        raise invalid("'end_time' must be after 'start_time'.", param="end_time")
    limit = _integer(given, "limit", default, 1, greatest)
    groups = _groups(given, costs=costs)
    first = _cursor(given, start, end)
    buckets = _buckets(first, end, width, limit)
    until = buckets[-1][1]
    return Page(
        buckets=buckets,
        query=_query(given, buckets, groups, width=width, tenant=tenant, apis=apis),
        next_page=f"page_{until}" if until < end else None,
        groups=groups,
    )


def _query(
    given: dict[str, list[str]], buckets: tuple[tuple[int, int], ...], groups: tuple[str, ...], *,
    width: int, tenant: str, apis: tuple[str, ...],
) -> UsageQuery | None:  # fmt: skip
    # No usage here belongs to a user or to a batch, so asking for it finds nothing rather than everything.
    if given.get("user_ids") or _choice(given, "batch", ("true", "false"), "false") == "true":
        return None
    filters = {ours: tuple(given.get(name, ())) for name, ours in _FILTERS.items()}
    return UsageQuery(
        start=buckets[0][0], end=buckets[-1][1], bucket=width, tenants=(tenant,), apis=apis, **filters,
        group_by=tuple(ours for name in groups if (ours := GROUPS[name])),
    )  # fmt: skip


def _buckets(first: int, end: int, width: int, limit: int) -> tuple[tuple[int, int], ...]:
    """Buckets aligned to UTC; the first and the last are cut to the time asked for."""
    found: list[tuple[int, int]] = []
    while first < end and len(found) < limit:
        after = min(first - first % width + width, end)
        found.append((first, after))
        first = after
    return tuple(found)


def _groups(given: dict[str, list[str]], *, costs: bool) -> tuple[str, ...]:
    allowed = _COST_GROUPS if costs else GROUPS.keys() - {"line_item"}
    names = tuple(dict.fromkeys(name for value in given.get("group_by", ()) for name in value.split(",")))
    for name in names:
        if name not in allowed:
            raise _unsupported("group_by", name, sorted(allowed))
    return names


def _cursor(given: dict[str, list[str]], start: int, end: int) -> int:
    if not given.get("page"):
        return start
    text = given["page"][-1].removeprefix("page_")
    if not (text.isascii() and text.isdigit() and len(text) < 16 and start <= int(text) < end):
        raise invalid("'page' is not a cursor of this query.", param="page")
    return int(text)


def _integer(given: dict[str, list[str]], name: str, default: int | None, low: int, high: int) -> int:
    values = given.get(name)
    if not values:
        if default is None:
            raise invalid(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
        return default
    text = values[-1]
    if not (text.isascii() and text.isdigit() and len(text) < 16 and low <= int(text) <= high):
        raise invalid(f"'{name}' must be a whole number from {low} to {high}.", param=name)
    return int(text)


def _choice(given: dict[str, list[str]], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(name, [default])[-1]
    if value not in allowed:
        raise _unsupported(name, value, allowed)
    return value


def _unsupported(name: str, value: str, allowed: Sequence[str]) -> ApiError:
    return invalid(f"Invalid '{name}': '{value[:64]}'. Supported values are: {', '.join(allowed)}.", param=name)
