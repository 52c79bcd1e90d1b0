"""What a second front door changes: the agent trace on eight simulated engines, through one front door and two.

Requests come to either at random, a conversation's next turn too. Each front door is the router's own core, with an
index, a line and a memory of conversations of its own; they tell each other what they do live. In a third run one of
the two is killed in the middle of the measured part: its clients ask again at the other one after a second. Engines and
load are those of `tests.bench.routing`. The last line is one JSON object.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from forebay.router.simulation.doors import Doors
from forebay.router.simulation.engine import Request
from forebay.router.simulation.fleet import Fleet, Run
from forebay.router.simulation.formats import read
from forebay.router.simulation.trial import Figures, Shape, come, figures
from forebay.router.simulation.workload import Workload, WorkloadError
from tests.bench.routing import AGENTS, SEEDS, UNTIL_S, shape_for

RATES = (28_452.0, 20_965.0)  # tokens a second of each engine: loads 0.70 and 0.95 of `tests.bench.routing`
AGAIN_S = 1.0  # until clients of a front door that was killed ask again
ONE, TWO, KILLED = "1", "2", "2, one killed"
_state: dict[str, Any] = {}  # of a process: the workload
KEYS = ("ttft_mean_s", "ttft_p50_s", "ttft_p95_s", "reuse")


class Trial(Struct, frozen=True):
    doors: str
    shape: Shape
    seed: int

    @property
    def middle_s(self) -> float:
        return (self.shape.warm_s + self.shape.until_s) / 2


class Result(Struct, frozen=True):
    """`after`: of what was asked in the second half of the measured part. `cut`: requests that the killed one had, all
    of them asked again. `missing`: requests, those among them, that had no first token in the end."""

    trial: Trial
    whole: Figures
    after: Figures
    cut: int
    missing: int
    cpu_s: float


def measure(trial: Trial) -> Result:
    workload: Workload = _state["workload"]
    shape, began = trial.shape, time.process_time()
    doors: list[Doors] = []

    def make(*arguments: Any) -> Doors:
        doors.append(Doors(*arguments, count=1 if trial.doors == ONE else 2))
        return doors[0]

    fleet = Fleet([shape.engine(workload.block)] * shape.replicas, make, seed=trial.seed)
    again: list[Request] = []
    if trial.doors == KILLED:
        fleet.at(trial.middle_s, lambda: again.extend(fleet.lose(doors[0].kill(0), AGAIN_S)))
    run = fleet.run(come(workload, shape, trial.seed), measure_from=shape.warm_s, until=shape.until_s)
    cpu_s = time.process_time() - began
    after = figures(_after(run, trial.middle_s), shape)
    return Result(trial, figures(run, shape), after, len(again), len(run.unbegun_s), cpu_s)


def _after(run: Run, at: float) -> Run:
    return replace(run, requests=[one for one in run.requests if one.asked_at >= at])


def table(results: Sequence[Result], rate: float) -> dict[str, Any]:
    """Prints what was measured at one rate; the figures by how many front doors there were."""
    print(f"\n    {rate:,.0f} tokens/s\n    {'front doors':14}{'':16}{'mean s':>9}{'p50 s':>9}{'p95 s':>9}{'reuse':>8}"
          f"{'requests':>10}{'CPU s':>8}   reuse by seed")  # fmt: skip
    found: dict[str, Any] = {}
    for doors, part in product((ONE, TWO, KILLED), ("whole", "after")):
        some = [one for one in results if one.trial.doors == doors]
        parts: list[Figures] = [getattr(one, part) for one in some]
        mean = {key: statistics.fmean(getattr(one, key) for one in parts) for key in KEYS}
        print(
            f"    {doors if part == 'whole' else '':14}{'' if part == 'whole' else 'second half':16}"
            f"{mean['ttft_mean_s']:9.3f}{mean['ttft_p50_s']:9.3f}{mean['ttft_p95_s']:9.2f}{mean['reuse']:8.4f}"
            f"{statistics.fmean(one.requests for one in parts):10,.0f}"
            f"{statistics.fmean(one.cpu_s for one in some):8.0f}   {' '.join(f'{one.reuse:.4f}' for one in parts)}",
            flush=True,
        )
        found.setdefault(doors, {})[part] = {key: round(value, 4) for key, value in mean.items()}
    killed = [one for one in results if one.trial.doors == KILLED]
    found[KILLED]["cut"], found[KILLED]["missing"] = sum(one.cut for one in killed), sum(one.missing for one in killed)
    found["reuse_change_points"] = _points(found[TWO]["whole"], found[ONE]["whole"])
    found["reuse_change_points_after"] = _points(found[KILLED]["after"], found[ONE]["after"])
    print(f"    reuse with two, less that with one: {found['reuse_change_points']:+.2f} points; after one of two was "
          f"killed: {found['reuse_change_points_after']:+.2f}. It had {found[KILLED]['cut']} requests in all; of all "
          f"that was asked, {found[KILLED]['missing']} were never answered", flush=True)  # fmt: skip
    return found


def _points(some: dict[str, float], other: dict[str, float]) -> float:
    return round(100 * (some["reuse"] - other["reuse"]), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="tokens of prefill a second")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--until", type=float, default=UNTIL_S, help="seconds that are simulated")
    parser.add_argument("--processes", type=int, help="at a time; one for each core if not given")
    options = parser.parse_args()
    if not AGENTS.is_file():
        sys.exit(f"no recorded workload: {AGENTS} is absent")
    try:
        workload = read(AGENTS)
    except WorkloadError as error:
        sys.exit(str(error))
    shape = replace(shape_for(workload, quick=False), until_s=options.until)
    print(
        f"==> {workload.name}; {shape.replicas} replicas of {shape.capacity:,} tokens; {shape.until_s:,.0f} s, the "
        f"first {shape.warm_s:,.0f} s do not count; seeds {', '.join(map(str, options.seeds))}",
        flush=True,
    )
    found: dict[str, Any] = {"replicas": shape.replicas, "seeds": list(options.seeds), "rates": {}}
    _state["workload"] = workload  # a forked process has it already
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("fork")) as executor:
        for rate in options.rates:
            trials = [
                Trial(doors, replace(shape, prefill=rate), seed)
                for doors, seed in product((TWO, KILLED, ONE), options.seeds)
            ]
            results = list(executor.map(measure, trials))
            found["rates"][f"{rate:.0f}"] = table(results, rate)
    found["reuse_change_points"] = min(one["reuse_change_points"] for one in found["rates"].values())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
