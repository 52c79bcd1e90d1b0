"""`forebay doctor`: what is missing on this machine, and what mends it."""

import asyncio
from pathlib import Path

import click
import msgspec

from forebay.platform.config import load
from forebay.platform.config.model import Config
from forebay.platform.local import doctor as examination
from forebay.platform.local.checkup import Finding
from forebay.platform.local.paths import paths

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("doctor")
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="Default: ./forebay.yaml.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def doctor(file: Path | None, *, as_json: bool) -> None:
    """Say what is missing on this machine, and what mends it. Exits 1 if something fails."""
    config, found = _configuration(file)
    found += asyncio.run(examination.examine(config, paths(config.stores.state_dir)))
    failed = any(finding.level == "fail" for finding in found)
    if as_json:
        click.echo(msgspec.json.encode({"ok": not failed, "findings": found}))
    else:
        for finding in found:
            _show(finding)
    raise SystemExit(1 if failed else 0)


def _configuration(file: Path | None) -> tuple[Config, list[Finding]]:
    """The configuration in effect; the defaults where it has faults, so that the rest is looked at all the same."""
    config, faults = load.effective(file)
    path = load.find(file)
    well = f"{path} is valid" if path else "no forebay.yaml here: the defaults apply"
    findings = [Finding("config", "warn" if fault.warning else "fail", str(fault)) for fault in faults]
    return config or Config(), findings or [Finding("config", "ok", well)]


def _show(finding: Finding) -> None:
    level = click.style(f"{finding.level:<4}", fg=_COLOURS[finding.level])
    click.echo(f"{level}  {finding.what:<10} {finding.detail}")
    if finding.remedy:
        click.echo(f"{'':<17} → {finding.remedy}")
