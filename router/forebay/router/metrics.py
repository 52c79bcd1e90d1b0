"""What the routers of this process know, as Prometheus asks for it. No tenant and no request is ever a label."""

from collections.abc import Callable, Iterable, Iterator

import msgspec
from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay.router.core import Core
from forebay.router.core_line import CoreLine
from forebay.router.core_pool import CorePool
from forebay.router.member import Member
from forebay.router.peers import Sharing
from forebay.router.routing import Following, Health

_ENDPOINT = ["pool", "endpoint"]


class _Routers(Collector):
    """Read when it is asked: nothing is counted twice, and a placement pays for no metric."""

    def __init__(self) -> None:
        self.cores: dict[Core, Callable[[], float]] = {}

    def collect(self) -> Iterator[Metric]:
        pools = [(pool, clock()) for core, clock in self.cores.items() for pool in core.pools.values()]
        yield from _endpoints([(pool, member, now) for pool, now in pools for member in pool.members.values()])
        yield from _pools([pool for pool, _ in pools])
        yield from _lines([line for core in self.cores for line in core.lines.values()])
        yield from _indexes([pool for pool, _ in pools])
        sharing = [core for core in self.cores if core.peers.contact.sharing is not Sharing.OFF]
        if sharing:
            yield from _peers(sharing)


def _endpoints(members: list[tuple[CorePool, Member, float]]) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "forebay_endpoint_up", "1 while an endpoint may be sent requests", labels=_ENDPOINT
    )
    flight = GaugeMetricFamily(
        "forebay_endpoint_in_flight", "Requests at an endpoint, of this front door", labels=_ENDPOINT
    )
    booked = GaugeMetricFamily(
        "forebay_endpoint_booked_seconds", "Predicted seconds of prefill queued at an endpoint, of all front doors",
        labels=_ENDPOINT,
    )
    output = GaugeMetricFamily(
        "forebay_endpoint_booked_output_tokens", "Tokens expected to be generated at an endpoint, for this front door",
        labels=_ENDPOINT,
    )
    rate = GaugeMetricFamily("forebay_endpoint_seconds_per_token", "Learnt rates", labels=[*_ENDPOINT, "phase"])
    fixed = GaugeMetricFamily(
        "forebay_endpoint_fixed_seconds", "Learnt seconds to a first token beside its prompt's", labels=_ENDPOINT
    )
    events = GaugeMetricFamily(
        "forebay_endpoint_events", "1 for how an endpoint's KV events are known", labels=[*_ENDPOINT, "state"]
    )
    info = GaugeMetricFamily(
        "forebay_endpoint_info", "1 for the group that an endpoint belongs to",
        labels=[*_ENDPOINT, "role", "revision", "accelerator"],
    )  # fmt: skip
    health = GaugeMetricFamily(
        "forebay_endpoint_state", "1 for how an endpoint is", labels=[*_ENDPOINT, "state"]
    )
    ejections = CounterMetricFamily(
        "forebay_endpoint_ejections", "Times that an endpoint was put out after it had failed", labels=_ENDPOINT
    )
    back = GaugeMetricFamily(
        "forebay_endpoint_back_in_seconds", "Seconds before which an endpoint is not let back in", labels=_ENDPOINT
    )
    for pool, member, now in members:
        ejections.add_metric([pool.name, member.name], member.condition.ejected)
        back.add_metric([pool.name, member.name], max(0.0, member.condition.back_at - now))
        for one in Health:
            health.add_metric([pool.name, member.name, one.value], float(member.condition.health is one))
        group = member.group
        info.add_metric([pool.name, member.name, group.role.value, group.revision, group.accelerator], 1.0)
        labels, rates, own = [pool.name, member.name], member.rates, member.load.own
        up.add_metric(labels, float(pool.opened(member)))
        flight.add_metric(labels, own.in_flight)
        booked.add_metric(labels, member.load.queued(now, rates.prefill_s) * rates.prefill_s)
        output.add_metric(labels, own.output)
        rate.add_metric([*labels, "prefill"], rates.prefill_s)
        rate.add_metric([*labels, "decode"], rates.decode_s)
        fixed.add_metric(labels, rates.fixed_s)
        for state in Following:
            events.add_metric([*labels, state.value], float(member.following is state))
    yield from (up, health, ejections, back, info, flight, booked, output, rate, fixed, events)


