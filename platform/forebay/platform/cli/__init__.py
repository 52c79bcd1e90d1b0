"""`forebay`, the command line."""

import logging

import click

from forebay.platform.cli.config import config
from forebay.platform.cli.demo import demo
from forebay.platform.cli.doctor import doctor
from forebay.platform.cli.serve import serve
from forebay.platform.cli.tenancy import key, project, tenant
from forebay.platform.cli.up import up
from forebay.platform.cli.usage import usage


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="forebay")
@click.option("-v", "--verbose", is_flag=True, help="Say more of what happens.")
def main(*, verbose: bool) -> None:
    """Forebay: a multi-tenant inference service over vLLM and OpenAI-compatible servers.

    \b
    On a laptop:       forebay up
    In production:     forebay serve --config forebay.yaml
    """
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )
    for noisy in ("alembic", "httpx", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


for command in (up, serve, demo, doctor, config, tenant, project, key, usage):
    main.add_command(command)
