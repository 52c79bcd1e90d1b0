"""What is known of discovery in this process, as Prometheus asks for it."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Reported(Protocol):
    """Of a `Report`."""

    @property
    def synced(self) -> bool: ...
    @property
    def away(self) -> str: ...
    @property
    def away_s(self) -> float: ...
    @property
    def endpoints(self) -> int: ...
    @property
    def left(self) -> int: ...


class Shown(Protocol):
    pool: str

    @property
    def lists(self) -> int: ...
    def report(self) -> Reported: ...


class _Discoveries(Collector):
    """Read when it is asked."""

    def __init__(self) -> None:
        self.shown: list[Shown] = []

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(
            "forebay_discovery_up", "1 while it can be followed which engines there are", labels=["pool"]
        )
        away = GaugeMetricFamily(
            "forebay_discovery_away_seconds", "Seconds for which endpoints are those known last", labels=["pool"]
        )
        pods = GaugeMetricFamily(
            "forebay_discovery_endpoints", "Endpoints found, and pods or files that are none", labels=["pool", "kind"]
        )
        lists = CounterMetricFamily(
            "forebay_discovery_lists", "Times that objects were listed, instead of watched on", labels=["pool"]
        )
        for one in tuple(self.shown):
            report = one.report()
            up.add_metric([one.pool], float(report.synced and not report.away))
            away.add_metric([one.pool], report.away_s)
            pods.add_metric([one.pool, "found"], report.endpoints)
            pods.add_metric([one.pool, "left_out"], report.left)
            lists.add_metric([one.pool], one.lists)
        yield from (up, away, pods, lists)


_discoveries = _Discoveries()
REGISTRY.register(_discoveries)


def show(discovery: Shown) -> None:
    """Have it in this process's metrics, until `hide`."""
    _discoveries.shown.append(discovery)


def hide(discovery: Shown) -> None:
    _discoveries.shown.remove(discovery)
