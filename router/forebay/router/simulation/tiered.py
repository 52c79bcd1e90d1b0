"""A recorded workload in tiers: which each conversation is of, and what became of each (pure)."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from forebay.router.simulation.arriving import Arrival
from forebay.router.simulation.fleet import Run
from forebay.router.simulation.overload import met
from forebay.router.simulation.workload import Workload
from forebay.router.tiers import DEFAULT, Tiers

UNNAMED = (DEFAULT, "auto")  # unless tiers are called so, these ask for the default one


class OfTier(Struct, frozen=True):
    """Of what was asked in a tier: how many requests, which share of them met the objective (had an answer, without
    one) or was refused, and seconds to the first token of those that were not refused. A request that had none when all
    was over counts with what it had waited."""

    requests: int
    in_time: float
    refused: float
    ttft_p50_s: float
    ttft_p95_s: float


def unknown(workload: Workload, tiers: Tiers) -> list[str]:
    """Tiers that the workload names and that are not declared."""
    return sorted({one.tier for one in workload.conversations} - {tier.name for tier in tiers} - {*UNNAMED})


def dealt(arriving: Sequence[Arrival], tiers: Tiers, mix: Mapping[str, float], seed: int) -> list[Arrival]:
    """Each conversation in its own tier. Of those that name none `mix` says the shares; the rest is of the default."""
    rng = random.Random(f"tiers {seed}")  # noqa: S311 - repeatable
    names, shares = [*mix, tiers.default.name], [*mix.values(), max(0.0, 1.0 - sum(mix.values()))]
    found = []
    for arrival in arriving:
        conversation = arrival.instance.conversation
        drawn = rng.choices(names, shares)[0]  # for each, so that a name in one place moves no other
        tier = drawn if conversation.tier in UNNAMED else tiers[conversation.tier].name
        instance = replace(arrival.instance, conversation=replace(conversation, tier=tier))
        found.append(replace(arrival, instance=instance))
    return found


def by_tier(run: Run, tiers: Tiers, measured: tuple[float, float]) -> dict[str, OfTier]:
    """Of what was asked between the two times."""
    served = [one for one in run.served if not one.stopped]
    everyone = [one for one in (*served, *run.refused, *run.unbegun) if measured[0] <= one.asked_at <= measured[1]]
    found = {}
    for tier in tiers:
        asked = [one for one in everyone if one.tier == tier.name]
        kept = [(one.first_at or run.ended_at) - one.asked_at for one in asked if one.refused_at is None]
        p50, p95 = np.percentile(kept, (50, 95)).tolist() if kept else (0.0, 0.0)
        count = max(1, len(asked))
        in_time = sum(met(one, tier) for one in asked)
        found[tier.name] = OfTier(len(asked), in_time / count, (len(asked) - len(kept)) / count, p50, p95)
    return found
