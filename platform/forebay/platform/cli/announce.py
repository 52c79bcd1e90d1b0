"""`forebay announce`: an engine kept running here, and known to front doors of this machine while it answers."""

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import msgspec

from forebay.platform.announced import SUFFIX, directory_of, understood
from forebay.platform.config.engines import Announced
from forebay.platform.config.faults import ConfigError
from forebay.platform.config.load import load_config
from forebay.platform.config.model import Config
from forebay.platform.local.commands import LocalError
from forebay.platform.local.paths import paths
from forebay.platform.local.process import Announcement, Part
from forebay.platform.local.progress import Progress
from forebay.platform.local.stack import read_running
from forebay.platform.local.supervisor import Supervisor

READY_WITHIN_S = 1800.0  # large weights take long


@click.command("announce", context_settings={"ignore_unknown_options": True})
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="Default: ./forebay.yaml.")
@click.option("--pool", help="The pool that it joins. Default: the only one that has discovery.local.")
@click.option("--url", required=True, help="Where it will answer, such as http://127.0.0.1:9201.")
@click.option("--name", help="Of the endpoint. Default: engine- and its port.")
@click.option("--engine", help="vllm (the default) or openai, as in `endpoints`.")
@click.option("--served-model", "servedModel", help="As in `endpoints`.")
@click.option("--priority-scheduling", "priorityScheduling", is_flag=True, default=None, help="As in `endpoints`.")
@click.option("--kv-events", "kvEvents", help="As in `endpoints`.")
@click.option("--kv-replay", "kvReplay", help="As in `endpoints`.")
@click.option("--data-parallel-ranks", "dataParallelRanks", type=int, help="As in `endpoints`.")
@click.option("--role", help="As in `endpoints`.")
@click.option("--revision", help="As in `endpoints`.")
@click.option("--accelerator", help="As in `endpoints`.")
@click.option("--stop-timeout", default=60.0, show_default=True, help="Seconds that it gets to end what it answers.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def announce(
    file: Path | None, pool: str | None, stop_timeout: float, command: tuple[str, ...], **options: Any
) -> None:
    """Run an engine, COMMAND with its arguments (after --), and let it join a pool while it answers.

    It is started again when it ends. Ctrl-C takes it out of the pool first, and ends it then.
    """
    try:
        config = _config(file)
        engine = _engine({key: value for key, value in options.items() if value is not None})
        found = Announcement(_directory(config, pool) / f"{engine.called}{SUFFIX}", engine)
        part = Part(
            name=engine.called,
            argv=command,
            ready_url=f"{engine.url}/health" if engine.engine == "vllm" else None,
            ready_timeout=READY_WITHIN_S,
            stop_timeout=stop_timeout,
            announced=found,
        )
        asyncio.run(_run(part, paths(config.stores.state_dir).logs))
    except (ConfigError, LocalError) as error:
        raise click.ClickException(str(error)) from None


def _config(file: Path | None) -> Config:
    """That of `forebay up`, where it runs, since it may have pools that no file has."""
    config = load_config(file)
    running = read_running(paths(config.stores.state_dir))
    return config if running is None else load_config(Path(running.config))


def _engine(options: dict[str, Any]) -> Announced:
    try:
        port = urlsplit(options["url"]).port
        engine = understood(msgspec.json.encode({"pid": 1, **options}), f"engine-{port}")
    except ValueError as error:
        raise click.UsageError(f"the engine {error}") from None
    if "/" in engine.called:
        raise click.UsageError("the engine's name is that of a file: it may not have a /")
    return engine


def _directory(config: Config, name: str | None) -> Path:
    pools = {pool.name: (pool, pool.discovery.local) for pool in config.pools if pool.discovery}
    joined = {known: (pool, local) for known, (pool, local) in pools.items() if local and name in (None, known)}
    if len(joined) != 1:
        known = ", ".join(known for known, (_, local) in pools.items() if local)
        raise click.UsageError(f"pools with discovery.local: {known or 'none'}; name one of them with --pool")
    ((pool, local),) = joined.values()
    return directory_of(config, pool, local)


async def _run(part: Part, logs: Path) -> None:
    progress = Progress()
    supervisor = Supervisor(logs, progress)
    supervisor.take_signals()
    starting = asyncio.create_task(supervisor.start(part))
    stop = asyncio.create_task(supervisor.stop_requested())
    try:
        await asyncio.wait({starting, stop}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            assert part.announced is not None
            progress.say(f"{part.name} is announced in {part.announced.path}")
            await supervisor.run()
    finally:
        starting.cancel()
        stop.cancel()
        await asyncio.gather(starting, stop, return_exceptions=True)
        await supervisor.stop()
