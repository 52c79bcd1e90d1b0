"""`forebay usage`: tokens by class, requests and costs, from the ledger."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from forebay.metering import DIMENSIONS, Ledger, Line, UsageQuery, total
from forebay.platform.cli import show, tenant_names
from forebay.platform.cli.database import on_database
from forebay.platform.cli.times import Moment
from forebay.platform.stores.database import create_engine
from forebay.platform.stores.schema import migrate

_BUCKETS = {"minute": 60, "hour": 3600, "day": 86400}


@click.command()
@click.option("--tenant", "tenants", multiple=True, metavar="TENANT", help="Only this, by id or name; may be repeated.")
@click.option("--project", "projects", multiple=True, metavar="ID", help="Only this project; may be repeated.")
@click.option("--key", "keys", multiple=True, metavar="ID", help="Only this key; may be repeated.")
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this model; may be repeated.")
@click.option("--since", type=Moment(), default="30d", show_default=True, help="An age (24h, 7d) or a time.")
@click.option("--until", type=Moment(), default=None, help="An age or a time, exclusive. Default: now.")
@click.option(
    "--group-by", "groups", default="tenant,model", show_default=True,
    help=f"Comma-separated, of {', '.join((*DIMENSIONS, *_BUCKETS))}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with exact decimal costs as strings.")
@click.option("--config", "path", type=click.Path(path_type=Path, dir_okay=False), help="Default: ./forebay.yaml.")
def usage(
    tenants: tuple[str, ...], projects: tuple[str, ...], keys: tuple[str, ...], models: tuple[str, ...], *,
    since: float, until: float | None, groups: str, as_json: bool, path: Path | None,
) -> None:  # fmt: skip
    """Show what was used: requests, tokens by class, and their cost.

    Usage counts at the time at which a request ended, within a second of it.
    """
    dimensions, bucket = _groups(groups)
    end = time.time() + 1 if until is None else until
    if end <= since:
        raise click.BadParameter("--until must be after --since")
    query = UsageQuery(
        start=since, end=end, bucket=bucket, group_by=dimensions, tenants=tenants, projects=projects, keys=keys,
        models=models,
    )  # fmt: skip
    lines, called = on_database(path, lambda _, url: _report(url, query))
    if as_json:
        answer = {"lines": [_plain(item, bucket) for item in lines], "total": _plain(total(lines))}
        click.echo(msgspec.json.encode(answer))
    elif not lines:
        click.echo("No usage in this time.")
    else:
        show.wide().print(_table([_named(item, called) for item in lines], dimensions, bucket))


async def _report(url: str, query: UsageQuery) -> tuple[list[Line], dict[str, str]]:
    """The lines, and the names of tenants by id."""
    engine = create_engine(url, pool_size=1, statement_timeout=60.0, name="forebay-usage")
    try:
        await migrate(engine, upgrade=False)
        tenants = await tenant_names.ids_of(engine, query.tenants)
        lines = await Ledger(engine).usage(msgspec.structs.replace(query, tenants=tenants))
        seen = (item.group["tenant"] for item in lines if "tenant" in item.group)
        return lines, await tenant_names.names_of(engine, seen)
    finally:
        await engine.dispose()


def _named(item: Line, called: dict[str, str]) -> Line:
    """For people: a tenant's name instead of its id."""
    if "tenant" not in item.group:
        return item
    tenant = item.group["tenant"]
    return msgspec.structs.replace(item, group={**item.group, "tenant": called.get(tenant, tenant)})


def _groups(text: str) -> tuple[tuple[str, ...], int | None]:
    """The dimensions and the width of the time buckets, if any."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    widths = [name for name in names if name in _BUCKETS]
    unknown = [name for name in names if name not in DIMENSIONS and name not in _BUCKETS]
    if unknown or len(widths) > 1:
        fault = f"{unknown[0]!r} is not a group" if unknown else "one time unit is enough"
        raise click.BadParameter(f"{fault}; choose of {', '.join((*DIMENSIONS, *_BUCKETS))}", param_hint="--group-by")
    return tuple(dict.fromkeys(name for name in names if name in DIMENSIONS)), _BUCKETS[widths[0]] if widths else None


def _plain(item: Line, bucket: int | None = None) -> dict[str, Any]:
    used = item.used
    return {
        **({"start": _iso(item.start)} if bucket else {}),
        **item.group,
        "requests": item.requests,
        "attempts": item.attempts,
        "input_tokens": used.input_total,
        "input_uncached_tokens": used.input_uncached,
        "cache_read_tokens": used.cache_read,
        "cache_write_tokens": used.cache_write,
        "output_tokens": used.output,
        "reasoning_tokens": used.reasoning,
        "cost": {currency: format(amount, "f") for currency, amount in item.costs.items()},
        "unpriced_tokens": item.unpriced,
    }


def _table(lines: Sequence[Line], dimensions: tuple[str, ...], bucket: int | None) -> Table:
    table = Table(box=None, pad_edge=False, show_footer=len(lines) > 1)
    everything = total(lines)
    if bucket:
        table.add_column("from (UTC)", "total", no_wrap=True)
    for name in dimensions:
        table.add_column(name, "" if table.columns else "total", no_wrap=True)
    columns = ("requests", "uncached", "cache read", "cache write", "output", "cost")
    for name, footer in zip(columns, _figures(everything), strict=True):
        table.add_column(name, footer, justify="right", no_wrap=True)
    for item in lines:
        when = [_iso(item.start).removesuffix("+00:00").replace("T", " ")] if bucket else []
        table.add_row(*when, *(item.group[name] for name in dimensions), *_figures(item))
    return table


def _figures(item: Line) -> list[str]:
    used = item.used
    counts = (item.requests, used.input_uncached, used.cache_read, used.cache_write, used.output)
    cost = ", ".join(f"{amount:f} {currency}" for currency, amount in item.costs.items()) or "-"
    return [*(f"{count:,}" for count in counts), cost]


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
