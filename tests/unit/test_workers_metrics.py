"""Metrics of several processes as one text that Prometheus takes."""

from collections import Counter as Count

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from forebay.platform.workers.gathered import exposition, taken


async def process(requests: int, *, seconds: float = 0.2) -> bytes:
    registry = CollectorRegistry()
    counter = Counter("forebay_requests_total", "Requests\nby model", ["model"], registry=registry)
    counter.labels(model='a "quoted" \\ name').inc(requests)
    Histogram("forebay_seconds", "Time", buckets=(0.1, 1.0), registry=registry).observe(seconds)
    Gauge("forebay_in_flight", "Now", registry=registry).set(3)
    return await taken(registry)


async def test_each_family_is_there_once_with_the_samples_of_every_process() -> None:
    text = exposition({"0": await process(2), "1": await process(5, seconds=3.0)}).decode()
    heads = Count(line.split()[2] for line in text.splitlines() if line.startswith("# TYPE"))
    assert set(heads.values()) == {1}
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["forebay_requests"].documentation == "Requests\nby model"
    totals = [s for s in families["forebay_requests"].samples if s.name == "forebay_requests_total"]
    assert {s.labels["worker"]: s.value for s in totals} == {"0": 2.0, "1": 5.0}
    assert {s.labels["model"] for s in totals} == {'a "quoted" \\ name'}
    buckets = [s for s in families["forebay_seconds"].samples if s.name.endswith("_bucket") and s.labels["le"] == "1.0"]
    assert {s.labels["worker"]: s.value for s in buckets} == {"0": 1.0, "1": 0.0}
    assert families["forebay_in_flight"].type == "gauge"


async def test_the_metrics_of_this_process_survive_the_way() -> None:
    text = exposition({"router": await taken()}).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["process_cpu_seconds"].samples[0].labels == {"worker": "router"}
    assert families["python_info"].samples[0].value == 1.0
