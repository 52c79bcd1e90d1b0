"""One simulation, from a workload and the shape of a pool to figures (pure)."""

import functools
import statistics
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from forebay.router.simulation.arriving import Arrival, arrivals, live_tokens, recorded
from forebay.router.simulation.blocks import Blocks
from forebay.router.simulation.bounds import clairvoyant
from forebay.router.simulation.engine import EngineSpec, Request
from forebay.router.simulation.fleet import GRACE_S, Fleet, Make, Run
from forebay.router.simulation.live import Forebay
from forebay.router.simulation.policies import OTHERS
from forebay.router.simulation.tiered import OfTier, by_tier, dealt
from forebay.router.simulation.workload import Workload, own
from forebay.router.tiers import Tiers

POLICIES: dict[str, Make] = {"forebay": Forebay, **OTHERS}
CHUNK, LONGEST_CHUNK_S = 2048, 0.35  # tokens of prefill in a step; fewer on an engine that would take longer for them
STEADY = 1.25  # what waits in the last third may be so many times what waits in the middle third, and one per engine
CROWD = 2  # for each engine that may wait in any third: what waits longer finds its context pushed out by others


class Shape(Struct, frozen=True):
    """A pool and what comes to it. `prefill`: tokens a second of each engine. `capacity`: tokens of each one's cache.
    `live`: conversations under way on average, for workloads without times; of those with times, each beginning is
    moved by up to `jitter_s` seconds. What is asked from `warm_s` to `until_s` counts. `tiers`: those that are
    declared; `mix`: the shares of conversations that name none."""

    replicas: int
    prefill: float
    capacity: int
    live: float
    warm_s: float
    until_s: float
    jitter_s: float = 0.0
    tiers: Tiers | None = None
    mix: dict[str, float] = {}

    def engine(self, block: int) -> EngineSpec:
        chunk = min(CHUNK, max(block, round(self.prefill * LONGEST_CHUNK_S)))
        return EngineSpec(prefill=self.prefill, capacity=self.capacity, block=block, chunk=chunk)


class Figures(Struct, frozen=True):
    """Of one policy, one shape and one seed. `unbegun`: requests that had no first token when all was over; their waits
    until then count. `busy`: the share of time in which engines computed prompts. `waited`: requests without a first
    token, on average, in each third of the measured part."""

    requests: int
    unbegun: int
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    ttft_p99_s: float
    reuse: float
    busy: float
    waited: tuple[float, float, float]
    replicas: int
    ttft_percentiles_s: list[float]  # the 0th to the 100th
    tiers: dict[str, OfTier]

    @property
    def steady(self) -> bool:
        """Whether no more wait at the end than in the middle, and few at any time; see `STEADY` and `CROWD`."""
        few = max(self.waited) <= CROWD * self.replicas
        return few and not self.unbegun and self.waited[2] <= STEADY * self.waited[1] + self.replicas


class Bounds(Struct, frozen=True):
    """Shares of prompt tokens that could have come from a cache: from one without end, and from one of the pool's whole
    capacity that knows the future."""

    infinite: float
    clairvoyant: float


class UnservedError(Exception):
    """Nothing that was asked in the measured part had begun."""


def come(workload: Workload, shape: Shape, seed: int) -> list[Arrival]:
    if workload.timed:
        found = recorded(workload, jitter_s=shape.jitter_s, seed=seed)
    else:
        found = arrivals(workload, live=shape.live, until=shape.until_s + GRACE_S, seed=seed)
    return found if shape.tiers is None else dealt(found, shape.tiers, shape.mix, seed)


def policy(name: str, shape: Shape) -> Make:
    """Only our own knows tiers."""
    return POLICIES[name] if name != "forebay" else functools.partial(Forebay, tiers=shape.tiers)


def run(
    workload: Workload, shape: Shape, make: Make, seed: int, told: Callable[[float], None] = lambda at: None
) -> Run:
    fleet = Fleet([shape.engine(workload.block)] * shape.replicas, make, seed=seed)
    return fleet.run(come(workload, shape, seed), measure_from=shape.warm_s, until=shape.until_s, told=told)


def figures(run: Run, shape: Shape) -> Figures:
    """Raises `UnservedError`."""
    if not run.requests:
        raise UnservedError(f"no request of the {shape.until_s - shape.warm_s:g} s that count had begun")
    ttft = np.array(run.first_token_s())
    percentiles = np.percentile(ttft, range(101)).tolist()
    waiting = [number for _, number in run.waiting]
    third = max(1, len(waiting) // 3)
    thirds = [waiting[:third], waiting[third : 2 * third], waiting[2 * third :]]
    return Figures(
        requests=len(ttft),
        unbegun=len(run.unbegun_s),
        ttft_mean_s=float(ttft.mean()),
        ttft_p50_s=percentiles[50],
        ttft_p95_s=percentiles[95],
        ttft_p99_s=percentiles[99],
        reuse=sum(one.cached for one in run.requests) / sum(one.turn.tokens for one in run.requests),
        busy=run.busy_s / shape.replicas / run.ended_at,
        waited=(_mean(thirds[0]), _mean(thirds[1]), _mean(thirds[2])),
        replicas=shape.replicas,
        ttft_percentiles_s=percentiles,
        tiers={} if shape.tiers is None else by_tier(run, shape.tiers, (shape.warm_s, shape.until_s)),
    )


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else 0.0


def bounds(workload: Workload, run: Run, shape: Shape) -> Bounds:
    """For the order in which this run served."""
    asked = [_asked(request) for request in run.served]
    whole = shape.replicas * (shape.capacity // workload.block)
    counted = {request.number for request in run.requests}
    tokens = sum(request.turn.tokens for request in run.requests)

    def share(found: Sequence[int]) -> float:
        return (
            sum(
                min(blocks * workload.block, request.turn.tokens - 1)
                for blocks, request in zip(found, run.served, strict=True)
                if request.number in counted
            )
            / tokens
        )

    return Bounds(share(clairvoyant(asked)), share(clairvoyant(asked, whole)))


def _asked(request: Request) -> tuple[Blocks, Blocks]:
    turn = request.turn
    offset = 0 if request.ended_at == 0.0 else request.offset  # a turn that runs still has the names of its instance
    prompt = own(turn.blocks, offset) if offset else turn.blocks
    if turn.kept is None:
        return prompt, prompt
    return prompt, own(turn.kept, offset) if offset else turn.kept


def span_s(workload: Workload) -> float:
    """Seconds from the first to the last recorded beginning."""
    return max((one.begins_s or 0.0 for one in workload.conversations), default=0.0)


def capacity_for(workload: Workload, *, share: float, live: float, replicas: int) -> int:
    """Tokens of each cache, for all of them to hold a share of the contexts of conversations that are under way."""
    return int(share * live * live_tokens(workload) / replicas)
