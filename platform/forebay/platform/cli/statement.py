"""`forebay statement`."""

import csv
import sys
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from forebay.metering import Kind, StatementError, StatementLine, Statements
from forebay.platform.cli import show, tenant_names
from forebay.platform.cli.database import on_database
from forebay.platform.cli.pricing import Month
from forebay.platform.config.model import Config
from forebay.platform.stores.database import create_engine
from forebay.platform.stores.schema import migrate

T = TypeVar("T")
_COLUMNS = ("line", "kind", "month", "late", "model", "price", "multiplier", "class", "tokens", "per million", "exact",
            "amount")  # fmt: skip
_file = click.Path(dir_okay=False, path_type=Path)
_config = click.option("--config", "path", type=_file, help="Default: ./forebay.yaml, else the defaults.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, amounts as decimal strings.")
_csv = click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")


@click.group()
def statement() -> None:
    """What tenants owe for a period (a month, UTC). TENANT is ten_… or a name."""


@statement.command("show")
@click.argument("tenant")
@click.argument("period", type=Month())
@_json
@_csv
@_config
def statement_show(tenant: str, period: datetime, path: Path | None, *, as_json: bool, as_csv: bool) -> None:
    """Show the statement of TENANT for PERIOD (2026-12), line by line. An open period's grows still."""
    told = _on_statements(path, tenant, lambda found, owner: found.of(owner, period.date()))
    if as_json:
        return show.as_json(told)
    rows = [_row(line) for line in told.statement.lines]
    if as_csv:
        return csv.writer(sys.stdout, lineterminator="\n").writerows([_COLUMNS, *rows])
    show.table([name.upper() for name in _COLUMNS], rows)
    whole = told.statement
    state = "closed" if told.closed else "open"
    return click.echo(f"total {whole.total:f} {whole.currency}, {state}, sha256 {told.digest}")


@statement.command("list")
@click.argument("tenant")
@_json
@_csv
@_config
def statement_list(tenant: str, path: Path | None, *, as_json: bool, as_csv: bool) -> None:
    """List the statements of TENANT: a line for each period."""
    found = _on_statements(path, tenant, lambda kept, owner: kept.all_of(owner))
    rows = [
        [f"{one.statement.period:%Y-%m}", "closed" if one.closed else "open", f"{one.statement.total:f}",
         one.statement.currency, len(one.statement.lines), one.digest]
        for one in found
    ]  # fmt: skip
    columns = ["period", "status", "total", "currency", "lines", "sha256"]
    if as_json:
        return show.as_json([dict(zip(columns, row, strict=True)) for row in rows])
    if as_csv:
        return csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
    return show.table([name.upper() for name in columns], rows)


@statement.command("explain")
@click.argument("tenant")
@click.argument("period", type=Month())
@click.argument("line", type=click.IntRange(1))
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Records at most.")
@_json
@_csv
@_config
def statement_explain(
    tenant: str, period: datetime, line: int, *, limit: int, path: Path | None, as_json: bool, as_csv: bool
) -> None:
    """Show the records that a LINE of a statement is made of: their tokens add up to the line's."""

    async def act(kept: Statements, owner: str) -> tuple[StatementLine, list[Any]]:
        lines = (await kept.of(owner, period.date())).statement.lines
        if line > len(lines):
            raise click.ClickException(f"the statement has {len(lines)} lines; there is no line {line}")
        return lines[line - 1], await kept.parts(owner, lines[line - 1], period.date(), limit + 1)

    chosen, parts = _on_statements(path, tenant, act)
    if len(parts) > limit:
        click.echo(f"the first {limit} records; give a higher --limit to see all", err=True)
    rows = [
        [one.request_id, one.attempt, one.entry, show.moment(one.ended_at), one.project_id, one.key_id, one.tokens]
        for one in parts[:limit]
    ]
    columns = ["request", "attempt", "entry", "ended", "project", "key", "tokens"]
    if as_json:
        return show.as_json({"line": chosen, "records": parts[:limit]})
    if as_csv:
        return csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
    show.table([name.upper() for name in _COLUMNS], [_row(chosen)])
    if chosen.kind is Kind.MINIMUM:
        return click.echo("What was missing to the plan's minimum: no record.")
    return show.table([name.upper() for name in columns], rows)


def _row(line: StatementLine) -> list[Any]:
    return [
        line.number, line.kind.value, f"{line.charge_month:%Y-%m}", "late" if line.late else "", line.model,
        line.price_version, f"{line.multiplier:f}", line.token_class, line.tokens, f"{line.unit_price:f}",
        f"{line.exact:f}", f"{line.amount:f}",
    ]  # fmt: skip


def _on_statements(path: Path | None, tenant: str, act: Callable[[Statements, str], Coroutine[Any, Any, T]]) -> T:
    async def run(config: Config, url: str) -> T:
        engine = create_engine(url, pool_size=1, statement_timeout=60.0, name="forebay-statement")
        try:
            await migrate(engine, upgrade=False)
            (owner,) = await tenant_names.ids_of(engine, (tenant,))
            return await act(Statements(engine, config.currency), owner)
        except StatementError as error:
            raise click.ClickException(str(error)) from None
        finally:
            await engine.dispose()

    return on_database(path, run)
