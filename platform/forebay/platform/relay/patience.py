"""How long a request may take, and an engine be silent (pure): deadlines, and when a quiet stream needs a heartbeat.

Times are seconds of one monotonic clock; `heard` is when the engine's last byte came.
"""

from msgspec import Struct

from forebay.platform.config.model import Timeouts


class Clock(Struct):
    """Of a request over all its attempts: when it came, and for how long engines have had it since its tenant last got
    something of the answer."""

    came_at: float
    silent_s: float = 0.0

    def left(self, timeouts: Timeouts, now: float) -> float:
        """Seconds until it has taken as long as a request may."""
        return self.came_at + timeouts.total - now

    def over(self, timeouts: Timeouts, now: float) -> str:
        """Which bound leaves it no time for another engine; empty where none does."""
        if self.left(timeouts, now) <= 0:
            return "total"
        return "first_byte" if self.silent_s >= timeouts.first_byte else ""


class Patience:
    """Of one attempt, sent `now`; `written_at` is when the tenant last got something, and `quiet_since` when it did
    before the attempt."""

    def __init__(
        self, timeouts: Timeouts, clock: Clock, *, stream: bool, now: float, quiet_since: float | None = None
    ) -> None:
        self._timeouts = timeouts
        self._clock = clock
        self._stream = stream
        self.sent_at = now
        self.written_at = now if quiet_since is None else quiet_since
        self.begun = False  # the engine's first byte that the tenant may see has come

    def begin(self) -> None:
        self.begun = True
        self._clock.silent_s = 0.0

    def end(self, now: float) -> None:
        """The attempt is over."""
        if not self.begun:
            self._clock.silent_s += max(0.0, now - self.sent_at)

    def wake_at(self, heard: float) -> float:
        """The next moment at which something may be due."""
        times = [self._clock.came_at + self._timeouts.total, self._quiet_until(heard) - self._earlier_s]
        if self._stream:
            times.append(self.written_at + self._timeouts.heartbeat_after)
        return min(times)

    def hangs(self, now: float, heard: float) -> bool:
        """Whether this engine has been silent for as long as one may be by itself."""
        return now >= self._quiet_until(heard)

    def spent(self, now: float, heard: float) -> str:
        """Which bound on the request, all its attempts together, is reached; empty where none is."""
        if self._clock.left(self._timeouts, now) <= 0:
            return "total"
        return "first_byte" if now >= self._quiet_until(heard) - self._earlier_s else ""

    def heartbeat_due(self, now: float) -> bool:
        return self._stream and now >= self.written_at + self._timeouts.heartbeat_after

    @property
    def _earlier_s(self) -> float:
        return 0.0 if self.begun else self._clock.silent_s

    def _quiet_until(self, heard: float) -> float:
        if self.begun:
            return heard + self._timeouts.idle
        # A stream that trickles comments or half an event has not begun; of a whole answer each byte is a part.
        return (self.sent_at if self._stream else heard) + self._timeouts.first_byte
