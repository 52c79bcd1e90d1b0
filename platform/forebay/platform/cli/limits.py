"""`forebay limits`."""

from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from forebay.platform.api.limits import shown
from forebay.platform.cli import show
from forebay.platform.cli.database import on_tenancy, tell_unchecked
from forebay.platform.limits.rules import ALL_MODELS, MOST, Kind, Level, Limit, Limits
from forebay.platform.tenancy.service import Tenancy

_NONE = "none"
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9}


class Number(click.ParamType[int | str]):
    """A limit, or `none` for none. With k, M or G it counts thousands, millions or milliards."""

    name = "number|none"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value).strip().lower()
        if text == _NONE:
            return _NONE
        number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
        if not (number.isascii() and number.isdigit()) or len(number) > 13 or int(number) * unit > MOST:
            self.fail(f"{value!r} is not a number from 0 to {MOST}, or none", param, ctx)
        return int(number) * unit


def _common(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    file = click.Path(dir_okay=False, path_type=Path)
    command = click.option("--config", "path", type=file, help="Default: ./forebay.yaml, else the defaults.")(command)
    return click.argument("reference", metavar="WHOM")(command)


@click.group()
def limits() -> None:
    """Limit what a tenant, project or key may use. WHOM is a tenant (ten_… or its name), a project (proj_… or
    TENANT/PROJECT) or a key (key_… or its public part)."""


@limits.command("set", short_help="Set limits; those not named stay.")
@_common
@click.option("--model", default=ALL_MODELS, help="For this model. Default: for all models together.")
@click.option("--requests", Kind.REQUESTS.value, type=Number(), help="Requests per minute.")
@click.option("--input-tokens", Kind.INPUT.value, type=Number(), help="Input tokens per minute that no cache holds.")
@click.option("--output-tokens", Kind.OUTPUT.value, type=Number(), help="Output tokens per minute.")
@click.option("--concurrent", Kind.CONCURRENT.value, type=Number(), help="Requests at a time.")
@click.option("--queued", Kind.QUEUED.value, type=Number(), help="Requests at a time that wait for an engine.")
def limits_set(
    reference: str, path: Path | None, model: str, *, as_json: bool, **numbers: int | str | None
) -> None:
    """Set limits of WHOM, on every front door within a second. Those not named stay as they are; `none` takes one
    away, 0 lets nothing pass."""
    wanted = {name: None if value == _NONE else value for name, value in numbers.items() if value is not None}
    if not wanted:
        raise click.UsageError("name at least one limit")

    async def change(tenancy: Tenancy) -> list[Limit]:
        level, owner = await _find(tenancy, reference)
        named = tenancy.limits.named(model)
        before = {one.model: one.limits for one in await tenancy.limits.of(owner)}
        new = msgspec.structs.replace(before.get(named, Limits()), **wanted)
        await tenancy.limits.set(level, owner, new, named)
        tell_unchecked(tenancy, models=[named] if named else [])
        return await tenancy.limits.of(owner)

    _show(on_tenancy(path, change), as_json)


@limits.command("show")
@_common
def limits_show(reference: str, path: Path | None, *, as_json: bool) -> None:
    """Show the limits of WHOM, and those above it that hold for it as well."""

    async def find(tenancy: Tenancy) -> list[Limit]:
        return await tenancy.limits.of(*await _chain(tenancy, reference))

    _show(on_tenancy(path, find), as_json)


@limits.command("clear", short_help="Take limits away.")
@_common
@click.option("--model", help="Those for this model. Default: those for all models together.")
@click.option("--all", "every", is_flag=True, help="Those for each model as well.")
def limits_clear(reference: str, path: Path | None, model: str | None, *, every: bool, as_json: bool) -> None:
    """Take limits of WHOM away."""
    if every and model is not None:
        raise click.UsageError("name a model or give --all, not both")

    async def clear(tenancy: Tenancy) -> list[Limit]:
        _, owner = await _find(tenancy, reference)
        await tenancy.limits.clear(owner, None if every else model or ALL_MODELS)
        return await tenancy.limits.of(owner)

    _show(on_tenancy(path, clear), as_json)


async def _find(tenancy: Tenancy, reference: str) -> tuple[Level, str]:
    if reference.startswith(("key_", "sk-")):
        return Level.KEY, (await tenancy.find_key(reference)).id
    if reference.startswith("proj_") or "/" in reference:
        return Level.PROJECT, (await tenancy.find_project(reference)).id
    return Level.TENANT, (await tenancy.find_tenant(reference)).id


async def _chain(tenancy: Tenancy, reference: str) -> list[str]:
    """It, and what it belongs to."""
    level, owner = await _find(tenancy, reference)
    chain = [owner]
    if level is Level.KEY and (project := (await tenancy.key(owner)).project_id) is not None:
        chain.append(project)
    if level is not Level.TENANT and chain[-1].startswith("proj_"):
        chain.append((await tenancy.project(chain[-1])).tenant_id)
    return chain


def _show(found: list[Limit], as_json: bool) -> None:
    if as_json:
        return show.as_json([shown(one) for one in found])
    names = ["REQUESTS/MIN", "INPUT/MIN", "OUTPUT/MIN", "CONCURRENT", "QUEUED"]
    return show.table(
        ["LEVEL", "ID", "MODEL", *names],
        [[one.level, one.owner, one.model or "all", *(getattr(one.limits, kind) for kind in Kind)] for one in found],
    )
