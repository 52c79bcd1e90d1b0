"""`forebay`, the command line. A command's module is imported when it is called, so that each starts quickly."""

import importlib
import logging

import click

from forebay.platform import logs

_COMMANDS = {
    "up": "Run the platform on this machine: stores, two vLLM replicas, front door.",
    "serve": "Serve the models that the configuration names.",
    "announce": "Run an engine here, and let it join a pool while it answers.",
    "demo": "Let two tenants hold a streamed conversation each, and show the bill.",
    "doctor": "Say what is missing on this machine, and what mends it.",
    "config": "Check, show and describe the configuration file, forebay.yaml.",
    "tenant": "Create, list, suspend, export and delete tenants.",
    "project": "Create and list projects, and choose their models.",
    "key": "Create, list, revoke and rotate API keys.",
    "limits": "Limit what tenants, projects and keys may use.",
    "price": "Give tenants prices of their own, and see what a draft would change.",
    "plan": "Give tenants a monthly minimum and included tokens.",
    "statement": "Show what tenants owe for a month, and the records behind each line.",
    "explain": "Show where a request would be placed, and why.",
    "simulate": "Compare ways of routing on a recorded workload, on virtual time.",
    "ledger": "Close periods, correct records, check the rollup.",
    "stripe": "Tell Stripe what was used, and see whether it knows it right.",
    "usage": "Show what was used: requests, tokens by class, and their cost.",
}
_MODULES = {"tenant": "tenancy", "project": "tenancy", "key": "tenancy", "price": "pricing", "plan": "pricing"}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"forebay.platform.cli.{_MODULES.get(cmd_name, cmd_name)}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="forebay")
@click.option("-v", "--verbose", is_flag=True, help="Say more of what happens.")
@click.pass_context
def main(context: click.Context, *, verbose: bool) -> None:
    """Forebay: a multi-tenant inference service over vLLM and OpenAI-compatible servers.

    \b
    On a laptop:     forebay up
    In production:   forebay serve --config forebay.yaml
    """
    runs = context.invoked_subcommand in ("serve", "up", "demo", "announce")
    level = logging.DEBUG if verbose else logging.INFO if runs else logging.WARNING
    logs.set_up(level)
