"""How the CLI prints records: a table for people, JSON for programs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Nothing is cut off or wrapped, however narrow the terminal: an id is there to be copied."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, no_wrap=True)
    for row in rows:
        shown.add_row(*(Text(_cell(value)) for value in row))
    wide().print(shown)


def wide() -> Console:
    """A console on which every table has room; a terminal breaks lines that it has no room for."""
    return Console(width=1000)


def as_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def moment(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
