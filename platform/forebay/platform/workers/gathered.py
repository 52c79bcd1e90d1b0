"""Metrics of several processes as one exposition: each family once, every sample with the process that it is of.

With thousands of series that takes tens of milliseconds: what they are is read where they change, on the event loop, a
family a turn; all the rest is done aside.
"""

import asyncio
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


async def own(registry: Collector = REGISTRY) -> bytes:
    """The text of this process's metrics, where it is the only one."""
    return await asyncio.to_thread(_text, await _read(registry))


async def taken(registry: Collector = REGISTRY) -> bytes:
    """This process's metrics, for `exposition`."""
    return await asyncio.to_thread(_packed, await _read(registry))


async def _read(registry: Collector) -> list[Metric]:
    found = []
    for family in registry.collect():
        found.append(family)
        await asyncio.sleep(0)
    return found


def _packed(metrics: Iterable[Metric]) -> bytes:
    families = [
        Family(m.name, m.documentation, m.type, m.unit, [(s.name, s.labels, float(s.value)) for s in m.samples])
        for m in metrics
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
    return _text(merged.values())


def _text(metrics: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Fixed(metrics))
    return generate_latest(registry)


class _Fixed(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics
