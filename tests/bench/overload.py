"""More demand than a pool can serve: what becomes of three tiers, from 50 % to 300 % of what the pool can do.

Four simulated engines; 20 % of demand is interactive (first token within 2 s), 60 % standard (within 10 s), 20 % batch
(no objective, at least 5 % of the work). Requests come whether or not earlier ones were answered; who is refused goes
away, but for the last table. Capacity is the highest throughput of a backlog that waits at the engines, of three ways
to place. Policies: our own core; llm-d's published flow control, in whichever of its variants keeps most interactive
requests (then goodput), as published and with its queues' times set to the objectives; and first-come. Then a real
front door before engine doubles that are full: how long after they came refused requests hear of it. The last line is
one JSON object.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from forebay.router.simulation.fleet import Make
from forebay.router.simulation.overload import (
    BATCH,
    TIERS,
    Capacity,
    Figures,
    FirstCome,
    Shape,
    capacity,
    figures,
    flow_controls,
    forebay,
    play,
)
from tests.bench import refusal
from tests.bench.curves import curves

DEMANDS = (0.5, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)
SEEDS = (1, 2, 3)
TRIED = (1.5, 3.0)  # demands at which llm-d's variants are compared
RETRIES = 3
_makes: dict[str, Make] = {}  # of a process


class Trial(Struct, frozen=True):
    policy: str
    demand: float
    rate: float  # requests a second
    seed: int
    shape: Shape


class Result(Struct, frozen=True):
    trial: Trial
    figures: Figures
    cpu_s: float


def measure(trial: Trial) -> Result:
    began = time.process_time()
    found = figures(play(_makes[trial.policy], trial.shape, trial.rate, trial.seed), trial.shape)
    return Result(trial, found, time.process_time() - began)


def measured(trials: Sequence[Trial], processes: int | None) -> list[Result]:
    """Our own policy takes longest, and so does the highest demand: they go first."""
    order = sorted(trials, key=lambda one: (one.policy != "forebay", -one.demand))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as executor:
        return list(executor.map(measure, order))


def best_variant(capacity_: Capacity, shape: Shape, seeds: Sequence[int], processes: int | None) -> str:
    """Of llm-d's flow control: the highest lowest share of interactive requests that met their objective, to a tenth of
    a percent, then goodput."""
    variants = flow_controls(capacity_.in_flight)
    _makes.update(variants)
    results = measured(
        [Trial(name, at, capacity_.rate * at, seed, shape) for name in variants for at in TRIED for seed in seeds[:1]],
        processes,
    )
    print(f"\n    llm-d's flow control, variants\n    {'':30}" + "".join(f"{f'{at:.0%}':>24}" for at in TRIED))
    merits = {}
    for name in variants:
        some = [next(one.figures for one in results if (one.trial.policy, one.trial.demand) == (name, at))
                for at in TRIED]  # fmt: skip
        merits[name] = (round(min(one.tiers["interactive"].met for one in some), 3), sum(one.goodput for one in some))
        print(f"    {name:30}" + "".join(map(_short, some)), flush=True)
    return max(merits, key=merits.__getitem__)


def _short(one: Figures) -> str:
    met = one.tiers["interactive"].met
    return f"{f'{met:.1%}, {one.goodput:,.0f} tok/s':>24}"


def mean(results: Sequence[Result], policy: str, demand: float) -> dict[str, float]:
    """Over the seeds; of what is promised to the interactive tier also the worst."""
    some = [one.figures for one in results if (one.trial.policy, one.trial.demand) == (policy, demand)]
    found = {key: statistics.fmean(getattr(one, key) for one in some) for key in ("goodput", "goodput_work", "reuse")}
    for tier in TIERS:
        parts = [one.tiers[tier.name] for one in some]
        found[f"{tier.name}_met"] = statistics.fmean(one.met for one in parts)
        found[f"{tier.name}_refused"] = statistics.fmean(one.refused for one in parts)
        found[f"{tier.name}_cut"] = sum(one.cut for one in parts)
    found["interactive_worst"] = min(one.tiers["interactive"].met for one in some)
    found["lowest_share"] = statistics.fmean(one.lowest_share for one in some)
    found["refusal_p50_s"] = statistics.fmean(one.refusal_s[0] for one in some)
    found["refusal_p99_s"] = statistics.fmean(one.refusal_s[1] for one in some)
    found["fairness"] = statistics.fmean(one.fairness for one in some)
    found["stopped"] = sum(one.tiers[BATCH.name].stopped for one in some)
    found["cpu_s"] = statistics.fmean(
        one.cpu_s for one in results if (one.trial.policy, one.trial.demand) == (policy, demand)
    )
    return found


def table(results: Sequence[Result], policies: Sequence[str]) -> dict[str, dict[str, dict[str, float]]]:
    print(f"\n    {'policy':16}{'demand':>7}{'interact.':>10}{'worst':>7}{'standard':>9}{'batch':>7}{'goodput':>9}"
          f"{'computed':>9}"
          f"{'reuse':>7}{'lowest':>8}{'refused: int. std. batch':>26}{'after s p50':>12}{'p99':>7}{'fair':>6}"
          f"{'stopped':>8}{'CPU s':>7}")  # fmt: skip
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in policies:
        for demand in sorted({one.trial.demand for one in results}):
            one = mean(results, name, demand)
            refused = " ".join(f"{one[f'{tier.name}_refused']:6.1%}" for tier in TIERS)
            print(
                f"    {name:16}{demand:7.0%}{one['interactive_met']:10.2%}{one['interactive_worst']:7.1%}"
                f"{one['standard_met']:9.1%}{one['batch_met']:7.1%}{one['goodput']:9,.0f}{one['goodput_work']:9,.0f}"
                f"{one['reuse']:7.1%}{one['lowest_share']:8.1%}"
                f"{refused:>26}{one['refusal_p50_s']:12.3f}{one['refusal_p99_s']:7.2f}{one['fairness']:6.2f}"
                f"{one['stopped']:8,.0f}{one['cpu_s']:7.1f}",
                flush=True,
            )
            found.setdefault(name, {})[f"{demand:.2f}"] = {key: round(value, 4) for key, value in one.items()}
    return found


def summary(curve: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Of one policy. The interactive tier alone is at most 60 % of capacity at every demand here, so all count.
    `goodput_kept`: the least beyond the peak, as a share of the peak, and `work_kept` the same of what was computed;
    `lowest_share`: the least where demand is above capacity."""
    demands = sorted(curve, key=float)

    def kept(key: str) -> float:
        peak = max(demands, key=lambda one: curve[one][key])
        return round(min(curve[one][key] for one in demands if float(one) >= float(peak)) / curve[peak][key], 4)

    return {
        "interactive_met": min(one["interactive_worst"] for one in curve.values()),
        "goodput_kept": kept("goodput"),
        "work_kept": kept("goodput_work"),
        "goodput_peak": max(one["goodput"] for one in curve.values()),
        "lowest_share": min(curve[one]["lowest_share"] for one in demands if float(one) > 1),
        "refusal_p50_s": max(one["refusal_p50_s"] for one in curve.values()),
        "fairness": min(one["fairness"] for one in curve.values()),
    }


