"""More demand than a pool can serve: three tiers, several ways to say who waits and who is refused, and what became of
each tier (pure)."""

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from forebay.router.simulation.arriving import Arrival
from forebay.router.simulation.demand import BLOCK, Source, conversations, demand, mean_tokens
from forebay.router.simulation.engine import EngineSpec, Request
from forebay.router.simulation.fleet import Fleet, Make, Run
from forebay.router.simulation.flow_control import (
    FlowControl,
    concurrency,
    holdback,
    soft_reflective,
    static,
    utilization,
)
from forebay.router.simulation.live import Forebay
from forebay.router.simulation.policies import LeastRequests, RoundRobin, StickyUntilSaturated
from forebay.router.tiers import Shed, Tier, Tiers

ENGINE = EngineSpec(prefill=8_000.0, capacity=300_000, block=BLOCK, chunk=512)
REPLICAS = 4
INTERACTIVE = Tier("interactive", 0, ttft_s=2.0, queue_s=10.0, shed=Shed.HOLD)
STANDARD = Tier("standard", 1, ttft_s=10.0, queue_s=8.0, shed=Shed.HOLD)  # what waits longer would come too late
BATCH = Tier("batch", 2, queue_s=60.0, shed=Shed.SHED, share=0.05)
TIERS = Tiers((INTERACTIVE, STANDARD, BATCH), "standard")
PRIORITIES = {"interactive": 100, "standard": 0, "batch": -10}  # of llm-d-benchmark's `priority-mix`
SHARES = {"interactive": 0.2, "standard": 0.6, "batch": 0.2}  # of demand, as there
LARGEST = 0.55  # of its tier's demand comes from one tenant, the rest evenly from the others
TENANTS = 4
GRACE_S = 15.0  # after the measured part, for first tokens: longer than any objective
BACKLOG = 1_500  # requests at once, to see what a pool can do


class Shape(Struct, frozen=True):
    """What is asked from `warm_s` to `until_s` counts. `answered`: turns of a conversation come after the answer to
    the one before, see `conversations`."""

    replicas: int = REPLICAS
    engine: EngineSpec = ENGINE
    warm_s: float = 60.0
    until_s: float = 260.0
    shares: dict[str, float] = field(default_factory=SHARES.copy)
    retries: int = 0
    answered: bool = False


class FirstCome(LeastRequests):
    """No admission: each request at once to the engine with the fewest, whose own queue is in order of arrival."""

    def cached(self, engine: int, request: Request) -> int:
        return 0


class InTurn(RoundRobin):
    def cached(self, engine: int, request: Request) -> int:
        return 0


def forebay(tiers: Tiers = TIERS) -> Make:
    return functools.partial(Forebay, tiers=tiers)


def flow_controls(in_flight: float, *, short: bool = False) -> dict[str, Make]:
    """llm-d's, each way that it documents. `in_flight`: requests at each engine when the pool is full, to which the
    limit of the concurrency detector is set, with a little more to look ahead, as its guides say to do. `short`: its
    queues' times are the objectives, which is not what is published."""
    ttl_s = {tier.name: tier.ttft_s or tier.queue_s for tier in TIERS} if short else None
    detectors = {"utilization": utilization, "concurrency": concurrency(in_flight * 1.1 + 1)}
    ceilings = {"static": static, "holdback 0.5": holdback(0.5), "soft-reflective": soft_reflective}
    return {
        f"{detector}, {ceiling}": functools.partial(
            FlowControl, priorities=PRIORITIES, saturation=saturation, ceilings=allowed, ttl_s=ttl_s
        )
        for detector, saturation in detectors.items()
        for ceiling, allowed in ceilings.items()
    }




def sources(shares: Mapping[str, float] = SHARES) -> list[Source]:
    rest = (1 - LARGEST) / (TENANTS - 1)
    return [
        Source(tier, f"{tier}-{number}", share * (rest if number else LARGEST))
        for tier, share in shares.items()
        for number in range(TENANTS)
    ]


# -- what a pool can do


class Capacity(Struct, frozen=True):
    """`tokens_s`: of prompts and answers, that a pool completes in a second while more waits than it can begin.
    `request_tokens`: of a request, on average. `in_flight`: requests at each engine then that have begun."""

    tokens_s: float
    request_tokens: float
    in_flight: float
    placement: str

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.tokens_s / self.request_tokens


def capacity(shape: Shape, seeds: Sequence[int]) -> Capacity:
    """The highest throughput of a saturated backlog under first-come, of three ways to place: by turns, with the fewest
    requests, and with llm-d's affinity. The mean over the seeds."""
    ways: dict[str, Make] = {"by turns": InTurn, "least requests": FirstCome, "affinity": StickyUntilSaturated}
    found = []
    for name, make in ways.items():
        some = [_drained(shape, make, seed) for seed in seeds]
        means = [sum(one[at] for one in some) / len(some) for at in range(3)]
        found.append(Capacity(means[0], means[1], means[2], name))
    return max(found, key=lambda one: one.tokens_s)


