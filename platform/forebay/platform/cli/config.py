"""`forebay config …`: check, schema, show, rotate-secret."""

from pathlib import Path

import click

from forebay.platform.config import load, schema, secrets
from forebay.platform.config.model import Config
from forebay.platform.config.show import as_yaml
from forebay.platform.local.sought import place

_FILE = click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))


@click.group("config")
def config() -> None:
    """Check, show and describe the configuration file, forebay.yaml."""


@config.command("check", short_help="Say everything that is wrong with a file.")
@_FILE
def check(file: Path | None) -> None:
    """Say everything that is wrong with FILE (default: ./forebay.yaml) and how to mend it. Exits 1 on faults."""
    effective, faults = load.effective(file)
    for fault in faults:
        click.echo(str(fault))
    if effective is None:
        count = sum(not fault.warning for fault in faults)
        click.echo(f"{count} fault{'s' if count > 1 else ''}", err=True)
        raise SystemExit(1)
    click.echo(_summary(effective, load.find(file)))
    for pool in effective.pools:
        if pool.discovery:
            click.echo(f"pool {pool.name} finds engines {place(effective, pool)}")


@config.command("schema", short_help="Print the JSON Schema of the file.")
def print_schema() -> None:
    """Print the JSON Schema of the configuration file, for editors and other tools."""
    click.echo(schema.text(), nl=False)


@config.command("show", short_help="Print what is in effect, with every default.")
@_FILE
def show(file: Path | None) -> None:
    """Print the configuration in effect: FILE (default: ./forebay.yaml) and every default, without passwords."""
    click.echo(as_yaml(_sound(file)), nl=False)


@config.command("rotate-secret")
@click.argument("kind", type=click.Choice(["key-hash", "cache-salt"]))
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="Default: ./forebay.yaml.")
def rotate_secret(kind: secrets.Kind, file: Path | None) -> None:
    """Put a new secret before the old ones.

    key-hash: known API keys stay valid. cache-salt: every project's prefix cache starts cold.
    """
    effective = _sound(file)
    path = secrets.secret_path(effective, kind)
    try:
        secrets.secrets_of(effective, kind)
        identity = secrets.rotate_secrets(path)
    except secrets.SecretsError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{path}: {identity} is the newest secret. Front doors use it from their next start.")


def _sound(file: Path | None) -> Config:
    effective, faults = load.effective(file)
    if effective is None:
        raise click.ClickException("\n".join(str(fault) for fault in faults if not fault.warning))
    return effective


def _summary(effective: Config, found: Path | None) -> str:
    where = str(found) if found else f"no {load.DEFAULT_FILE} here, so the defaults apply"
    endpoints = sum(len(pool.endpoints) for pool in effective.pools)
    counts = [(len(effective.models), "model"), (len(effective.pools), "pool"), (endpoints, "endpoint")]
    counts += [(len(effective.tiers), "tier")] if effective.tiers else []
    stores = "embedded" if effective.stores.postgres == effective.stores.valkey == "embedded" else "by URL"
    counted = ", ".join(f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    return f"ok: {where}: {counted}, stores {stores}"
