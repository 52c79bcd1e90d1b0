"""What an operator sees of how an engine's KV events are followed."""

import logging
from collections.abc import Callable

from prometheus_client import Counter, Gauge

from forebay.router.prefix.blocks import Batch, Removed, Stored
from forebay.router.prefix.sequence import Result

log = logging.getLogger(__name__)

_LABELS = ["pool", "endpoint"]
_KINDS = ("stored", "removed", "cleared", "skipped", "malformed", "misdirected")
_EVENTS = Counter(
    "forebay_kv_events_total",
    "Blocks stored and removed; events cleared, skipped, malformed and misdirected",
    [*_LABELS, "kind"],
)
_GAPS = Counter("forebay_kv_event_gaps_total", "Times that batches were missing", _LABELS)
_REPLAYS = Counter("forebay_kv_event_replays_total", "Replays asked for, by how they ended", [*_LABELS, "result"])
_RESTARTS = Counter("forebay_kv_event_restarts_total", "Times that the engine was found to be another", _LABELS)
_UNDECODABLE = Counter("forebay_kv_event_undecodable_total", "Messages of which nothing could be read", _LABELS)
_FOLLOWING = Gauge("forebay_kv_events_following", "1 while what an endpoint holds is known from its events", _LABELS)


class Counters:
    def __init__(self, pool: str, endpoint: str, following: Callable[[], bool]) -> None:
        self.gaps = _GAPS.labels(pool, endpoint)
        self.restarts = _RESTARTS.labels(pool, endpoint)
        self.undecodable = _UNDECODABLE.labels(pool, endpoint)
        self._replays = {result: _REPLAYS.labels(pool, endpoint, result.value) for result in Result}
        self._events = {kind: _EVENTS.labels(pool, endpoint, kind) for kind in _KINDS}
        self._endpoint = endpoint
        self._warned = False
        self._pool = pool
        _FOLLOWING.labels(pool, endpoint).set_function(lambda: float(following()))

    def forget(self) -> None:
        """The endpoint has gone: what was counted of it is not shown any more."""
        for metric in (_GAPS, _RESTARTS, _UNDECODABLE, _FOLLOWING, _REPLAYS, _EVENTS):
            metric.remove_by_labels({"pool": self._pool, "endpoint": self._endpoint})

    def replayed(self, result: Result) -> None:
        self._replays[result].inc()

    def misdirected(self, batch: Batch) -> None:
        """A batch of another data-parallel rank than is followed: it was not applied."""
        if not self._warned:
            log.warning(
                "endpoint %s publishes KV events of data-parallel rank %d, which are not taken for its own",
                *(self._endpoint, batch.rank),
            )
        self._warned = True
        self._events["misdirected"].inc(len(batch.events))

    def count(self, batch: Batch) -> None:
        counts = {"skipped": batch.skipped, "malformed": batch.undecodable, "stored": 0, "removed": 0, "cleared": 0}
        for event in batch.events:
            if type(event) is Stored:
                counts["stored"] += len(event.hashes)
            elif type(event) is Removed:
                counts["removed"] += len(event.hashes)
            else:
                counts["cleared"] += 1
        for kind, count in counts.items():
            if count:
                self._events[kind].inc(count)
