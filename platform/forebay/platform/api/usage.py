"""`/v1/organization/usage/*` and `/v1/organization/costs`: a tenant's own usage, in the shape of OpenAI's SDK."""

import time
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get
from litestar.di import NamedDependency

from forebay.metering import Ledger, Line, rounded
from forebay.platform.api.usage_query import Page, parse
from forebay.platform.errors import ApiError
from forebay.platform.stores.database import reachable
from forebay.platform.tenancy.principal import Principal, Scope

_encode = msgspec.json.Encoder(decimal_format="number").encode
_COMPLETIONS = ("chat.completions", "completions")
_EMBEDDINGS = ("embeddings",)
_LINE_ITEMS = {
    "input_uncached": "input",
    "cache_read": "cached_input",
    "cache_write": "cache_write_input",
    "output": "output",
}
_GROUP_FIELDS = {"project_id": "project", "api_key_id": "key", "model": "model", "service_tier": "tier"}


class UsageController(Controller):
    path = "/v1/organization"

    @get("/usage/completions", operation_id="usage_completions")
    async def completions(
        self, request: Request[Any, Any, Any], principal: NamedDependency[Principal], ledger: NamedDependency[Ledger]
    ) -> Response[bytes]:
        page, lines = await _lines(request, principal, ledger, _COMPLETIONS)
        return _answer(page, lines, lambda found: [_completions(page, item) for item in found])

    @get("/usage/embeddings", operation_id="usage_embeddings")
    async def embeddings(
        self, request: Request[Any, Any, Any], principal: NamedDependency[Principal], ledger: NamedDependency[Ledger]
    ) -> Response[bytes]:
        page, lines = await _lines(request, principal, ledger, _EMBEDDINGS)
        return _answer(page, lines, lambda found: [_embeddings(page, item) for item in found])

    @get("/costs", operation_id="costs")
    async def costs(
        self, request: Request[Any, Any, Any], principal: NamedDependency[Principal], ledger: NamedDependency[Ledger]
    ) -> Response[bytes]:
        page, lines = await _lines(request, principal, ledger, (), costs=True)
        wanted = frozenset(_all(request, "line_items"))
        return _answer(page, lines, lambda found: [result for item in found for result in _costs(page, item, wanted)])


async def _lines(
    request: Request[Any, Any, Any], principal: Principal, ledger: Ledger, apis: tuple[str, ...], *, costs: bool = False
) -> tuple[Page, list[Line]]:
    # A key without a tenant would otherwise filter by nothing.
    if Scope.USAGE_READ not in principal.scopes or not principal.tenant_id:
        raise ApiError(403, "insufficient_scope", "This API key lacks the scope 'usage.read' of a tenant.")
    params = {name: request.query_params.getall(name) for name in request.query_params}
    page = parse(params, tenant=principal.tenant_id, apis=apis, now=time.time(), costs=costs)
    with reachable():
        return page, await ledger.usage(page.query) if page.query else []


def _all(request: Request[Any, Any, Any], name: str) -> list[str]:
    params = request.query_params
    return [*params.getall(name, []), *params.getall(f"{name}[]", [])]


def _answer(page: Page, lines: Iterable[Line], results: Any) -> Response[bytes]:
    by_start: dict[int, list[Line]] = {start: [] for start, _ in page.buckets}
    for item in lines:
        by_start[int(item.start)].append(item)
    data = [
        {"object": "bucket", "start_time": start, "end_time": end, "results": results(by_start[start])}
        for start, end in page.buckets
    ]
    body = {"object": "page", "data": data, "has_more": page.next_page is not None, "next_page": page.next_page}
    return Response(_encode(body), media_type="application/json")


def _completions(page: Page, item: Line) -> dict[str, Any]:
    used = item.used
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": used.input_total,
        "input_cached_tokens": used.cache_read,
        "input_cache_write_tokens": used.cache_write,
        "input_uncached_tokens": used.input_uncached,
        "input_text_tokens": used.input_uncached,
        "input_cached_text_tokens": used.cache_read,
        "input_audio_tokens": 0,
        "output_tokens": used.output,
        "output_text_tokens": used.output,
        "output_audio_tokens": 0,
        "num_model_requests": item.requests,
        **_group(page, item),
        "batch": False if "batch" in page.groups else None,
    }


def _embeddings(page: Page, item: Line) -> dict[str, Any]:
    return {
        "object": "organization.usage.embeddings.result",
        "input_tokens": item.used.input_total,
        "num_model_requests": item.requests,
        **_group(page, item),
    }


def _costs(page: Page, item: Line, wanted: frozenset[str]) -> list[dict[str, Any]]:
    """One result per currency; by line item, one per model, class and currency, each rounded as a line of its own."""
    if "line_item" not in page.groups and not wanted:
        return [_cost(page, item, currency, amount) for currency, amount in sorted(item.exact.items())]
    found = []
    for (model, name, currency), (tokens, amount) in sorted(item.by_class.items()):
        label = f"{model}, {_LINE_ITEMS[name]}_tokens"
        if not wanted or label in wanted:
            extra = {"line_item": label, "quantity": tokens, "quantity_unit": "tokens"}
            found.append({**_cost(page, item, currency, amount), **extra})
    return found


def _cost(page: Page, item: Line, currency: str, amount: Decimal) -> dict[str, Any]:
    return {
        "object": "organization.costs.result",
        "amount": {"value": rounded(amount), "currency": currency.lower()},
        "line_item": None,
        "quantity": None,
        "quantity_unit": None,
        **_group(page, item),
    }


def _group(page: Page, item: Line) -> dict[str, str | None]:
    """The fields by which results are grouped; the others are null, as at OpenAI."""
    fields: dict[str, str | None] = {name: item.group.get(ours) for name, ours in _GROUP_FIELDS.items()}
    fields["user_id"] = None
    fields["api_source"] = "unlabeled" if "api_source" in page.groups else None
    return fields
