"""`forebay ledger`: periods, corrections and the rollup."""

import getpass
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import structs

from forebay.metering import BookError, Books, Difference, Period, named, period_of
from forebay.platform.cli import show
from forebay.platform.cli.database import on_database
from forebay.platform.stores.database import create_engine
from forebay.platform.stores.schema import migrate

T = TypeVar("T")
_CLASSES = ("input_uncached", "cache_read", "cache_write", "output", "reasoning")


class Month(click.ParamType[Any]):
    """A period."""

    name = "YYYY-MM"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return period_of(value) if isinstance(value, str) else value
        except BookError as error:
            self.fail(str(error), param, ctx)


def _common(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    file = click.Path(dir_okay=False, path_type=Path)
    return click.option("--config", "path", type=file, help="Default: ./forebay.yaml, else the defaults.")(command)


_by = click.option("--by", default=getpass.getuser, help="Who does it. Default: your account here.")
_period = click.option("--period", type=Month(), help="Of this month alone. Default: of all.")


@click.group()
def ledger() -> None:
    """Keep the books: close periods, correct records, check the rollup."""


@ledger.command()
@_common
def periods(path: Path | None, *, as_json: bool) -> None:
    """Show the periods that have usage, and which are closed."""
    found = _on_books(path, lambda books: books.periods())
    if as_json:
        return show.as_json([_plain(one) for one in found])
    return show.table(
        ["PERIOD", "STATE", "REQUESTS", "ATTEMPTS", "CLOSED", "BY"],
        [
            [named(one.period), "open" if one.closed_at is None else "closed", one.requests, one.attempts,
             show.moment(one.closed_at), one.closed_by or ""] for one in found
        ],
    )  # fmt: skip


@ledger.command(short_help="Close a month for ever.")
@click.argument("period", type=Month(), metavar="YYYY-MM")
@_by
@_common
def close(period: Any, by: str, path: Path | None, *, as_json: bool) -> None:
    """Close a month that is over, for ever: usage and corrections that come later are billed in the next open one.
    Refused where rollup and records differ."""
    found = _on_books(path, lambda books: books.close(period, by))
    if as_json:
        return show.as_json(_plain(found))
    return click.echo(f"closed {named(period)}: {found.requests} requests, {found.attempts} attempts")


@ledger.command(short_help="Correct what a record bills.")
@click.argument("request_id", metavar="REQUEST")
@click.option("--attempt", type=click.IntRange(1), default=1, show_default=True)
@click.option("--input-uncached", type=int)
@click.option("--cache-read", type=int)
@click.option("--cache-write", type=int)
@click.option("--output", type=int)
@click.option("--reasoning", type=int, help="A part of the output.")
@click.option("--reason", required=True, help="Why; kept with the correction.")
@_by
@_common
def correct(
    request_id: str, attempt: int, reason: str, by: str, path: Path | None, *, as_json: bool, **counts: int | None
) -> None:
    """Bill other tokens for an attempt of REQUEST. Classes that are not named stay. The record itself stays too: it is
    taken back and another put in its place, in the period that is open."""
    changes = {name: count for name, count in counts.items() if count is not None}
    if not changes:
        raise click.UsageError("name at least one count, such as --output 0")
    found = _on_books(path, lambda books: books.correct(request_id, attempt, changes, by=by, reason=reason))
    if as_json:
        return show.as_json({**structs.asdict(found), "period": named(found.period)})
    for name in _CLASSES:
        before, after = getattr(found.before, name), getattr(found.after, name)
        if before != after:
            click.echo(f"{name}: {before} -> {after}, billed in {named(found.period)}")
    return None


@ledger.command()
@_period
@_common
def verify(period: Any, path: Path | None, *, as_json: bool) -> None:
    """Compare the hourly rollup with the records. Status 1 where they differ."""
    found = _on_books(path, lambda books: books.verify(period))
    if as_json:
        show.as_json(found)
    else:
        click.echo(_verdict(found))
    if found.rows:
        raise SystemExit(1)


@ledger.command()
@_period
@_common
def rebuild(period: Any, path: Path | None, *, as_json: bool) -> None:
    """Make the hourly rollup anew from the records. Usage waits in spools meanwhile."""
    rows = _on_books(path, lambda books: books.rebuild(period))
    if as_json:
        return show.as_json({"rows": rows})
    return click.echo(f"rebuilt: {rows} rows")


def _plain(one: Period) -> dict[str, Any]:
    return {**structs.asdict(one), "period": named(one.period), "closed": one.closed_at is not None}


def _verdict(found: Difference) -> str:
    if not found.rows:
        return "the rollup is what the records say"
    return f"{found.rows} rows differ, the first in the hour of {show.moment(found.first_hour)}"


def _on_books(path: Path | None, act: Callable[[Books], Awaitable[T]]) -> T:
    async def run(url: str) -> T:
        engine = create_engine(url, pool_size=1, statement_timeout=600.0, name="forebay-ledger")
        try:
            await migrate(engine, upgrade=False)
            return await act(Books(engine))
        finally:
            await engine.dispose()

    try:
        return on_database(path, lambda _, url: run(url))
    except BookError as error:
        raise click.ClickException(str(error)) from None
