"""`forebay simulate`: ways of routing compared on an operator's own trace and pool, on virtual time."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay.platform.cli import plot, show, simulate_tiers
from forebay.platform.simulating import Result, Trial, TrialsError
from forebay.platform.simulating import simulate as run_all
from forebay.router.simulation.formats import read
from forebay.router.simulation.trial import POLICIES, Shape, UnservedError, span_s
from forebay.router.simulation.workload import Workload, WorkloadError

LIVE_EACH = 12  # conversations under way for each replica, unless --live says otherwise
SECONDS, WARM_SHARE = 4800.0, 0.25
_FIGURES = ("ttft_mean_s", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "reuse", "busy")


class _Policies(click.ParamType[tuple[str, ...]]):
    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        unknown = [name for name in names if name not in POLICIES]
        if unknown or not names:
            fault = f"{unknown[0]!r} is no policy" if unknown else "name one policy at least"
            self.fail(f"{fault}; choose of {', '.join(POLICIES)}", param, ctx)
        return names


_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command("simulate")
@click.option(
    "--trace", "path", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Recorded requests: agent sessions, Mooncake or Azure; .zst is read as it is.",
)  # fmt: skip
@click.option("--replicas", type=click.IntRange(1, 1024), default=8, show_default=True, help="Engines in the pool.")
@click.option(
    "--prefill-rate", type=_POSITIVE, default=20_000.0, show_default=True, metavar="TOKENS/S",
    help="Prompt tokens that one engine computes in a second.",
)  # fmt: skip
@click.option(
    "--kv-tokens", type=click.IntRange(min=1), default=1_000_000, show_default=True, metavar="TOKENS",
    help="What one engine's KV cache holds.",
)  # fmt: skip
@click.option(
    "--live", type=_POSITIVE, help=f"Conversations under way, for traces without times. Default: {LIVE_EACH} a replica."
)
@click.option(
    "--tiers", "tiers_of", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FOREBAY.YAML",
    help="Requests are of the tiers that this configuration declares.",
)  # fmt: skip
@click.option(
    "--mix", type=simulate_tiers.Mix(), default="",
    help="Shares of conversations by tier, where the trace names none: batch=0.2,… The rest is of the default.",
)  # fmt: skip
@click.option("--policies", type=_Policies(), default=",".join(POLICIES), help="Comma-separated. Default: all.")
@click.option(
    "--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs of each, to be averaged."
)
@click.option("--seconds", type=_POSITIVE, help=f"Simulated. Default: as long as the trace, or {SECONDS:.0f}.")
@click.option("--warm-up", type=click.FloatRange(min=0), help="Seconds that do not count. Default: a quarter of all.")
@click.option("--processes", type=click.IntRange(1, 256), help="At once. Default: one a core.")
@click.option("--plot", "svg", type=click.Path(dir_okay=False, path_type=Path), help="Write the waits there, as SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(
    path: Path, *, replicas: int, prefill_rate: float, kv_tokens: int, live: float | None, policies: tuple[str, ...],
    seeds: int, seconds: float | None, warm_up: float | None, processes: int | None, svg: Path | None, as_json: bool,
    tiers_of: Path | None, mix: dict[str, float],
) -> None:  # fmt: skip
    """Compare ways of routing on a recorded workload: time to first token, and the share of prompts found in caches.

    `forebay` is the code that routes in production; the others are written from their published descriptions.
    """
    workload = _read(path)
    seconds = seconds or (span_s(workload) if workload.timed else SECONDS) or 1.0
    warm_s = seconds * WARM_SHARE if warm_up is None else warm_up
    if warm_s >= seconds:
        raise click.BadParameter(f"must be under the {seconds:g} s of the simulation", param_hint="--warm-up")
    tiers = simulate_tiers.declared(tiers_of, mix, workload)
    live = live or LIVE_EACH * replicas
    shape = Shape(replicas, prefill_rate, kv_tokens, live, warm_s, seconds, tiers=tiers, mix=mix)
    trials = [
        Trial(policy, shape, seed + 1, bounded=policy == policies[0]) for policy in policies for seed in range(seeds)
    ]
    results = _run(path, workload, trials, processes, quiet=as_json)
    by_policy = {name: [one for one in results if one.trial.policy == name] for name in policies}
    if svg is not None:
        _plot(svg, workload, by_policy)
    if as_json:
        show.as_json(_plain(workload, shape, seeds, by_policy))
    else:
        _tell(workload, shape, by_policy)


def _read(path: Path) -> Workload:
    try:
        return read(path)
    except (WorkloadError, OSError) as error:
        raise click.ClickException(str(error)) from None


def _run(
    path: Path, workload: Workload, trials: Sequence[Trial], processes: int | None, *, quiet: bool
) -> list[Result]:
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    # No thread that draws: processes are forked while the bar is there.
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, disable=quiet, transient=True) as bar:
        task = bar.add_task(f"{len(trials)} simulations", total=1.0)

        def told(share: float) -> None:
            bar.update(task, completed=share)
            bar.refresh()

        try:
            return run_all(path, workload, trials, processes=processes, told=told)
        except (UnservedError, TrialsError) as error:
            raise click.ClickException(str(error)) from None


def _mean(results: Sequence[Result], name: str) -> float:
    return statistics.fmean(getattr(one.figures, name) for one in results)


def _bounds(by_policy: dict[str, list[Result]]) -> tuple[float, float]:
    found = [one.bounds for results in by_policy.values() for one in results if one.bounds is not None]
    return statistics.fmean(one.infinite for one in found), statistics.fmean(one.clairvoyant for one in found)


def _tell(workload: Workload, shape: Shape, by_policy: dict[str, list[Result]]) -> None:
    live = "" if workload.timed else f", {shape.live:g} conversations under way"
    click.echo(
        f"{workload.name}: {len(workload.conversations):,} conversations, {workload.requests:,} requests{live}; "
        f"{shape.replicas} replicas, {shape.prefill:,.0f} tokens/s and {shape.capacity:,} tokens of cache each; "
        f"{shape.until_s:,.0f} s, of which the first {shape.warm_s:,.0f} do not count\n"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True)
    for name in ("TTFT mean", "p50", "p95", "p99", "reuse", "busy", "requests"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, results in by_policy.items():
        mean, p50, p95, p99, reuse, busy = (_mean(results, key) for key in _FIGURES)
        steady = all(one.figures.steady for one in results)
        table.add_row(
            name, *(f"{value:.2f} s" for value in (mean, p50, p95, p99)), f"{reuse:.1%}", f"{busy:.0%}",
            f"{_mean(results, 'requests'):,.0f}", "" if steady else "more and more wait",
        )  # fmt: skip
    show.wide().print(table)
    if shape.tiers is not None:
        simulate_tiers.tell(by_policy)
    infinite, clairvoyant = _bounds(by_policy)
    click.echo(
        f"\nReuse cannot be above {infinite:.1%}, with caches without end; or {clairvoyant:.1%}, with one cache of all "
        "the replicas' size that knows what will be asked."
    )


def _plain(workload: Workload, shape: Shape, seeds: int, by_policy: dict[str, list[Result]]) -> dict[str, Any]:
    infinite, clairvoyant = _bounds(by_policy)
    return {
        "trace": workload.name, "requests_recorded": workload.requests, "replicas": shape.replicas,
        "prefill_tokens_per_s": shape.prefill, "kv_tokens": shape.capacity,
        "live": None if workload.timed else shape.live, "seconds": shape.until_s, "warm_up_s": shape.warm_s,
        "seeds": seeds, "bounds": {"infinite": infinite, "clairvoyant": clairvoyant},
        "policies": {
            name: {key: _mean(results, key) for key in (*_FIGURES, "requests", "unbegun")}
            | {"steady": all(one.figures.steady for one in results)}
            | ({} if shape.tiers is None else {"tiers": simulate_tiers.means(results)})
            for name, results in by_policy.items()
        },
    }  # fmt: skip


def _plot(path: Path, workload: Workload, by_policy: dict[str, list[Result]]) -> None:
    series = {name: percentiles(results) for name, results in by_policy.items()}
    try:
        path.write_text(plot.distributions(f"{workload.name}: requests by time to first token", series))
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None


def percentiles(results: Sequence[Result]) -> list[float]:
    """Of the time to first token, averaged over seeds."""
    return [
        statistics.fmean(values) for values in zip(*(one.figures.ttft_percentiles_s for one in results), strict=True)
    ]
