"""`forebay stripe`."""

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from forebay.metering.stripe import Posting, Reconciliation, State, reconcile
from forebay.platform.cli import show
from forebay.platform.cli.stripe_common import common, on_stripe
from forebay.platform.cli.stripe_map import stripe_map
from forebay.platform.cli.stripe_shown import MOST_SHOWN, cell, plain, posting, show_differences, show_held
from forebay.platform.cli.times import Moment
from forebay.platform.stripe import Billing, now


@click.group()
def stripe() -> None:
    """Tell Stripe what was used: which customers and meters, what was told, and whether it is right."""


@stripe.command("sync")
@common
def stripe_sync(path: Path | None, *, as_json: bool) -> None:
    """Tell Stripe now what it does not know yet, as the front door does from time to time."""
    done = on_stripe(path, lambda its: its.syncer.run())
    if done.busy:
        raise click.ClickException("a front door is telling Stripe just now; try again in a moment")
    if as_json:
        show.as_json(plain(done))
    else:
        told = done.accepted + done.duplicates + done.reconciled
        click.echo(
            f"told: {told} ({done.duplicates} were there already, {done.reconciled} by Stripe's sums), "
            f"cancelled: {done.cancelled}, credited: {done.credited}, refused: {done.refused}, "
            f"error reports read: {done.reports}"
        )
        show_held(done)
    if done.error:
        raise click.ClickException(f"Stripe: {done.error}; what was not told is told later")


@stripe.command("status")
@common
def stripe_status(path: Path | None, *, as_json: bool) -> None:
    """Show what Stripe does not know, and why: nothing is sent."""

    async def look(its: Billing) -> dict[str, Any]:
        cells = await its.journal.different(its.settings.since)
        return {
            "outstanding": [cell(one.key, one.total - one.told, customer=one.customer_id) for one in cells],
            "unsettled": [posting(one) for one in await its.journal.unsettled()],
            "rejected": [posting(one) for one in await its.journal.rejected()],
            "unmapped": [msgspec.to_builtins(one) for one in await its.journal.unmapped(its.settings.since)],
            "reports": [msgspec.to_builtins(one) for one in await its.journal.reports()],
        }

    found = on_stripe(path, look)
    if as_json:
        return show.as_json(found)
    if not any(found.values()):
        click.echo("Stripe was told everything.")
    for name, rows in found.items():
        if rows:
            click.echo(f"{name}: {len(rows)}")
            keys = [key for key in rows[0] if key != "details"]
            show.table([key.upper() for key in keys], [[row[key] for key in keys] for row in rows[:MOST_SHOWN]])
    return None


@stripe.command("reconcile")
@common
@click.option("--since", type=Moment(), default="7d", show_default=True, help="An age (24h, 7d) or a time.")
@click.option("--until", type=Moment(), default=None, help="A time, exclusive. Default: the last hour that was told.")
def stripe_reconcile(path: Path | None, *, since: float, until: float | None, as_json: bool) -> None:
    """Compare the ledger, what Stripe was told, and what Stripe counted, hour by hour. Status 1 where they differ."""

    async def compare(its: Billing) -> Reconciliation:
        start = max(datetime.fromtimestamp(since, UTC), its.settings.since)
        wait = its.settings.lag + its.settings.every
        end = time.time() - wait - 3600 if until is None else until
        return await reconcile(its.journal, its.caller, start, max(start, datetime.fromtimestamp(end, UTC)))

    found = on_stripe(path, compare)
    if as_json:
        show.as_json(msgspec.to_builtins(found) | {"equal": found.equal})
    else:
        click.echo(
            f"ledger: {found.ledger:,} tokens, told: {found.told:,}, counted by Stripe: {found.counted:,}, "
            f"credited: {found.credited:,}; {found.postings} postings in {found.hours} hours"
        )
        show_differences(found)
    if not found.equal:
        raise click.exceptions.Exit(1)


@stripe.command("resolve")
@click.argument("identifier")
@click.option("--as", "how", type=click.Choice(["delivered", "void"]), required=True,
              help="delivered: Stripe has it. void: it has not; what it told is told again.")
@common
def stripe_resolve(identifier: str, path: Path | None, *, how: str, as_json: bool) -> None:
    """Say what became of a posting that Stripe refused, or that a reconciliation names."""

    async def resolve(its: Billing) -> Posting:
        found = await its.journal.named([identifier])
        if not found:
            raise click.ClickException(f"there is no posting {identifier!r}; see forebay stripe status")
        if found[0].state is State.VOID:
            raise click.ClickException("it was given up already; what it told is told under a newer identifier")
        await its.journal.step([identifier], State.DELIVERED if how == "delivered" else State.VOID, now(), "resolved")
        return (await its.journal.named([identifier]))[0]

    shown = posting(on_stripe(path, resolve))
    if as_json:
        return show.as_json(shown)
    return show.table([key.upper() for key in shown], [list(shown.values())])


stripe.add_command(stripe_map)
