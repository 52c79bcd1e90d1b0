"""Two tenants of one tier, one of which asks for ten times as much as the other, both for more than their half.

Four simulated engines, as in `tests.bench.overload`. The light one asks for 75 % of what the pool can do, the heavy one
for ten times that: by ten times as many requests, and in a second run by as many more and longer ones. Served is what
was computed for each, as the core counts it: tokens of prompts that were not cached, and twice those of answers; beside
it, answers counted once. The heavy one has more requests to choose the shortest prompts from, so its mix holds more of
answers. The last line is one JSON object.
"""

import argparse
import json
import statistics
from collections import Counter
from typing import Any

from forebay.router.fairness import cost
from forebay.router.simulation.demand import Source, demand
from forebay.router.simulation.fleet import Make
from forebay.router.simulation.overload import (
    FirstCome,
    Shape,
    capacity,
    flow_controls,
    forebay,
    played,
    work,
)

SEEDS = (1, 2, 3)
LIGHT, TIMES = 0.75, 10.0
KINDS = {
    "more": Source("standard", "heavy", TIMES),
    "more, longer": Source("standard", "heavy", TIMES / 2, prompt=2_500.0, output=300.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    shape = Shape()
    can = capacity(shape, options.seeds)
    policies: dict[str, Make] = {
        "forebay": forebay(),
        "llm-d": flow_controls(can.in_flight)["utilization, static"],
        "first-come": FirstCome,
    }
    print(f"==> {shape.replicas} engines, {can.rate:.1f} requests/s; seeds {', '.join(map(str, options.seeds))}")
    found: dict[str, Any] = {}
    for kind, heavy in KINDS.items():
        print(f"\n    the heavy one asks for {kind}")
        print(f"    {'policy':14}{'light':>12}{'heavy':>12}   heavy / light by seed; answers counted once")
        for name, make in policies.items():
            served = [_served(make, shape, heavy, can.rate, seed) for seed in options.seeds]
            ratios = [one["heavy"] / max(1, one["light"]) for one in served]
            light, heavy_ = (statistics.fmean(one[tenant] for one in served) for tenant in ("light", "heavy"))
            once = [one["heavy, once"] / max(1, one["light, once"]) for one in served]
            by_seed = "; ".join(" ".join(f"{one:.3f}" for one in some) for some in (ratios, once))
            print(f"    {name:14}{light:12,.0f}{heavy_:12,.0f}   {by_seed}", flush=True)
            found.setdefault(kind, {})[name] = {"ratio": [round(one, 4) for one in ratios],
                                                "answers_once": [round(one, 4) for one in once]}  # fmt: skip
    worst = max(abs(ratio - 1) for one in found.values() for ratio in one["forebay"]["ratio"])
    print(json.dumps({"unequal_at_most": round(worst, 4), "heavy_by_light": found, "seeds": list(options.seeds)}))


def _served(make: Make, shape: Shape, heavy: Source, rate: float, seed: int) -> Counter[str]:
    light = Source("standard", "light", 1.0)
    asked = demand([light, heavy], rate=rate * LIGHT * (1 + heavy.share), until=shape.until_s, seed=seed)
    run = played(make, shape, asked, seed)
    found: Counter[str] = Counter()
    for one in run.served:
        if not one.stopped and shape.warm_s <= one.ended_at <= shape.until_s:
            found[one.tenant] += round(cost(one.turn.tokens - one.cached, one.turn.output))
            found[f"{one.tenant}, once"] += work(one)
    return found


if __name__ == "__main__":
    main()
