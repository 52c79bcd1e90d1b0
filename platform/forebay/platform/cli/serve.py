"""`forebay serve`: the front door, in this process or in several."""

from contextlib import ExitStack
from pathlib import Path

import click
import msgspec
import uvloop

from forebay.platform import server
from forebay.platform.config.load import load_config
from forebay.platform.config.model import Config
from forebay.platform.local.probe import any_port
from forebay.platform.service import FAULTS
from forebay.platform.stores import embedded
from forebay.platform.workers import parent
from forebay.platform.workers.crew import WorkerError
from forebay.router import SocketInUseError


@click.command()
@click.option(
    "--config", "path", type=click.Path(path_type=Path, dir_okay=False), help="Default: forebay.yaml, if it is there."
)
def serve(path: Path | None) -> None:
    """Serve the models that the configuration names.

    Postgres and Valkey that are `embedded` are joined when they run, and else started and stopped with this process.
    """
    try:
        config = load_config(path)
        if not config.models:
            raise click.ClickException(
                "no models are configured: write a forebay.yaml (docs/configuration.md), or run `forebay up`"
            )
        if config.server.port == 0:
            port = any_port(config.server.host)
            config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=port))
        with ExitStack() as stack:
            postgres, valkey = _stores(config, stack)
            run = parent.serve if config.server.workers > 1 else server.serve
            uvloop.run(run(config, postgres_url=postgres, valkey_url=valkey, on_ready=lambda: _say(config)))
    except (SocketInUseError, WorkerError, *FAULTS) as error:
        raise click.ClickException(str(error)) from error


def _stores(config: Config, stack: ExitStack) -> tuple[str, str]:
    state = Path(config.stores.state_dir)
    postgres, valkey = config.stores.postgres, config.stores.valkey
    if postgres == "embedded":
        postgres = stack.enter_context(embedded.start_postgres(state)).url
    if valkey == "embedded":
        valkey = stack.enter_context(embedded.start_valkey(state)).url
    return postgres, valkey


def _say(config: Config) -> None:
    host = f"[{config.server.host}]" if ":" in config.server.host else config.server.host
    count = len(config.models)
    click.echo(f"Forebay serves {count} model{'' if count == 1 else 's'} at http://{host}:{config.server.port}/v1")
