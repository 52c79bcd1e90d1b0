"""Placing requests by predicted seconds against other routers' policies, on recorded workloads and virtual time.

Eight engines whose caches together hold 60 % of the live contexts. Load is varied by the engines' rate of prefill:
load 1.0 is the slowest rate at which llm-d's policy is stable, which is found by bisection; all policies run at 70 %
and 95 % of it, over the same arrivals. docs/simulate.md says what is simulated. The last line is one JSON object.

Beside it: a workload of single requests that share prefixes (Mooncake), one whose prompts share nothing (Azure), what a
cache without end and one that knows the future would have served, and what placing costs with 64 engines and 3,000
agents.
"""

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from forebay.platform.cli import plot
from forebay.platform.cli.simulate import percentiles
from forebay.platform.simulating import Result, Trial, simulate
from forebay.router.core import Core
from forebay.router.simulation.engine import Engine
from forebay.router.simulation.formats import read
from forebay.router.simulation.live import Forebay
from forebay.router.simulation.policies import Send
from forebay.router.simulation.trial import CROWD, POLICIES, STEADY, Shape, capacity_for, figures, run, span_s
from forebay.router.simulation.workload import Workload, WorkloadError

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
AGENTS = TRACES / "agent_coding" / "claude_code_sessions.jsonl.zst"
OTHERS = {
    "mooncake": TRACES / "mooncake" / "synthetic_trace.jsonl.zst",
    "azure": TRACES / "azure" / "AzureLLMInferenceTrace_conv.csv.zst",
}
REPLICAS, LIVE, HELD = 8, 96, 0.6
CAPACITY = 950_000  # tokens of a cache, where a workload does not say which contexts are live: as for the agents
WARM_S, UNTIL_S = 1200.0, 6000.0
JITTER_S = 3.0  # recorded times differ by that much from seed to seed
LOADS = (0.70, 0.95)
SEEDS = (1, 2, 3)
FIRST, STEP = 32_000.0, 0.8  # tokens a second where the search begins, and the next one tried after a stable one
CLOSE = 1.02  # the rate that is found is at most so many times the one that was not stable
KEYS = ("ttft_mean_s", "ttft_p50_s", "ttft_p95_s", "reuse")
LARGE_REPLICAS, LARGE_LIVE, LARGE_S = 64, 3000, (120.0, 180.0)


def shape_for(workload: Workload, *, quick: bool) -> Shape:
    """With a rate that is to be found yet."""
    if workload.timed:
        span = span_s(workload) * (0.25 if quick else 1)
        return Shape(REPLICAS, 1.0, CAPACITY, 0, min(WARM_S, span / 4), span, JITTER_S)
    capacity = capacity_for(workload, share=HELD, live=LIVE, replicas=REPLICAS)
    return Shape(REPLICAS, 1.0, capacity, LIVE, WARM_S, WARM_S + 1200 if quick else UNTIL_S)


def slowest(path: Path, workload: Workload, shape: Shape, seeds: Sequence[int]) -> float:
    """The slowest rate of prefill at which llm-d's policy is stable with every seed."""

    def stable(rate: float) -> bool:
        trials = [Trial("llm-d", replace(shape, prefill=rate), seed) for seed in seeds]
        found = simulate(path, workload, trials)
        waited = ", ".join("/".join(f"{number:.0f}" for number in one.figures.waited) for one in found)
        steady = all(one.figures.steady for one in found)
        print(f"    {rate:8,.0f} tokens/s: {'stable' if steady else 'not stable'} (waiting: {waited})", flush=True)
        return steady

    # From above: conversations wait for their answers, so a pool far beyond its load has as many waiting as there are.
    fast = FIRST
    while not stable(fast):
        fast *= 2
    slow = fast * STEP
    while stable(slow):
        fast, slow = slow, slow * STEP
    while fast / slow > CLOSE:
        middle = math.sqrt(fast * slow)
        fast, slow = (middle, slow) if stable(middle) else (fast, middle)
    return fast


