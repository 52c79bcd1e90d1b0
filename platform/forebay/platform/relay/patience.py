"""How long an attempt may be silent (pure): its deadlines, and when a quiet stream needs a heartbeat.

Times are seconds of one monotonic clock; `heard` is when the engine's last byte came.
"""

from forebay.platform.config.model import Timeouts


class Patience:
    """`begun` turns true with the engine's first byte that the tenant may see; `written_at` is when the tenant last got
    one, and `quiet_since` when it did before the attempt."""

    def __init__(self, timeouts: Timeouts, *, stream: bool, now: float, quiet_since: float | None = None) -> None:
        self._timeouts = timeouts
        self._stream = stream
        self.sent_at = now
        self.written_at = now if quiet_since is None else quiet_since
        self.begun = False

    def wake_at(self, heard: float) -> float:
        """The next moment at which something may be due."""
        times = [self.sent_at + self._timeouts.total, self._quiet_until(heard)]
        if self._stream:
            times.append(self.written_at + self._timeouts.heartbeat_after)
        return min(times)

    def overdue(self, now: float, heard: float) -> bool:
        return self.spent(now) or now >= self._quiet_until(heard)

    def spent(self, now: float) -> bool:
        """Whether it has taken all the time that an attempt may take."""
        return now >= self.sent_at + self._timeouts.total

    def heartbeat_due(self, now: float) -> bool:
        return self._stream and now >= self.written_at + self._timeouts.heartbeat_after

    def _quiet_until(self, heard: float) -> float:
        if self.begun:
            return heard + self._timeouts.idle
        # A stream that trickles comments or half an event has not begun; of a whole answer each byte is a part.
        return (self.sent_at if self._stream else heard) + self._timeouts.first_byte