def _pools(pools: list[CorePool]) -> Iterator[Metric]:
    placements = CounterMetricFamily(
        "forebay_placements", "Requests placed: where most of the prompt was cached, elsewhere, or cold",
        labels=["pool", "reason"],
    )  # fmt: skip
    prompt = CounterMetricFamily(
        "forebay_prompt_tokens", "Prompt tokens of answered requests whose engine said how many were cached",
        labels=["pool"],
    )  # fmt: skip
    cached = CounterMetricFamily(
        "forebay_cached_tokens", "Of those, tokens cached as predicted at placement and as the engine said",
        labels=["pool", "kind"],
    )  # fmt: skip
    missed = CounterMetricFamily(
        "forebay_cached_mismatches", "Requests that found a block more, or less, than predicted",
        labels=["pool", "direction"],
    )  # fmt: skip
    for pool in pools:
        counts = pool.counts
        for reason, count in tuple(counts.placements.items()):
            placements.add_metric([pool.name, reason], count)
        prompt.add_metric([pool.name], counts.prompt_tokens)
        cached.add_metric([pool.name, "predicted"], counts.predicted)
        cached.add_metric([pool.name, "observed"], counts.observed)
        missed.add_metric([pool.name, "more"], counts.more)
        missed.add_metric([pool.name, "less"], counts.less)
    yield from (placements, prompt, cached, missed)


def _lines(lines: Iterable[CoreLine]) -> Iterator[Metric]:
    waiting = GaugeMetricFamily(
        "forebay_requests_waiting", "Requests that wait in the router until an engine has room",
        labels=["pool", "tier"],
    )  # fmt: skip
    part = GaugeMetricFamily(
        "forebay_tier_part", "A tier's part of the tokens that a pool served lately, 0 to 1", labels=["pool", "tier"]
    )
    room = GaugeMetricFamily(
        "forebay_tier_ceiling", "Requests at an endpoint at which it gets no more of a tier", labels=["pool", "tier"]
    )
    for line in lines:
        there = line.line.tiers
        for number, tier in enumerate(line.tiers):
            labels = [line.pool.name, tier.name]
            waiting.add_metric(labels, there.get(tier.name, 0))
            part.add_metric(labels, line.shares.part(tier.name))
            if number:
                room.add_metric(labels, line.ceilings.rooms[tier.name] * line.ceilings.part(tier))
    yield from (waiting, part, room)


def _indexes(pools: list[CorePool]) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("forebay_index_blocks", "KV-cache blocks known of an endpoint", labels=_ENDPOINT)
    keys = GaugeMetricFamily("forebay_index_keys", "Prefix keys known by events, and guessed", labels=["pool", "by"])
    waiting = GaugeMetricFamily(
        "forebay_index_waiting", "Events whose parent is not known, and blocks that are gone and still take memory",
        labels=["pool", "what"],
    )  # fmt: skip
    oddities = CounterMetricFamily("forebay_index_oddities", "What was odd about events", labels=["pool", "kind"])
    for pool in pools:
        sizes = pool.index.sizes()
        for endpoint, count in sizes.blocks.items():
            blocks.add_metric([pool.name, endpoint], count)
        keys.add_metric([pool.name, "events"], sizes.keys)
        keys.add_metric([pool.name, "guesses"], sizes.expected)
        waiting.add_metric([pool.name, "parked"], sizes.parked)
        waiting.add_metric([pool.name, "unswept"], sizes.unswept)
        for kind, count in msgspec.structs.asdict(sizes.counts).items():
            oddities.add_metric([pool.name, kind], count)
    yield from (blocks, keys, waiting, oddities)


def _peers(cores: list[Core]) -> Iterator[Metric]:
    """Of routers that share their load."""
    up = GaugeMetricFamily("forebay_load_shared", "1 while load is exchanged with other front doors")
    peers = GaugeMetricFamily("forebay_load_peers", "Other front doors whose load is reckoned with")
    booked = GaugeMetricFamily(
        "forebay_endpoint_peers_load", "What other front doors have booked at an endpoint: requests, tokens",
        labels=[*_ENDPOINT, "what"],
    )  # fmt: skip
    for core in cores:
        up.add_metric([], float(core.peers.contact.sharing is Sharing.UP))
        peers.add_metric([], len(core.peers))
        for pool in core.pools.values():
            for member in pool.members.values():
                share, labels = member.load.peers, [pool.name, member.name]
                booked.add_metric([*labels, "requests"], share.in_flight)
                booked.add_metric([*labels, "prefill"], share.prefill)
                booked.add_metric([*labels, "output"], share.output)
    yield from (up, peers, booked)


_routers = _Routers()
REGISTRY.register(_routers)


def show(core: Core, clock: Callable[[], float]) -> None:
    """Have `core` in this process's metrics, until `hide`."""
    _routers.cores[core] = clock


def hide(core: Core) -> None:
    _routers.cores.pop(core, None)