def compare(
    path: Path, workload: Workload, seeds: Sequence[int], *, quick: bool, plots: Path | None = None
) -> dict[str, Any]:
    """All policies at every load, and the bounds; with a plot of each load in the folder `plots`."""
    shape = shape_for(workload, quick=quick)
    print(
        f"\n==> {workload.name}: {len(workload.conversations):,} conversations, {workload.requests:,} requests; "
        f"{shape.replicas} replicas of {shape.capacity:,} tokens; {shape.until_s:,.0f} s, the first "
        f"{shape.warm_s:,.0f} s do not count; seeds {', '.join(map(str, seeds))}"
    )
    print(
        "    Load 1.0 is the slowest prefill rate at which llm-d's policy is stable: requests without first token\n"
        f"    at most {CROWD} a replica in each third, in the last {STEADY} times the middle and one a replica.",
        flush=True,
    )
    rate = slowest(path, workload, shape, seeds)
    trials = [
        Trial(policy, replace(shape, prefill=rate / load), seed, bounded=policy == "forebay")
        for load in LOADS
        for policy in POLICIES
        for seed in seeds
    ]
    began = time.monotonic()
    results = simulate(path, workload, trials, told=_ticker(began))
    found: dict[str, Any] = {"prefill_at_1": round(rate), "capacity": shape.capacity, "policies": {}, "bounds": {}}
    for load in LOADS:
        at = [one for one in results if one.trial.shape.prefill == rate / load]
        found["bounds"][f"{load:.2f}"] = _load(load, rate, at, found["policies"])
        if plots is not None:
            kind = workload.name.partition(".")[0]
            series = {name: percentiles([one for one in at if one.trial.policy == name]) for name in POLICIES}
            title = f"{kind}: requests by time to first token, load {load:.2f}"
            plots.mkdir(parents=True, exist_ok=True)
            (plots / f"routing-{kind}-{load * 100:.0f}.svg").write_text(plot.distributions(title, series))
    return found


def _load(load: float, rate: float, results: Sequence[Result], policies: dict[str, Any]) -> dict[str, float]:
    """Prints one load's table and adds its figures to `policies`; the bounds."""
    ours = [one.bounds for one in results if one.bounds is not None]
    infinite = statistics.fmean(one.infinite for one in ours)
    clairvoyant = statistics.fmean(one.clairvoyant for one in ours)
    print(f"\n    load {load:.2f}, {rate / load:,.0f} tokens/s. Bounds of reuse: {infinite:.3f} without end, "
          f"{clairvoyant:.3f} clairvoyant")  # fmt: skip
    print(f"    {'policy':18}{'mean s':>9}{'p50 s':>9}{'p95 s':>9}{'p99 s':>9}{'reuse':>8}{'of inf.':>9}{'of clv.':>9}"
          f"{'busy':>7}{'requests':>10}{'CPU s':>8}   mean s by seed")  # fmt: skip
    for name in POLICIES:
        some = [one for one in results if one.trial.policy == name]
        mean = {
            key: statistics.fmean(getattr(one.figures, key) for one in some) for key in (*KEYS, "ttft_p99_s", "busy")
        }
        seeds = " ".join(f"{one.figures.ttft_mean_s:.2f}" for one in some)
        print(
            f"    {name:18}{mean['ttft_mean_s']:9.3f}{mean['ttft_p50_s']:9.3f}{mean['ttft_p95_s']:9.2f}"
            f"{mean['ttft_p99_s']:9.2f}{mean['reuse']:8.3f}{_share(mean['reuse'], infinite)}"
            f"{_share(mean['reuse'], clairvoyant)}{mean['busy']:7.2f}"
            f"{statistics.fmean(one.figures.requests for one in some):10,.0f}"
            f"{statistics.fmean(one.cpu_s for one in some):8.1f}   {seeds}",
            flush=True,
        )
        policies.setdefault(name, {})[f"{load:.2f}"] = {key: round(mean[key], 4) for key in KEYS}
    return {"infinite": round(infinite, 4), "clairvoyant": round(clairvoyant, 4)}


def _share(of: float, bound: float) -> str:
    return f"{of / bound:9.1%}" if bound > 0.001 else f"{'-':>9}"


def _ticker(began: float) -> Callable[[float], None]:
    """Says every half a minute how far it is."""
    said = [began]

    def told(share: float) -> None:
        if time.monotonic() - said[0] >= 30:
            said[0] = time.monotonic()
            print(f"    {share:.0%} after {said[0] - began:.0f} s", file=sys.stderr, flush=True)

    return told


