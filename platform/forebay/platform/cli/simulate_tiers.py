"""What `forebay simulate` reads and shows of tiers."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from forebay.platform.cli import show
from forebay.platform.config.load import ConfigError, load_config
from forebay.platform.simulating import Result
from forebay.platform.tiers import tiers_of
from forebay.router.simulation.tiered import unknown
from forebay.router.simulation.workload import Workload
from forebay.router.tiers import Tiers

FIGURES = ("requests", "in_time", "refused", "ttft_p50_s", "ttft_p95_s")


class Mix(click.ParamType[dict[str, float]]):
    """`interactive=0.2,batch=0.3`: shares of all, which may leave a rest."""

    name = "name=share,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, float]:
        found: dict[str, float] = {}
        for part in value.split(",") if value else ():
            name, _, share = (text.strip() for text in part.partition("="))
            try:
                found[name] = found.get(name, 0.0) + float(share)
            except ValueError:
                self.fail(f"{part.strip()!r} is no tier and its share, such as batch=0.2", param, ctx)
        if not all(0 <= share <= 1 for share in found.values()) or math.fsum(found.values()) > 1 + 1e-9:
            self.fail("shares are from 0 to 1, and 1 together at most", param, ctx)
        return found


def declared(path: Path | None, mix: Mapping[str, float], workload: Workload) -> Tiers | None:
    """The tiers of a configuration. Raises `ClickException` where that has none, or not those that are named."""
    if path is None:
        if mix:
            raise click.UsageError("--mix is of tiers: name the file that declares them with --tiers")
        return None
    try:
        config = load_config(path)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    if not config.tiers:
        raise click.BadParameter(f"{path} declares no tiers", param_hint="--tiers")
    tiers = tiers_of(config)
    names = [tier.name for tier in tiers]
    for where, odd in (("--mix", sorted(mix.keys() - set(names))), (workload.name, unknown(workload, tiers))):
        if odd:
            there_are = f"is not declared: there are {', '.join(names)}"
            raise click.ClickException(f"{where} names the tier {odd[0][:40]!r}, which {there_are}")
    return tiers


def means(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Of each tier, over the seeds."""
    return {
        name: {key: statistics.fmean(getattr(one.figures.tiers[name], key) for one in results) for key in FIGURES}
        for name in results[0].figures.tiers
    }


def tell(by_policy: Mapping[str, Sequence[Result]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("policy", "tier"):
        table.add_column(name, no_wrap=True)
    for name in ("requests", "in time", "refused", "TTFT p50", "p95"):
        table.add_column(name, justify="right", no_wrap=True)
    for policy, results in by_policy.items():
        for tier, found in means(results).items():
            requests, in_time, refused, p50, p95 = (found[key] for key in FIGURES)
            shares = (f"{requests:,.0f}", f"{in_time:.1%}", f"{refused:.1%}")
            table.add_row(policy, tier, *shares, f"{p50:.2f} s", f"{p95:.2f} s")
    click.echo()
    show.wide().print(table)
