"""`forebay stripe map`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from forebay.metering.stripe import BEGINNING, TOKEN_CLASSES, MappingError, fit
from forebay.platform.cli import show
from forebay.platform.cli.stripe_common import common, on_stripe
from forebay.platform.cli.times import Moment
from forebay.platform.stripe import Billing, now


@click.group("map", invoke_without_command=True)
@common
@click.pass_context
def stripe_map(ctx: click.Context, path: Path | None, *, as_json: bool) -> None:
    """Say which customer a tenant is, and which meter counts a model's tokens. Without more: show it."""
    if ctx.invoked_subcommand is not None:
        return None

    async def look(its: Billing) -> dict[str, Any]:
        return {
            "tenants": msgspec.to_builtins(await its.mappings.customers()),
            "models": msgspec.to_builtins(await its.mappings.meters()),
        }

    found = on_stripe(path, look)
    if as_json:
        return show.as_json(found)
    for name, keys in (("tenants", ["tenant_id", "customer_id", "effective_from"]),
                       ("models", ["model", "tier", "token_class", "event_name", "effective_from"])):  # fmt: skip
        click.echo(f"{name}: {len(found[name])}")
        if found[name]:
            _table(found[name], keys)
    return None


_BEGINNING = msgspec.to_builtins(BEGINNING)
_FROM = click.option("--from", "since", type=Moment(), help="An hour. Default: the beginning; of a change, the next.")


@stripe_map.command("tenant")
@click.argument("tenant")
@click.argument("customer", required=False)
@click.option("--none", "nothing", is_flag=True, help="Do not bill it through Stripe.")
@_FROM
@common
def map_tenant(
    tenant: str, customer: str | None, path: Path | None, *, nothing: bool, since: float | None, as_json: bool
) -> None:
    """TENANT (ten_… or its name) is CUSTOMER (cus_…) at Stripe."""
    _one(customer, nothing, "a customer (cus_…)")

    async def act(its: Billing, ids: tuple[str, ...]) -> Any:
        if customer and not await its.caller.call(its.caller.api.has_customer, customer):
            raise MappingError(f"Stripe has no customer {customer!r}, or it was deleted")
        return await its.mappings.map_customer(ids[0], customer or "", now(), _time(since))

    _show_one(on_stripe(path, act, tenant), as_json)


@stripe_map.command("model")
@click.argument("model")
@click.argument("token_class", type=click.Choice(TOKEN_CLASSES))
@click.argument("event_name", required=False)
@click.option("--tier", default="", help="Of this tier alone. Default: of every tier that has none of its own.")
@click.option("--none", "nothing", is_flag=True, help="Do not bill them through Stripe.")
@_FROM
@common
def map_model(
    model: str, token_class: str, event_name: str | None, path: Path | None, *, tier: str, nothing: bool,
    since: float | None, as_json: bool,
) -> None:  # fmt: skip
    """MODEL's tokens of TOKEN_CLASS are counted by the meter whose event name is EVENT_NAME."""
    _one(event_name, nothing, "a meter's event name")

    async def act(its: Billing) -> Any:
        if event_name:
            meters = await its.caller.call(its.caller.api.meters)
            fit(meters.get(event_name), event_name)
        return await its.mappings.map_meter(
            model, token_class, event_name or "", now(), tier=tier, since=_time(since)
        )

    _show_one(on_stripe(path, act), as_json)


def _one(name: str | None, nothing: bool, what: str) -> None:
    if (name is None) is not nothing:
        raise click.UsageError(f"give {what}, or --none")


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _show_one(made: Any, as_json: bool) -> None:
    row = msgspec.to_builtins(made)
    return show.as_json(row) if as_json else _table([row], list(row))


def _table(rows: list[dict[str, Any]], keys: list[str]) -> None:
    meant = {("tier", ""): "any", ("effective_from", _BEGINNING): "the beginning"}
    show.table(
        [key.upper() for key in keys],
        [[meant.get((key, row[key]), row[key] or "none") for key in keys] for row in rows],
    )


