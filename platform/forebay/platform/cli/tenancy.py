"""`forebay tenant`, `forebay project` and `forebay key`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from forebay.platform.cli import show
from forebay.platform.cli.database import on_tenancy, tell_unchecked
from forebay.platform.cli.times import Duration, Until
from forebay.platform.tenancy.records import IssuedKey, Key, Page, Project, Tenant
from forebay.platform.tenancy.service import Tenancy

_LIMIT = click.option(
    "--limit", type=click.IntRange(1, 1000), default=1000, show_default=True, help="The most entries to show."
)
_AFTER = click.option("--after", metavar="ID", help="Continue behind this entry.")


def _common(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
    file = click.Path(dir_okay=False, path_type=Path)
    return click.option("--config", "path", type=file, help="Default: ./forebay.yaml, else the defaults.")(command)


@click.group()
def tenant() -> None:
    """Create and manage tenants. TENANT is an id (ten_…) or a name."""


@tenant.command("create")
@click.argument("name")
@click.option("--weight", type=float, default=1.0, show_default=True, help="How much it is served beside others.")
@_common
def tenant_create(name: str, weight: float, path: Path | None, *, as_json: bool) -> None:
    """Create a tenant."""
    _tenants([on_tenancy(path, lambda tenancy: tenancy.create_tenant(name, weight))], as_json, one=True)


@tenant.command("list")
@click.option("--deleted", is_flag=True, help="Deleted tenants too.")
@_LIMIT
@_AFTER
@_common
def tenant_list(limit: int, after: str | None, path: Path | None, *, deleted: bool, as_json: bool) -> None:
    """List tenants, oldest first."""
    _tenants(on_tenancy(path, lambda tenancy: tenancy.tenants(Page(limit, after), deleted=deleted)), as_json)


@tenant.command("weight", short_help="Show or set how much it is served beside others.")
@click.argument("reference", metavar="TENANT")
@click.argument("weight", type=float, required=False)
@_common
def tenant_weight(reference: str, weight: float | None, path: Path | None, *, as_json: bool) -> None:
    """Set how much a tenant is served beside others of its tier while both have requests waiting: one of weight 2 twice
    as many tokens as one of weight 1. From 0.01 to 100; show it if none is given."""

    async def change(tenancy: Tenancy) -> Tenant:
        found = await tenancy.find_tenant(reference)
        return found if weight is None else await tenancy.set_weight(found.id, weight)

    _tenants([on_tenancy(path, change)], as_json, one=True)


@tenant.command("suspend")
@click.argument("reference", metavar="TENANT")
@_common
def tenant_suspend(reference: str, path: Path | None, *, as_json: bool) -> None:
    """Refuse a tenant's keys until it is resumed."""

    async def suspend(tenancy: Tenancy) -> Tenant:
        return await tenancy.suspend_tenant((await tenancy.find_tenant(reference)).id)

    _tenants([on_tenancy(path, suspend)], as_json, one=True)


@tenant.command("resume")
@click.argument("reference", metavar="TENANT")
@_common
def tenant_resume(reference: str, path: Path | None, *, as_json: bool) -> None:
    """Accept a suspended tenant's keys again."""

    async def resume(tenancy: Tenancy) -> Tenant:
        return await tenancy.resume_tenant((await tenancy.find_tenant(reference)).id)

    _tenants([on_tenancy(path, resume)], as_json, one=True)


@tenant.command("export", short_help="Write everything kept about a tenant as JSON.")
@click.argument("reference", metavar="TENANT")
@click.option("-o", "--output", type=click.File("wb", atomic=True), default="-", help="A file. Default: the terminal.")
@click.option("--config", "path", type=click.Path(dir_okay=False, path_type=Path), help="Default: ./forebay.yaml.")
def tenant_export(reference: str, output: Any, path: Path | None) -> None:
    """Write everything kept about a tenant as one JSON document: projects, keys (without their text), usage."""

    async def export(tenancy: Tenancy) -> None:
        async for part in await tenancy.export_tenant((await tenancy.find_tenant(reference)).id):
            output.write(part)
        output.write(b"\n")

    on_tenancy(path, export)


@tenant.command("delete", short_help="Revoke its keys, erase its names for good.")
@click.argument("reference", metavar="TENANT")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_common
def tenant_delete(reference: str, path: Path | None, *, yes: bool, as_json: bool) -> None:
    """Revoke a tenant's keys and erase its names for good. Ids stay, for the ledger."""
    if not yes:
        click.confirm(f"Delete tenant {reference}? This cannot be undone", abort=True, err=True)

    async def delete(tenancy: Tenancy) -> Tenant:
        return await tenancy.delete_tenant((await tenancy.find_tenant(reference)).id)

    _tenants([on_tenancy(path, delete)], as_json, one=True)


