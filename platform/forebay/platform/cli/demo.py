"""`forebay demo`: two tenants talk to the platform at the same time, and see their bills."""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import openai

from forebay.platform.config.faults import ConfigError
from forebay.platform.config.load import load_config
from forebay.platform.config.model import Config
from forebay.platform.local import conversation, probe, settings, tenants, vllm
from forebay.platform.local.commands import LocalError
from forebay.platform.local.conversation import Bill, CutError, Turn
from forebay.platform.local.paths import paths
from forebay.platform.local.progress import Progress
from forebay.platform.local.stack import Running, Stack, StoppedError, await_running
from forebay.platform.local.tenants import Credentials
from forebay.platform.stores import embedded
from forebay.platform.tenancy.opened import opened

T = TypeVar("T")
TENANTS = ("demo-a", "demo-b")
USUAL_BLOCK = 128  # tokens; the largest block of the engines' cache that is common
BILL_WAIT = 20.0  # seconds until all turns must have reached the ledger


@click.command("demo")
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="Default: ./forebay.yaml.")
@click.option("--base-url", help="A platform elsewhere, without /v1, instead of the one on this machine.")
@click.option(
    "--key", "keys", multiple=True, envvar="FOREBAY_DEMO_KEYS", show_envvar=True,
    help="With --base-url, twice: a key of each tenant, with the scopes inference, usage.read and debug.",
)  # fmt: skip
@click.option("--model", help="Default: the first model that the tenant sees.")
def demo(file: Path | None, base_url: str | None, keys: tuple[str, ...], model: str | None) -> None:
    """Two tenants hold a streamed conversation each through the OpenAI SDK; then their usage and cost.

    Uses the platform that `forebay up` runs here, waits for one that is starting, or starts one and stops it again.
    """
    logging.getLogger("forebay.platform.stores").setLevel(logging.WARNING)  # the progress says it already
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # the SDK's client says a line per request
    if base_url and len(keys) != len(TENANTS):
        raise click.UsageError("--base-url needs two --key, one of each tenant")
    try:
        config = load_config(file)
        asyncio.run(_elsewhere(base_url.rstrip("/"), keys, model) if base_url else _here(config, model))
    except (ConfigError, LocalError) as error:
        raise click.ClickException(str(error)) from None
    except CutError as error:
        raise click.ClickException(f"an answer was cut and could not be repeated: {error}") from None
    except openai.APIError as error:
        raise click.ClickException(f"a request failed: {type(error).__name__}: {error.message}") from None
    except (StoppedError, KeyboardInterrupt):
        raise click.ClickException("stopped before the demo was over") from None


async def _here(config: Config, model: str | None) -> None:
    progress = Progress()
    running = await await_running(paths(config.stores.state_dir), progress)
    if running is not None:
        await _on_running(running, model)
        return
    platform = Stack(config, progress)
    async with platform.started():
        await platform.during(_with_tenants(platform.config, platform.postgres_url, platform.base_url, model))


async def _on_running(running: Running, model: str | None) -> None:
    config = load_config(Path(running.config))
    configured = config.stores.postgres
    url = embedded.postgres_url(Path(config.stores.state_dir)) if configured == "embedded" else configured
    if url is None:
        raise LocalError("The platform's Postgres is not running; its log is in the state directory.")
    await _with_tenants(config, url, running.base_url, model)


async def _with_tenants(config: Config, postgres_url: str, base_url: str, model: str | None) -> None:
    where = paths(config.stores.state_dir)
    async with opened(config, postgres_url) as service:
        credentials = [await tenants.ensure(service, name, where.demo) for name in TENANTS]
    await _converse(base_url, credentials, model or settings.first_model(config), block=vllm.BLOCK)


async def _elsewhere(base_url: str, keys: tuple[str, ...], model: str | None) -> None:
    credentials = [Credentials(name, "", "", "", key) for name, key in zip(TENANTS, keys, strict=True)]
    if model is None:
        async with conversation.client(base_url, keys[0]) as sdk:
            listed = await sdk.models.list()
        model = listed.data[0].id
    await _converse(base_url, credentials, model, block=USUAL_BLOCK)


async def _converse(base_url: str, credentials: list[Credentials], model: str, *, block: int) -> None:
    click.echo(f"\nTwo tenants talk to {model} at {base_url}/v1, {len(conversation.QUESTIONS['demo-a'])} turns each\n")
    started = time.time()
    talks = await _both(credentials, lambda one: _talk(base_url, one, model))
    click.echo("")
    bills = await _both(credentials, lambda one: _bill(base_url, one, started, talks[one.tenant]))
    for name, found in bills.items():
        click.echo(
            f"{name}  {found.requests} requests, {found.input} input tokens ({found.cached} of them cached), "
            f"{found.output} output tokens, cost {found.cost}"
        )
    click.echo(f"\n{await _found_context(base_url, talks, block)} The demo went well.")


async def _found_context(base_url: str, talks: dict[str, list[Turn]], block: int) -> str:
    """Whether every turn did, in words. Raises `LocalError` for one that was computed anew although no engine was
    away."""
    cold = [
        f"turn {number} of {tenant}: {turn.cached_tokens} of {turn.prompt_tokens} tokens cached at {turn.endpoint}, "
        f"after {earlier.prompt_tokens} at {earlier.endpoint}"
        for tenant, turns in talks.items()
        for number, (earlier, turn) in enumerate(itertools.pairwise(turns), 2)
        if not turn.landed_after(earlier, block)
    ]
    if not cold:
        return "Every turn after the first found its context."
    said = "These turns did not find their context:\n  " + "\n  ".join(cold)
    if not any(turn.cut for turns in talks.values() for turn in turns) and await _engines_are_up(base_url):
        raise LocalError(said)
    return f"{said}\nAn engine ended meanwhile, and its cache with it; all others did."


async def _engines_are_up(base_url: str) -> bool:
    """As `/health` has it; a front door that hides it counts as one whose engines are."""
    _, body = await probe.get(f"{base_url}/health")
    try:
        pools = msgspec.json.decode(body)["pools"]
        return all(one["status"] == "up" for pool in pools.values() for one in pool.values())
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return True


async def _talk(base_url: str, credentials: Credentials, model: str) -> list[Turn]:
    async with conversation.client(base_url, credentials.key) as sdk:
        return await conversation.converse(sdk, credentials.tenant, model, click.echo)


async def _bill(base_url: str, credentials: Credentials, since: float, turns: list[Turn]) -> Bill:
    """Records reach the ledger within a second or two of their stream's end. Raises `LocalError` if they do not."""
    answered = sum(turn.completion_tokens for turn in turns)  # an answer that was cut is a request without tokens
    deadline = time.monotonic() + BILL_WAIT
    async with conversation.client(base_url, credentials.key) as sdk:
        while True:
            found = await conversation.bill(sdk, since)
            if found.requests >= len(turns) and found.output >= answered:
                return found
            if time.monotonic() > deadline:
                billed = f"{found.requests} of {len(turns)} requests and {found.output} of {answered} output tokens"
                raise LocalError(f"{credentials.tenant}: {billed} are on the bill so far")
            await asyncio.sleep(0.5)


async def _both(credentials: list[Credentials], act: Callable[[Credentials], Coroutine[Any, Any, T]]) -> dict[str, T]:
    """Side by side, by tenant. The first failure ends the other, and is raised as itself."""
    tasks = {one.tenant: asyncio.create_task(act(one)) for one in credentials}
    try:
        results = await asyncio.gather(*tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
    return dict(zip(tasks, results, strict=True))
