"""`forebay explain`: where a request would be placed now, and what each endpoint would take to answer it."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import httpx2 as httpx
import msgspec
from rich.table import Table

from forebay.platform.cli import show
from forebay.platform.config.load import load_config
from forebay.platform.local.paths import paths
from forebay.platform.local.stack import read_running
from forebay.platform.local.tenants import recall

_COLUMNS = ("endpoint", "cached", "slower tier", "in flight", "queued s", "prefill s", "predicted s", "")
LEAST_S = 0.0005  # that is shown as more than nothing
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # a header's name, as HTTP has it
_ROUTES = {"chat": "chat/completions", "completions": "completions"}


@click.command("explain")
@click.argument("request", type=click.File("rb"))
@click.option("--api", type=click.Choice(list(_ROUTES)), default=None, help="Default: by the members of the request.")
@click.option("--base-url", help="A front door, without /v1. Default: the one that `forebay up` runs here.")
@click.option("--key", envvar="FOREBAY_KEY", show_envvar=True, help="A key with the scope debug. Default: the demo's.")
@click.option("-H", "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="Of the request; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as it came.")
@click.option("--config", "path", type=click.Path(path_type=Path, dir_okay=False), help="Default: ./forebay.yaml.")
def explain(
    request: Any,
    *,
    api: str | None,
    base_url: str | None,
    key: str | None,
    headers: tuple[str, ...],
    path: Path | None,
    as_json: bool,
) -> None:
    """Show where REQUEST, a file with the JSON body of a request (- for standard input), would be placed.

    No engine answers it, and nothing is booked.
    """
    body = request.read()
    given = _headers(headers)
    if base_url is None or key is None:
        base_url, key = _here(path, base_url, key)
    route = _ROUTES[api or ("completions" if b'"prompt"' in body and b'"messages"' not in body else "chat")]
    answer = _ask(f"{base_url.rstrip('/')}/v1/explain/{route}", key, body, given)
    if as_json:
        click.echo(answer)
    else:
        _show(msgspec.json.decode(answer))


def _group(group: dict[str, str]) -> str:
    """Whatever tells it from the usual."""
    return " ".join(value for value in group.values() if value not in ("", "unified"))


def _here(path: Path | None, base_url: str | None, key: str | None) -> tuple[str, str]:
    where = paths(load_config(path).stores.state_dir)
    running = read_running(where)
    found = next(iter(recall(where.demo).values()), None)
    if (base_url is None and running is None) or (key is None and found is None):
        raise click.UsageError("no platform of `forebay up` runs here: give --base-url and --key")
    return base_url or running.base_url, key or found.key  # type: ignore[union-attr]


def _headers(given: Iterable[str]) -> dict[str, str]:
    found = {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon or not header.isascii() or not header.isprintable() or not _TOKEN.fullmatch(name):
            raise click.BadParameter(f"{header!r} is no header: write 'name: value'", param_hint="--header")
        found[name.lower()] = value.strip()
    return found


def _ask(url: str, key: str, body: bytes, given: dict[str, str]) -> bytes:
    headers = given | {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        answer = httpx.post(url, content=body, headers=headers, timeout=60.0)
    except httpx.HTTPError as error:
        raise click.ClickException(f"{url} does not answer: {error}") from None
    if answer.status_code != 200:
        raise click.ClickException(f"{url} answered {answer.status_code}: {_reason(answer.content)}")
    return bytes(answer.content)


def _reason(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace")


def _show(answer: dict[str, Any]) -> None:
    prompt = answer["prompt"]
    kind = "exactly" if prompt["exact"] else "about"
    click.echo(f"{answer['model']}: {kind} {prompt['tokens']} prompt tokens (counted by {prompt['rung']})")
    if session := answer.get("session"):
        click.echo(f"session: named by {session['source']}")
    weight = f", its tenant's weight {answer['weight']:g}" if answer["weight"] != 1 else ""
    before = f"{answer['before']} wait before it" if answer["before"] else "nobody waits before it"
    click.echo(f"tier {answer['tier']}{weight}: {before}; first token in {answer['predicted_s']:.2f} s")
    if refused := answer.get("refused"):
        click.echo(f"would be refused: {refused['reason']}; try again in {refused['retry_after_s']:.0f} s")
    groups = [_group(one["group"]) for one in answer["candidates"]]
    others = [one["displaced_s"] + one["delayed_s"] for one in answer["candidates"]]
    costly = any(other >= LEAST_S for other in others)
    further = (["costs others s"] if costly else []) + (["group"] if any(groups) else [])
    table = Table(*_COLUMNS, *further, box=None)
    for one, group, other in zip(answer["candidates"], groups, others, strict=True):
        mark = "chosen" if one["chosen"] else "" if one["available"] else one["reason"]
        table.add_row(
            one["endpoint"], str(one["cached"]), str(one["cached_slow"]), str(one["in_flight"]),
            f"{one['queued_s']:.3f}", f"{one['prefill_s']:.3f}", f"{one['predicted_s']:.3f}", mark,
            *([f"{other:.3f}"] if costly else []), *([group] if any(groups) else []),
        )  # fmt: skip
    show.wide().print(table)
