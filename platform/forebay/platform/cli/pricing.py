"""`forebay price` and `forebay plan`."""

import csv
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import click

from forebay.metering import Included, Plan, Price, Pricing, Rerated, rerated
from forebay.platform.api.pricing import NewPlan, NewPrice, add_plan, add_price
from forebay.platform.cli import show, tenant_names
from forebay.platform.cli.database import on_database, tell_unchecked
from forebay.platform.cli.times import Moment, Until
from forebay.platform.config.model import Config
from forebay.platform.stores.database import create_engine
from forebay.platform.tenancy.opened import opened
from forebay.platform.tenancy.service import Tenancy

T = TypeVar("T")
Act = Callable[[Tenancy, Pricing], Coroutine[Any, Any, T]]


class Money(click.ParamType[Decimal]):
    name = "amount"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        try:
            amount = Decimal(value)
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite():
            self.fail(f"{value!r} is not a decimal amount like 0.15", param, ctx)
        return amount


class Given(click.ParamType[Included]):
    """Included tokens."""

    name = "MODEL:CLASS:TOKENS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Included:
        parts = str(value).rsplit(":", 2)
        if len(parts) != 3 or not (parts[2].isascii() and parts[2].isdigit()) or len(parts[2]) > 15:
            self.fail(f"{value!r} is not like smol:output:1000000", param, ctx)
        return Included(parts[0], parts[1], int(parts[2]))


class Month(click.ParamType[datetime]):
    """A month as 2026-12."""

    name = "YYYY-MM"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return datetime.strptime(str(value), "%Y-%m").replace(tzinfo=UTC)
        except ValueError:
            self.fail(f"{value!r} is not a month like 2026-12", param, ctx)


_file = click.Path(dir_okay=False, path_type=Path)
_config = click.option("--config", "path", type=_file, help="Default: ./forebay.yaml, else the defaults.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, amounts as decimal strings.")


def _amounts(command: Callable[..., None]) -> Callable[..., None]:
    """A price's. Options are shown in the reverse of the order in which they are added."""
    for name, text in (
        ("cache-write", "A million input tokens written to the cache. Default: --input."),
        ("cache-read", "A million input tokens found in the cache. Default: --input."),
    ):
        command = click.option(f"--{name}", type=Money(), help=text)(command)
    command = click.option("--output", type=Money(), required=True, help="A million output tokens.")(command)
    command = click.option("--input", "input_", type=Money(), required=True, help="A million input tokens.")(command)
    return click.option("--model", required=True, help="The model it is for.")(command)


@click.group()
def price() -> None:
    """Prices of models: those of the configuration, which are everybody's, and overrides of single tenants."""


