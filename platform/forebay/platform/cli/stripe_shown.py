"""How `forebay stripe` shows what was told, and what was not."""

from typing import Any

import click
import msgspec

from forebay.metering.stripe import Held, Pass, Posting, Reconciliation
from forebay.platform.cli import show

MOST_SHOWN = 50
_REASONS = {
    "meter_inactive": "Stripe has no active meter of this event name",
    "rejected": "Stripe refused it: mend the cause, then forebay stripe resolve",
    "differs": "Stripe's sum is another than what it was told: forebay stripe reconcile",
    "too_old": "Stripe takes events of the last 35 days",
    "below_zero": "more was taken back than Stripe was ever told",
}


def plain(done: Pass) -> dict[str, Any]:
    held = [cell(one.cell.key, one.hold.tokens, reason=one.hold.reason, code=one.hold.code) for one in done.held]
    return {**msgspec.to_builtins(done), "held": held}


def show_held(done: Pass) -> None:
    reasons: dict[str, list[Held]] = {}
    for one in done.held:
        reasons.setdefault(one.hold.reason, []).append(one)
    for reason, some in reasons.items():
        tokens = sum(one.hold.tokens for one in some)
        click.echo(f"held: {tokens:,} tokens, {len(some)} hours of a meter: {reason} ({_REASONS[reason]})")
        rows = [list(cell(one.cell.key, one.hold.tokens, code=one.hold.code).values()) for one in some[:MOST_SHOWN]]
        show.table(["TENANT", "METER", "HOUR", "TOKENS", "CODE"], rows)
    if done.unmapped:
        click.echo("held: mapped to no meter (forebay stripe map model), or to no customer (forebay stripe map tenant)")
        show.table(
            ["MISSING", "TENANT", "MODEL", "TIER", "CLASS", "TOKENS"],
            [
                [one.missing, one.tenant_id, one.model, one.tier, one.token_class, one.tokens]
                for one in done.unmapped[:MOST_SHOWN]
            ],
        )


def show_differences(found: Reconciliation) -> None:
    for one in found.untold[:MOST_SHOWN]:
        at = f"{one.key.tenant_id} {one.key.event_name} {one.key.hour:%Y-%m-%dT%H:%MZ}"
        click.echo(f"not told: {at}: ledger {one.ledger:,}, told {one.told:,}")
    for each in found.differences[:MOST_SHOWN]:
        at = f"{each.customer_id} {each.event_name} {each.at:%Y-%m-%dT%H:%MZ}"
        named = each.suspects or each.postings
        why = f"; {'suspect' if each.suspects else 'of'} {', '.join(named) or 'nothing'}"
        later = "; told within the hour, Stripe may still count" if each.settling else ""
        click.echo(f"differs: {at}: told {each.told:,}, counted {each.counted:,}{why}{later}")
    if found.equal:
        click.echo("equal")


def cell(key: Any, tokens: int, **more: Any) -> dict[str, Any]:
    return {"tenant": key.tenant_id, "meter": key.event_name, "hour": f"{key.hour:%Y-%m-%dT%H:%MZ}",
            "tokens": tokens, **more}  # fmt: skip


def posting(one: Posting) -> dict[str, Any]:
    return {"identifier": one.identifier, **cell(one.key, one.value), "kind": one.kind.value,
            "state": one.state.value, "code": one.code, "reference": one.reference}  # fmt: skip