# -- a large fleet


class Timed:
    """A core whose methods' CPU time is added up by name."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.spent: dict[str, float] = {}
        self.called: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        if not callable(found):
            return found

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.process_time()
            try:
                return found(*args, **kwargs)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.process_time() - began
                self.called[name] = self.called.get(name, 0) + 1

        return timed


class Watched(Forebay):
    """Our policy, its core timed. `begin` forgets what was spent so far."""

    def __init__(self, engines: Sequence[Engine], send: Send, seed: int) -> None:
        super().__init__(engines, send, seed)
        self.timed = Timed(self.core)
        self.core = self.timed  # type: ignore[assignment]

    def begin(self) -> None:
        self.timed.spent.clear()
        self.timed.called.clear()


def large(workload: Workload, rate: float) -> dict[str, Any]:
    """Our policy alone, with as much work for each engine's rate as `rate` has with `LIVE` on `REPLICAS`. Engines as
    much faster as they have more conversations each."""
    faster = LARGE_LIVE / LARGE_REPLICAS / (LIVE / REPLICAS)
    capacity = capacity_for(workload, share=HELD, live=LARGE_LIVE, replicas=LARGE_REPLICAS)
    shape = Shape(LARGE_REPLICAS, rate * faster, capacity, LARGE_LIVE, *LARGE_S)
    print(f"\n==> {shape.replicas} replicas of {capacity:,} tokens and {rate * faster:,.0f} tokens/s, {LARGE_LIVE:,} "
          f"agents; {shape.until_s:.0f} s, the first {shape.warm_s:.0f} s do not count", flush=True)  # fmt: skip
    made: list[Watched] = []
    begun: list[float] = []

    def make(engines: Sequence[Engine], send: Send, seed: int) -> Watched:
        made.append(Watched(engines, send, seed))
        return made[0]

    def told(at: float) -> None:
        if not begun and at >= shape.warm_s:
            begun.append(at)
            made[0].begin()

    done = run(workload, shape, make, 1, told)
    spent, called = made[0].timed.spent, made[0].timed.called
    simulated = done.ended_at - begun[0]
    placing = sum(spent.get(name, 0.0) for name in ("request", "pump", "settled", "begun", "ended", "tick"))
    found = {
        "replicas": shape.replicas,
        "agents": LARGE_LIVE,
        "requests_per_s": round(called["request"] / simulated, 1),
        "placement_cpu_ms": round(placing / called["request"] * 1e3, 3),
        "placement_core_share": round(placing / simulated, 4),
        "events_core_share": round(spent.get("apply", 0.0) / simulated, 4),
        "cpu_s": {name: round(value, 3) for name, value in sorted(spent.items())},
    }
    some = figures(done, shape)
    print(
        f"    {found['requests_per_s']} requests/s; {found['placement_cpu_ms']} ms of CPU a request to place it and to "
        f"hear of it; {found['placement_core_share']:.1%} of a core, KV events {found['events_core_share']:.1%}; "
        f"mean TTFT {some.ttft_mean_s:.2f} s, reuse {some.reuse:.3f}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="any file of the formats in docs/simulate.md, instead of the usual")
    parser.add_argument("--quick", action="store_true", help="one seed, less time, no large fleet; noisy")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write a plot of each load there, as SVG")
    options = parser.parse_args()
    seeds = SEEDS[:1] if options.quick else SEEDS
    path = options.trace or AGENTS
    if not path.is_file():
        print(f"no recorded workloads: {path} is absent" if not options.trace else f"{path} is no file")
        sys.exit(1)
    try:
        workload = read(path)
    except WorkloadError as error:
        sys.exit(str(error))
    found = compare(path, workload, seeds, quick=options.quick, plots=options.plots)
    if options.trace is None:
        for name, other in OTHERS.items():
            found[name] = compare(other, read(other), seeds, quick=options.quick, plots=options.plots)
        if not options.quick:
            found["large"] = large(workload, found["prefill_at_1"] / LOADS[0])
    found["replicas"], found["live"], found["seeds"] = REPLICAS, LIVE, list(seeds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