@click.group()
def project() -> None:
    """Create and manage projects. PROJECT is an id (proj_…) or TENANT/PROJECT by name."""


@project.command("create")
@click.argument("reference", metavar="TENANT")
@click.argument("name")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Allow this model only; may be repeated.")
@click.option("--tier", "tiers", multiple=True, metavar="TIER", help="Allow this tier; may be repeated.")
@_common
def project_create(
    reference: str, name: str, models: tuple[str, ...], tiers: tuple[str, ...], path: Path | None, *, as_json: bool
) -> None:
    """Create a project of TENANT. Without --model it may use every model, without --tier every tier that is open."""

    async def create(tenancy: Tenancy) -> Project:
        tenant_id = (await tenancy.find_tenant(reference)).id
        made = await tenancy.create_project(tenant_id, name, models or None, tiers or None)
        tell_unchecked(tenancy, models=models, tiers=tiers)
        return made

    _projects([on_tenancy(path, create)], as_json, one=True)


@project.command("list")
@click.argument("reference", metavar="TENANT")
@_LIMIT
@_AFTER
@_common
def project_list(reference: str, limit: int, after: str | None, path: Path | None, *, as_json: bool) -> None:
    """List a tenant's projects."""

    async def find(tenancy: Tenancy) -> list[Project]:
        return await tenancy.projects((await tenancy.find_tenant(reference)).id, Page(limit, after))

    _projects(on_tenancy(path, find), as_json)


@project.command("models", short_help="Show or set the models that it may use.")
@click.argument("reference", metavar="PROJECT")
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--all", "every", is_flag=True, help="Allow every model.")
@_common
def project_models(reference: str, models: tuple[str, ...], path: Path | None, *, every: bool, as_json: bool) -> None:
    """Set the models that a project may use; show them if none are named."""
    if every and models:
        raise click.UsageError("name models or give --all, not both")

    async def change(tenancy: Tenancy) -> Project:
        found = await tenancy.find_project(reference)
        if not every and not models:
            return found
        changed = await tenancy.set_models(found.id, None if every else models)
        tell_unchecked(tenancy, models=models)
        return changed

    _projects([on_tenancy(path, change)], as_json, one=True)


@project.command("tiers", short_help="Show or set the tiers that it may use.")
@click.argument("reference", metavar="PROJECT")
@click.argument("tiers", nargs=-1, metavar="[TIER]...")
@click.option("--open", "every", is_flag=True, help="Allow those that are open to everybody.")
@_common
def project_tiers(reference: str, tiers: tuple[str, ...], path: Path | None, *, every: bool, as_json: bool) -> None:
    """Set the tiers that a project may use, granted ones among them; show them if none are named."""
    if every and tiers:
        raise click.UsageError("name tiers or give --open, not both")

    async def change(tenancy: Tenancy) -> Project:
        found = await tenancy.find_project(reference)
        if not every and not tiers:
            return found
        changed = await tenancy.set_tiers(found.id, None if every else tiers)
        tell_unchecked(tenancy, tiers=tiers)
        return changed

    _projects([on_tenancy(path, change)], as_json, one=True)


@click.group()
def key() -> None:
    """Create, list, revoke and rotate API keys. KEY is a key's id (key_…) or its public part (sk-fb-…)."""


@key.command("create", short_help="Create a key; its text is printed once.")
@click.argument("reference", metavar="[PROJECT]", required=False)
@click.option("--admin", is_flag=True, help="A key for the admin API instead of a project's.")
@click.option("--name", help="What it is for.")
@click.option("--scopes", help="Comma-separated, of inference, usage.read, debug. Default: inference.")
@click.option("--expires", type=Until(), help="When it expires: in 90d, 12h, …, or at 2027-01-31T12:00.")
@_common
def key_create(
    reference: str | None,
    name: str | None,
    scopes: str | None,
    expires: float | None,
    path: Path | None,
    *,
    admin: bool,
    as_json: bool,
) -> None:
    """Create a key of PROJECT (an id, or TENANT/PROJECT by name). Its text is printed this once."""
    if admin == (reference is not None):
        raise click.UsageError("name a project, or give --admin")
    wanted = None if scopes is None else [scope.strip() for scope in scopes.split(",") if scope.strip()]

    async def create(tenancy: Tenancy) -> IssuedKey:
        if reference is None:
            return await tenancy.create_admin_key(name=name, scopes=wanted, expires_at=expires)
        found = await tenancy.find_project(reference)
        return await tenancy.create_key(found.id, name=name, scopes=wanted, expires_at=expires)

    _issued(on_tenancy(path, create), as_json)