@price.command("set", short_help="Give a tenant a price of its own.")
@click.argument("tenant")
@_amounts
@click.option("--version", required=True, help="A name that no other price of the model has.")
@click.option("--from", "begins", type=Until(), default="0s", help="A time, or so long from now. Default: now.")
@_json
@_config
def price_set(
    tenant: str, model: str, version: str, begins: float, *, input_: Decimal, output: Decimal,
    cache_read: Decimal | None, cache_write: Decimal | None, path: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Charge TENANT (ten_… or its name) a price of its own for a model, on every front door within a second.

    It never changes. It is in force until a newer one of the tenant is: it has no end.
    """
    given = NewPrice(model, version, begins, input_, output, cache_read, cache_write)

    async def act(tenancy: Tenancy, pricing: Pricing) -> Price:
        tell_unchecked(tenancy, models=[model])
        return await add_price(tenancy, pricing, (await tenancy.find_tenant(tenant)).id, given)

    _show_prices([_on_pricing(path, act)], as_json)


@price.command("list")
@click.option("--tenant", help="Prices that hold for this one, by id or name. Default: all prices.")
@click.option("--model", help="Of this model alone.")
@_json
@_config
def price_list(tenant: str | None, model: str | None, path: Path | None, *, as_json: bool) -> None:
    """List price versions, also those that are no longer in force."""

    async def act(tenancy: Tenancy, pricing: Pricing) -> list[Price]:
        owner = None if tenant is None else (await tenancy.find_tenant(tenant)).id
        return await pricing.prices(tenant_id=owner, model=None if model is None else tenancy.offered.called(model))

    _show_prices(_on_pricing(path, act), as_json)


@price.command("preview", short_help="What past usage would have cost at other prices.")
@_amounts
@click.option("--tenant", "tenants", multiple=True, help="Usage of this one, by id or name; may be repeated.")
@click.option("--since", type=Moment(), default="30d", show_default=True, help="An age (24h, 7d) or a time.")
@click.option("--until", type=Moment(), default=None, help="An age or a time, exclusive. Default: now.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@_json
@_config
def price_preview(
    model: str, tenants: tuple[str, ...], since: float, until: float | None, *, input_: Decimal, output: Decimal,
    cache_read: Decimal | None, cache_write: Decimal | None, path: Path | None, as_csv: bool, as_json: bool,
) -> None:  # fmt: skip
    """Rate past usage of a model anew with a draft, beside what it was charged. Nothing is changed.

    Tiers' multipliers are as they were. Plans are left out.
    """
    end = time.time() + 1 if until is None else until
    if end <= since:
        raise click.BadParameter("--until must be after --since")

    async def act(config: Config, url: str) -> tuple[list[Rerated], dict[str, str]]:
        async with opened(config, url) as tenancy:
            engine = create_engine(url, pool_size=1, statement_timeout=60.0, name="forebay-price")
            try:
                called = tenancy.offered.called(model)
                read = input_ if cache_read is None else cache_read
                write = input_ if cache_write is None else cache_write
                draft = Price(called, "draft", since, config.currency, input_, output, read, write)
                pricing = Pricing(engine, config.currency)
                known = {(one.model, one.version): one for one in await pricing.prices(model=called)}
                past = await pricing.past(called, since, end, await tenant_names.ids_of(engine, tenants))
                found = rerated(past, known, draft)
                return found, await tenant_names.names_of(engine, (one.tenant_id for one in found))
            finally:
                await engine.dispose()

    _show_preview(*on_database(path, act), as_json=as_json, as_csv=as_csv)


@click.group()
def plan() -> None:
    """Plans of tenants: what is owed each month at least, and tokens that are not charged."""


@plan.command("set", short_help="Give a tenant a plan from a month on.")
@click.argument("tenant")
@click.option("--version", required=True, help="A name that no other plan of the tenant has.")
@click.option("--from", "begins", type=Month(), required=True, help="The first month, after that of all its plans.")
@click.option("--minimum", type=Money(), default="0", help="The least total of a month.")
@click.option("--include", "included", multiple=True, type=Given(), help="Tokens a month at no charge; repeatable.")
@click.option("--session-hour", type=Money(), help="An hour of an agent session. None are metered yet.")
@_json
@_config
def plan_set(
    tenant: str, version: str, begins: datetime, minimum: Decimal, *, included: tuple[Included, ...],
    session_hour: Decimal | None, path: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Give TENANT (ten_… or its name) a plan. It never changes, and is in force until a newer one is."""
    given = NewPlan(version, begins.date(), minimum, included, session_hour)

    async def act(tenancy: Tenancy, pricing: Pricing) -> Plan:
        tell_unchecked(tenancy, models=[one.model for one in included])
        return await add_plan(tenancy, pricing, (await tenancy.find_tenant(tenant)).id, given)

    _show_plans([_on_pricing(path, act)], as_json)


@plan.command("list")
@click.argument("tenant", required=False)
@_json
@_config
def plan_list(tenant: str | None, path: Path | None, *, as_json: bool) -> None:
    """List the plans of TENANT (ten_… or its name), or of all."""

    async def act(tenancy: Tenancy, pricing: Pricing) -> list[Plan]:
        return await pricing.plans(None if tenant is None else (await tenancy.find_tenant(tenant)).id)

    _show_plans(_on_pricing(path, act), as_json)


def _on_pricing(path: Path | None, act: Act[T]) -> T:
    async def run(config: Config, url: str) -> T:
        async with opened(config, url) as tenancy:
            engine = create_engine(url, pool_size=1, name="forebay-price")
            try:
                return await act(tenancy, Pricing(engine, config.currency))
            finally:
                await engine.dispose()

    return on_database(path, run)


def _show_prices(found: Sequence[Price], as_json: bool) -> None:
    if as_json:
        return show.as_json(found)
    columns = ["MODEL", "TENANT", "VERSION", "FROM", "INPUT", "CACHE READ", "CACHE WRITE", "OUTPUT", "CURRENCY"]
    return show.table(columns, [
        [one.model, one.tenant_id or "all", one.version, show.moment(one.effective_from), f"{one.input:f}",
         f"{one.cache_read:f}", f"{one.cache_write:f}", f"{one.output:f}", one.currency]
        for one in found
    ])  # fmt: skip


def _show_plans(found: Sequence[Plan], as_json: bool) -> None:
    if as_json:
        return show.as_json(found)
    return show.table(["TENANT", "VERSION", "FROM", "MINIMUM", "INCLUDED", "SESSION HOUR", "CURRENCY"], [
        [one.tenant_id, one.version, one.effective_from, f"{one.minimum:f}",
         [f"{part.model}:{part.token_class}:{part.tokens}" for part in one.included] or None,
         None if one.session_hour is None else f"{one.session_hour:f}", one.currency]
        for one in found
    ])  # fmt: skip


def _show_preview(found: Sequence[Rerated], called: dict[str, str], *, as_json: bool, as_csv: bool) -> None:
    columns = ["tenant", "model", "class", "tokens", "charged", "draft", "change"]
    if as_json:
        return show.as_json(found)
    rows: list[list[Any]] = [
        [one.tenant_id, one.model, one.token_class, one.tokens, f"{one.charged:f}", f"{one.draft:f}", f"{one.change:f}"]
        for one in found
    ]
    if as_csv:
        return csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
    if not rows:
        return click.echo("No usage in this time.")
    return show.table([name.upper() for name in columns], [[called.get(row[0], row[0]), *row[1:]] for row in rows])
