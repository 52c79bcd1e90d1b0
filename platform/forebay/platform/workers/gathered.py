"""Metrics of several processes as one exposition: each family once, every sample with the process that it is of."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

LABEL = "worker"


class Family(Struct, frozen=True, array_like=True):
    """A `prometheus_client` metric as it travels: (sample name, labels, value) each."""

    name: str
    documentation: str
    type: str
    unit: str
    samples: list[tuple[str, dict[str, str], float]]


_decode = msgspec.msgpack.Decoder(list[Family]).decode


def taken(registry: Collector = REGISTRY) -> bytes:
    """This process's metrics."""
    families = [
        Family(m.name, m.documentation, m.type, m.unit, [(s.name, s.labels, float(s.value)) for s in m.samples])
        for m in registry.collect()
    ]
    return msgspec.msgpack.encode(families)


def exposition(processes: Mapping[str, bytes]) -> bytes:
    """The text of what `taken` returned in each process, by the process's name. Raises `msgspec.DecodeError`."""
    merged: dict[str, Metric] = {}
    for process, data in processes.items():
        for family in _decode(data):
            if family.name not in merged:
                merged[family.name] = Metric(family.name, family.documentation, family.type, family.unit)
            for name, labels, value in family.samples:
                merged[family.name].add_sample(name, {LABEL: process, **labels}, value)
    registry = CollectorRegistry()
    registry.register(_Fixed(merged.values()))
    return generate_latest(registry)


class _Fixed(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics
