"""Which sequences run, and when each of their tokens comes. Time is an argument; the caller sleeps until `next_due`."""

import heapq
from collections.abc import Callable
from itertools import count

from tests.doubles.engine.cache import PrefixCache
from tests.doubles.engine.generation import Sequence
from tests.doubles.engine.metrics import Metrics
from tests.doubles.engine.settings import Settings

OnToken = Callable[[Sequence, bytes], None]


class Scheduler:
    """Waiting sequences by priority and arrival, running ones by the time of their next token."""

    def __init__(self, settings: Settings, cache: PrefixCache, metrics: Metrics) -> None:
        self._cache = cache
        self._metrics = metrics
        self._max_running = settings.max_running
        self._prefill_rate = settings.prefill_rate
        self._pace = settings.token_seconds
        self._size = settings.block_size
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._due: list[tuple[float, int, Sequence]] = []
        self._order = count()
        self._prefill_free = 0.0
        self.running: set[Sequence] = set()
        self.queued: set[Sequence] = set()

    @property
    def in_flight(self) -> int:
        return len(self.running) + len(self.queued)

    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None

    def add(self, sequence: Sequence, now: float) -> None:
        sequence.arrived = now
        self.queued.add(sequence)
        heapq.heappush(self._waiting, (sequence.job.priority, next(self._order), sequence))

    def admit(self, now: float) -> None:
        """Move waiting sequences into the running batch while there is room."""
        while self._waiting and len(self.running) < self._max_running:
            sequence = self._waiting[0][2]
            if sequence not in self.queued:
                heapq.heappop(self._waiting)
                continue
            allocation = self._cache.admit(sequence.tokens, sequence.job.salt, sequence.expected - 1)
            if allocation is None:
                return
            heapq.heappop(self._waiting)
            self.queued.discard(sequence)
            self.running.add(sequence)
            sequence.allocation = allocation
            sequence.hit = allocation.hit
            sequence.created_cache = len(allocation.keys) * self._size - allocation.hit
            sequence.started = now
            self._metrics.prefix_queries += sequence.prompt_length
            self._metrics.prefix_hits += sequence.hit
            ready = now
            if self._prefill_rate:
                begin = max(now, self._prefill_free)
                ready = self._prefill_free = begin + (sequence.prompt_length - sequence.hit) / self._prefill_rate
            heapq.heappush(self._due, (ready, next(self._order), sequence))

    def advance(self, now: float, on_token: OnToken) -> None:
        """Generate one token of every sequence that is due."""
        due, order = self._due, self._order
        batch = []
        while due and due[0][0] <= now:
            batch.append(heapq.heappop(due))
        for at, _, sequence in batch:
            if sequence in self.running:
                text = self.step(sequence, now)
                if sequence.finish_reason is None:
                    heapq.heappush(due, (max(at + self._pace, now) if self._pace else now, next(order), sequence))
                else:
                    self._finish(sequence, now)
                on_token(sequence, text)
        if batch and self._waiting:
            self.admit(now)

    def run_through(self, sequence: Sequence, now: float, on_token: OnToken) -> None:
        """Generate a whole answer at once: what has no pace and no watcher needs no turns."""
        while sequence.finish_reason is None:
            text = self.step(sequence, now)
        self._finish(sequence, now)
        on_token(sequence, text)

    def step(self, sequence: Sequence, now: float) -> bytes:
        metrics = self._metrics
        if not sequence.generated:
            metrics.prompt_tokens += sequence.prompt_length
            metrics.cached_tokens += sequence.hit
            metrics.first_token.observe(now - sequence.arrived)
            sequence.first_at = now
        else:
            metrics.between.observe(now - sequence.last_at)
            if (len(sequence.tokens)) % self._size == 0:
                # The previous token is computed now, and fills its block.
                assert sequence.allocation is not None
                self._cache.fill(sequence.allocation, len(sequence.tokens))
        sequence.last_at = now
        metrics.generation_tokens += 1
        return sequence.advance()

    def drop(self, sequence: Sequence) -> bool:
        """Stop a sequence without counting it as a success. False when it does not run or wait."""
        if sequence in self.running:
            self.running.discard(sequence)
            assert sequence.allocation is not None
            self._cache.free(sequence.allocation)
        elif sequence in self.queued:
            self.queued.discard(sequence)
        else:
            return False
        sequence.finish_reason = "abort"
        return True

    def _finish(self, sequence: Sequence, now: float) -> None:
        self.running.discard(sequence)
        assert sequence.allocation is not None
        self._cache.free(sequence.allocation)
        metrics = self._metrics
        metrics.succeeded[sequence.finish_reason or "stop"] += 1
        histograms = metrics.histograms
        histograms["request_prompt_tokens"].observe(sequence.prompt_length)
        histograms["request_generation_tokens"].observe(sequence.generated)
        histograms["e2e_request_latency_seconds"].observe(now - sequence.arrived)
        histograms["request_queue_time_seconds"].observe(sequence.started - sequence.arrived)
        histograms["request_prefill_time_seconds"].observe(sequence.first_at - sequence.started)
        histograms["request_decode_time_seconds"].observe(sequence.last_at - sequence.first_at)