@key.command("list", short_help="List keys of a project, a tenant, or admins.")
@click.argument("reference", metavar="[PROJECT|TENANT]", required=False)
@click.option("--admin", is_flag=True, help="The keys of the admin API.")
@_LIMIT
@_AFTER
@_common
def key_list(
    reference: str | None, limit: int, after: str | None, path: Path | None, *, admin: bool, as_json: bool
) -> None:
    """List the keys of a project, of all projects of a tenant, or of the admin API."""
    if admin == (reference is not None):
        raise click.UsageError("name a project or a tenant, or give --admin")
    page = Page(limit, after)

    async def find(tenancy: Tenancy) -> list[Key]:
        if reference is None:
            return await tenancy.admin_keys(page)
        if reference.startswith("proj_") or "/" in reference:
            return await tenancy.keys((await tenancy.find_project(reference)).id, page)
        return await tenancy.tenant_keys((await tenancy.find_tenant(reference)).id, page)

    _keys(on_tenancy(path, find), as_json)


@key.command("revoke", short_help="Refuse a key from now on.")
@click.argument("reference", metavar="KEY")
@_common
def key_revoke(reference: str, path: Path | None, *, as_json: bool) -> None:
    """Refuse a key from now on, within a second on every front door."""

    async def revoke(tenancy: Tenancy) -> Key:
        return await tenancy.revoke_key((await tenancy.find_key(reference)).id)

    _keys([on_tenancy(path, revoke)], as_json, one=True)


@key.command("rotate", short_help="Replace a key by a new one.")
@click.argument("reference", metavar="KEY")
@click.option("--grace", type=Duration(), default="0s", show_default=True, help="How long the old key still works.")
@click.option("--expires", type=Until(), help="When the new key expires. Default: the old one's lifetime from now.")
@_common
def key_rotate(reference: str, grace: float, expires: float | None, path: Path | None, *, as_json: bool) -> None:
    """Replace a key by a new one with the same name and scopes. The new one's text is printed this once."""

    async def rotate(tenancy: Tenancy) -> IssuedKey:
        return await tenancy.rotate_key((await tenancy.find_key(reference)).id, grace=grace, expires_at=expires)

    _issued(on_tenancy(path, rotate), as_json)


def _tenants(found: list[Tenant], as_json: bool, *, one: bool = False) -> None:
    if as_json:
        return show.as_json(found[0] if one else found)
    return show.table(["ID", "NAME", "STATUS", "WEIGHT", "CREATED"],
                      [[each.id, each.name, each.status, f"{each.weight:g}", show.moment(each.created_at)]
                       for each in found])  # fmt: skip


def _projects(found: list[Project], as_json: bool, *, one: bool = False) -> None:
    if as_json:
        return show.as_json(found[0] if one else found)
    return show.table(["ID", "NAME", "MODELS", "TIERS", "TENANT"],
                      [[each.id, each.name, "all" if each.models is None else each.models or "none",
                        "open" if each.tiers is None else each.tiers or "default", each.tenant_id]
                       for each in found])  # fmt: skip


def _keys(found: list[Key], as_json: bool, *, one: bool = False) -> None:
    if as_json:
        return show.as_json(found[0] if one else found)
    rows = [[each.id, each.name, each.prefix + "-…", each.status, each.scopes, show.moment(each.created_at),
             show.moment(each.expires_at) or "never", each.project_id] for each in found]  # fmt: skip
    return show.table(["ID", "NAME", "KEY", "STATUS", "SCOPES", "CREATED", "EXPIRES", "PROJECT"], rows)


def _issued(issued: IssuedKey, as_json: bool) -> None:
    """The key alone on stdout, so that `KEY=$(forebay key create …)` works; the rest is for whoever watches."""
    if as_json:
        return show.as_json(issued)
    made = issued.key
    until = f", until {show.moment(made.expires_at)}" if made.expires_at else ""
    click.echo(f"{made.id}: {', '.join(made.scopes)}{until}. Its text is shown only now:", err=True)
    click.echo(issued.secret)
    sys.stdout.flush()
    return None
