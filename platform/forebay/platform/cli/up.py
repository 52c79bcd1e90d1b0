"""`forebay up`: the whole platform on this machine, in the foreground."""

import asyncio
import logging
import os
import sys
from pathlib import Path

import click
import msgspec

from forebay.platform.config.faults import ConfigError
from forebay.platform.config.load import STATE_DIR_ENV, load_config
from forebay.platform.config.model import Config
from forebay.platform.local import settings, stack
from forebay.platform.local.commands import LocalError
from forebay.platform.local.progress import Progress
from forebay.platform.local.stack import Stack, StoppedError

READY = """
Forebay is up. Ctrl-C stops everything.

  base URL   {url}/v1
  key        {key}
  model      {model}
  logs       {logs}

Talk to it with curl:

curl -N {url}/v1/chat/completions \\
  -H "Authorization: Bearer {key}" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": "{model}", "stream": true, "temperature": 0,
       "messages": [{{"role": "user", "content": "What is the capital of Italy?"}}]}}'

or with the OpenAI SDK:

{python} - <<'EOF'
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="{key}")
stream = client.chat.completions.create(
    model="{model}", stream=True, temperature=0,
    messages=[{{"role": "user", "content": "What is the capital of Italy?"}}])
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
EOF

In another terminal:

  {forebay} usage{config}   # what it cost
  {forebay} demo{config}    # two tenants in conversation, and their bills
"""


@click.command("up")
@click.option("--config", "file", type=click.Path(dir_okay=False, path_type=Path), help="Default: ./forebay.yaml.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port of the front door; 0 picks a free one.")
@click.option("--prepare", is_flag=True, help="Set up the engine environment and the weights, start nothing.")
def up(file: Path | None, port: int | None, prepare: bool) -> None:
    """Run the platform on this machine until Ctrl-C: stores, engines, front door, a demo tenant and its key.

    Without pools in the configuration it installs vLLM for CPUs on the first start and runs local replicas.
    """
    logging.getLogger("forebay.platform.stores").setLevel(logging.WARNING)  # the progress says it already
    try:
        config = load_config(file)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if port is not None:
        config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, port=port))
    try:
        asyncio.run(stack.prepare(config, Progress()) if prepare else _run(config))
    except LocalError as error:
        raise click.ClickException(str(error)) from None
    except (StoppedError, KeyboardInterrupt):
        click.echo("stopped")


async def _run(config: Config) -> None:
    progress = Progress()
    async with Stack(config, progress).started() as platform:
        assert platform.credentials is not None
        model = settings.first_model(platform.config)
        shown = {"url": platform.base_url, "key": platform.credentials.key, "model": model, "logs": platform.paths.logs}
        progress.say(READY.format(**shown, **_commands()))
        await platform.run()
        progress.say("")
    progress.say("stopped")


def _commands() -> dict[str, str]:
    """How this program is called here, and what leads other commands to a state directory that is not the default."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "forebay" else "forebay"
    moved = os.environ.get(STATE_DIR_ENV)
    return {"python": sys.executable, "forebay": program, "config": f" --config {moved}/forebay.yaml" if moved else ""}