def _drained(shape: Shape, make: Make, seed: int) -> tuple[float, float, float]:
    asked = demand(sources(shape.shares), rate=BACKLOG, until=1.0, seed=seed)
    fleet = Fleet([shape.engine] * shape.replicas, make, seed=seed)
    run = fleet.run(asked, measure_from=0.0, until=1e6)
    ended = sorted(run.served, key=lambda one: one.ended_at)
    ended = ended[len(ended) // 5 : len(ended) * 4 // 5]
    seconds = ended[-1].ended_at - ended[0].ended_at
    running = sum(one.ended_at - one.began_at for one in ended)
    return sum(map(tokens, ended[1:])) / seconds, mean_tokens(asked), running / seconds / shape.replicas


# -- what became of it


class OfTier(Struct, frozen=True):
    """Of what was asked in a tier in the measured part: how many requests, which share of them met the objective, was
    refused, or came too late. Of what ended in it: tokens a second of prompts and answers, and work, which is tokens
    that were computed. `cut`: answers that had begun and were given up for good; `stopped`: how often some were stopped
    to go on later."""

    asked: int
    met: float
    refused: float
    late: float
    tokens_s: float
    work_s: float
    cut: int
    stopped: int


class Figures(Struct, frozen=True):
    """`goodput`: tokens a second, prompts and answers, of requests that ended in the measured part and met their
    objective; `goodput_work`: of those, tokens that were computed. Who comes back after a refusal finds less in caches,
    so the first may fall while the second does not. `reuse`: which part of prompts was cached. `refusal_s`: from
    the arrival of refused requests to the refusal, the 50th and the 99th percentile. `fairness`: of the tier that asks
    for most, see `fair_share`."""

    tiers: dict[str, OfTier]
    goodput: float
    goodput_work: float
    reuse: float
    lowest_share: float
    refusal_s: tuple[float, float]
    fairness: float


def play(make: Make, shape: Shape, rate: float, seed: int) -> Run:
    come = conversations if shape.answered else demand
    asked = come(sources(shape.shares), rate=rate, until=shape.until_s + GRACE_S, seed=seed)
    return played(make, shape, asked, seed)


def played(make: Make, shape: Shape, asked: Sequence[Arrival], seed: int) -> Run:
    fleet = Fleet([shape.engine] * shape.replicas, make, seed=seed, retries=shape.retries)
    return fleet.run(asked, measure_from=shape.warm_s, until=shape.until_s, grace_s=GRACE_S)


def figures(run: Run, shape: Shape, tiers: Tiers = TIERS) -> Figures:
    served = [one for one in run.served if not one.stopped]
    everyone = [one for one in [*served, *run.refused, *run.unbegun] if shape.warm_s <= one.asked_at <= shape.until_s]
    ended = [one for one in served if shape.warm_s <= one.ended_at <= shape.until_s]
    good = [one for one in ended if met(one, tiers[one.tier])]
    seconds = shape.until_s - shape.warm_s
    by_tier = {tier.name: _of(tier, everyone, ended, seconds) for tier in tiers}
    lowest = list(tiers)[-1].name
    waits = sorted(
        one.refused_at - one.tried_at for one in run.refused if one.refused_at is not None
        and shape.warm_s <= one.tried_at <= shape.until_s
    )  # fmt: skip
    all_work = sum(one.work_s for one in by_tier.values())
    return Figures(
        by_tier,
        sum(tokens(one) for one in good) / seconds,
        sum(work(one) for one in good) / seconds,
        sum(one.cached for one in ended) / max(1, sum(one.turn.tokens for one in ended)),
        by_tier[lowest].work_s / all_work if all_work else 0.0,
        (_percentile(waits, 0.5), _percentile(waits, 0.99)),
        _fairness(everyone, max(shape.shares, key=shape.shares.__getitem__)),
    )


def met(request: Request, tier: Tier) -> bool:
    """An answer whose first token came in time; of a tier without an objective, any."""
    return bool(request.first_at) and request.refused_at is None and request.first_at - request.asked_at <= (
        tier.ttft_s or math.inf
    )


def tokens(request: Request) -> int:
    return request.turn.tokens + request.turn.output


def work(request: Request) -> int:
    """Tokens that were computed for it."""
    return request.turn.tokens - request.cached + request.turn.output


def _of(tier: Tier, everyone: Sequence[Request], ended: Sequence[Request], seconds: float) -> OfTier:
    asked = [one for one in everyone if one.tier == tier.name]
    done = [one for one in ended if one.tier == tier.name]
    count = max(1, len(asked))
    in_time = sum(met(one, tier) for one in asked)
    refused = sum(one.refused_at is not None for one in asked)
    return OfTier(
        len(asked), in_time / count, refused / count, (len(asked) - in_time - refused) / count,
        sum(map(tokens, done)) / seconds, sum(map(work, done)) / seconds,
        sum(one.refused_at is not None and one.first_at > 0 for one in asked), sum(one.stops for one in asked),
    )  # fmt: skip


def _fairness(everyone: Sequence[Request], tier: str) -> float:
    wanted: dict[str, float] = defaultdict(float)
    got: dict[str, float] = defaultdict(float)
    for one in everyone:
        if one.tier == tier:
            wanted[one.tenant] += tokens(one)
            got[one.tenant] += tokens(one) if one.first_at and one.refused_at is None else 0.0
    return fair_share(wanted, got)


def fair_share(wanted: Mapping[str, float], got: Mapping[str, float]) -> float:
    """Which part of what was served went where it is fair to go: to each as much as it wants, at most as much as to any
    that wants more (max-min). 1 where all of it did."""
    served = sum(got.values())
    left, fair = served, dict[str, float]()
    for number, name in enumerate(sorted(wanted, key=wanted.__getitem__)):
        fair[name] = min(wanted[name], left / (len(wanted) - number))
        left -= fair[name]
    return sum(min(fair[name], got.get(name, 0.0)) for name in fair) / served if served else 1.0


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


