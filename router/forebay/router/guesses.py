"""What a pool's endpoints are taken to hold although no event said so: prompts that were just sent to them (pure).

Where events are followed a guess bridges the time until they come. Elsewhere it is all there is, and stays for long.
"""

from forebay.router.loads import Booking
from forebay.router.prefix.index import Index
from forebay.router.prefix.keys import GRID

BRIDGE_S = 10.0  # after a prefill should be done, for events to come: engines send them with every step
LASTING_S = 3600.0
RENEW_S = 600.0  # a conversation that goes on has its beginning written anew this often: of 6,000 keys it costs 0.4 ms
BLOCK = 256  # tokens; an engine computes a prompt's last block again, so counts that differ by one agree
_MOST = 4096  # conversations whose last renewal is remembered, for each endpoint


class Guesses:
    def __init__(self, index: Index) -> None:
        self._index = index
        self._renewed: dict[str, dict[int, float]] = {}  # by endpoint and a prompt's last key: when from its beginning

    def placed(self, booking: Booking, now: float, predicted_s: float, *, followed: bool) -> None:
        """The prompt was sent there, to begin its answer in `predicted_s`."""
        if not len(booking.keys):
            return
        if followed:
            booking.guessed_from = booking.cached // GRID
            until = now + predicted_s + BRIDGE_S
        else:
            booking.guessed_from = self._renewal(booking, now)
            until = now + LASTING_S
        self._index.expect(booking.endpoint, booking.keys, booking.guessed_from, until)

    def begun(self, booking: Booking, now: float, *, followed: bool) -> None:
        """It is computed now: events that tell of it are on their way."""
        if followed:
            self._index.expect(booking.endpoint, booking.keys, booking.guessed_from, now + BRIDGE_S)

    def failed(self, booking: Booking) -> None:
        """It ended before it began: nothing of it is known to be there that was not before."""
        if len(booking.keys):
            self._index.holder(booking.endpoint).expected.drop(booking.keys[booking.cached // GRID :])

    def observed(self, booking: Booking, cached: int, now: float, *, followed: bool) -> None:
        """The engine found so many of the prompt's tokens. Where events are followed it has computed the rest since and
        they say so; but they do not tell again of what was computed before anybody listened."""
        if not len(booking.keys) or booking.cached - BLOCK <= cached < booking.cached + GRID:
            return
        soon = followed and cached < booking.cached + BLOCK
        until = now + (BRIDGE_S if soon else LASTING_S)
        self._index.observe(booking.endpoint, booking.keys, claimed=booking.cached, cached=cached, until=until)
        if not soon:
            self._index.expect(booking.endpoint, booking.keys[: cached // GRID] if followed else booking.keys, 0, until)

    def forget(self, endpoint: str) -> None:
        """It has gone, and one of its name that comes will have nothing."""
        self._renewed.pop(endpoint, None)

    def _renewal(self, booking: Booking, now: float) -> int:
        """Where to begin. The first keys of a conversation must not end before its last ones, nor be pushed out by
        those of others that have ended."""
        renewed = self._renewed.setdefault(booking.endpoint, {})
        known = booking.cached // GRID
        at = renewed.pop(int(booking.keys[known - 1]), None) if known else None
        start, at = (0, now) if at is None or now - at > RENEW_S else (known, at)
        renewed[int(booking.keys[-1])] = at
        if len(renewed) > _MOST:
            del renewed[next(iter(renewed))]
        return start