def draw(found: Mapping[str, Mapping[str, Mapping[str, float]]], folder: Path) -> None:
    for file, key, title, unit in (
        ("interactive", "interactive_met", "interactive requests with their first token within 2 s", "%"),
        ("standard", "standard_met", "standard requests with their first token within 10 s", "%"),
        ("goodput", "goodput", "tokens a second of requests that met their objective", ""),
    ):
        series = {name: [(float(at), one[key]) for at, one in curve.items()] for name, curve in found.items()}
        drawn = curves(title, "demand, of what the pool can do", series, unit=unit)
        (folder / f"overload-{file}.svg").write_text(drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demands", type=float, nargs="+", default=DEMANDS, help="of capacity")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--replicas", type=int, default=Shape().replicas)
    parser.add_argument("--kv-tokens", type=int, default=Shape().engine.capacity, help="of each engine's cache")
    parser.add_argument("--seconds", type=float, default=Shape().until_s, help="that are simulated")
    parser.add_argument("--processes", type=int, help="at a time; one for each core if not given")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write plots there, as SVG")
    parser.add_argument("--policies", nargs="+", help="only these")
    parser.add_argument("--answered", action="store_true", help="turns of a conversation come after their answers")
    parser.add_argument("--no-live", action="store_true", help="leave the real front door out")
    options = parser.parse_args()
    shape = Shape(options.replicas, until_s=options.seconds, answered=options.answered)
    shape = replace(shape, engine=replace(shape.engine, capacity=options.kv_tokens))
    can = capacity(shape, options.seeds)
    print(
        f"==> {shape.replicas} engines, {shape.until_s:.0f} s of which the first {shape.warm_s:.0f} s do not count, "
        f"seeds {', '.join(map(str, options.seeds))}\n    capacity: {can.tokens_s:,.0f} tokens/s, {can.rate:.2f} "
        f"requests/s ({can.placement}), {can.in_flight:.0f} answers at once at each engine",
        flush=True,
    )
    variant = best_variant(can, shape, options.seeds, options.processes)
    print(f"    llm-d below: {variant}", flush=True)
    _makes.update({
        "forebay": forebay(),
        "llm-d": flow_controls(can.in_flight)[variant],
        "llm-d, short": flow_controls(can.in_flight, short=True)[variant],
        "first-come": FirstCome,
    })  # fmt: skip
    names = options.policies or ["forebay", "llm-d", "llm-d, short", "first-come"]
    trials = [Trial(name, at, can.rate * at, seed, shape) for name in names for at in options.demands
              for seed in options.seeds]  # fmt: skip
    found = table(measured(trials, options.processes), names)
    if options.plots is not None:
        draw(found, options.plots)
    print(f"\n    who is refused comes again when told to, {RETRIES} times at most (llm-d names no time: after 1 s)")
    again = replace(shape, retries=RETRIES)
    retried = [Trial(name, at, can.rate * at, options.seeds[0], again) for name in names[:2] for at in TRIED]
    found_again = table(measured(retried, options.processes), names[:2])
    policies = {name: {**summary(curve), "by_demand": curve} for name, curve in found.items()}
    result: dict[str, Any] = {key: policies[names[0]][key] for key in ("interactive_met", "goodput_kept", "work_kept")}
    if not options.no_live:
        result["refusal_ms_p50"] = asyncio.run(refusal.bench())
    print(json.dumps({
        **result, "lowest_share": policies[names[0]]["lowest_share"], "capacity_tokens_s": round(can.tokens_s),
        "llm_d_variant": variant, "seeds": list(options.seeds), "policies": policies, "with_retries": found_again,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
