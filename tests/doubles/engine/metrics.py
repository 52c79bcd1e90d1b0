"""Counters and histograms under vLLM's names, and their text. Pure."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

_SECONDS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0)
_BETWEEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0
)  # fmt: skip
_FIRST = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")
_REASONS = ("stop", "length", "abort", "error", "repetition")
_HISTOGRAMS = {
    "request_prompt_tokens": _TOKENS,
    "request_generation_tokens": _TOKENS,
    "time_to_first_token_seconds": _FIRST,
    "inter_token_latency_seconds": _BETWEEN,
    "e2e_request_latency_seconds": _SECONDS,
    "request_queue_time_seconds": _SECONDS,
    "request_prefill_time_seconds": _SECONDS,
    "request_decode_time_seconds": _SECONDS,
}


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """What has been counted since the start. `running`, `waiting` and `cache_usage` are set before the text is made."""

    def __init__(self, model: str, *, block_size: int, blocks: int, created: float) -> None:
        self.running = 0
        self.waiting = 0
        self.cache_usage = 0.0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.cached_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.rejected = 0
        self.succeeded = dict.fromkeys(_REASONS, 0)
        self.histograms = {name: Histogram(bounds) for name, bounds in _HISTOGRAMS.items()}
        self.first_token = self.histograms["time_to_first_token_seconds"]
        self.between = self.histograms["inter_token_latency_seconds"]
        self._created = created
        self._model = model
        self._config = f'block_size="{block_size}",cache_dtype="auto",engine="0",num_gpu_blocks="{blocks}"'

    def text(self) -> bytes:
        lines = [*self._gauges(), *self._counters(), *self._distributions()]
        lines.append(f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{self._config}}} 1.0")
        return ("\n".join(lines) + "\n").encode()

    def _gauges(self) -> Iterator[str]:
        yield from self._family("num_requests_running", "gauge", [("", self.running)])
        yield from self._family("num_requests_waiting", "gauge", [("", self.waiting)])
        reasons = [('reason="capacity"', self.waiting), ('reason="deferred"', 0)]
        yield from self._family("num_requests_waiting_by_reason", "gauge", reasons)
        states = [('sleep_state="awake"', 1), ('sleep_state="weights_offloaded"', 0), ('sleep_state="discard_all"', 0)]
        yield from self._family("engine_sleep_state", "gauge", states)
        yield from self._family("kv_cache_usage_perc", "gauge", [("", self.cache_usage)])

    def _counters(self) -> Iterator[str]:
        computed = self.prompt_tokens - self.cached_tokens
        rejected = (("reqs", self.rejected), ("tokens", 0))
        by_source = zip(_SOURCES, (computed, self.cached_tokens, 0), strict=True)
        for name, values in {
            "prefix_cache_queries": [("", self.prefix_queries)],
            "prefix_cache_hits": [("", self.prefix_hits)],
            "num_preemptions": [("", 0)],
            "prompt_tokens": [("", self.prompt_tokens)],
            "prompt_tokens_by_source": [(f'source="{source}"', value) for source, value in by_source],
            "prompt_tokens_cached": [("", self.cached_tokens)],
            "generation_tokens": [("", self.generation_tokens)],
            "request_success": [(f'finished_reason="{reason}"', n) for reason, n in self.succeeded.items()],
            "admission_rejections": [(f'reason="max_num_queued_{what}"', n) for what, n in rejected],
        }.items():
            with_engine = name != "admission_rejections"
            yield from self._family(f"{name}_total", "counter", values, engine=with_engine)
            created = [(label, self._created) for label, _ in values]
            yield from self._family(f"{name}_created", "gauge", created, engine=with_engine)

    def _distributions(self) -> Iterator[str]:
        for name, histogram in self.histograms.items():
            running, buckets = 0, []
            for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                running += count
                buckets.append((f'le="{bound}"', running))
            yield f"# TYPE vllm:{name} histogram"
            yield from self._samples(f"{name}_bucket", buckets)
            yield from self._samples(f"{name}_count", [("", running)])
            yield from self._samples(f"{name}_sum", [("", histogram.total)])
            yield from self._family(f"{name}_created", "gauge", [("", self._created)])

    def _family(
        self, name: str, kind: str, values: Sequence[tuple[str, float]], *, engine: bool = True
    ) -> Iterator[str]:
        yield f"# TYPE vllm:{name} {kind}"
        yield from self._samples(name, values, engine=engine)

    def _samples(self, name: str, values: Sequence[tuple[str, float]], *, engine: bool = True) -> Iterator[str]:
        """Labels stand in alphabetical order, as prometheus_client prints them."""
        for label, value in values:
            labels = [*(['engine="0"'] if engine else []), f'model_name="{self._model}"', *([label] if label else [])]
            yield f"vllm:{name}{{{','.join(sorted(labels))}}} {float(value)!r}"
