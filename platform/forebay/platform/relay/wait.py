"""A request that waits in the router for an engine: for how long, and what its tenant sees of it."""

import asyncio

from forebay.platform.relay.call import Call
from forebay.platform.relay.client import Client, ClientLeft
from forebay.platform.relay.patience import Clock
from forebay.platform.tiers import Terms, TierTable
from forebay.router import Ask, Outcome, Placed, Result, Router


class Wait:
    """All waits of one request, those of its failovers too. `quiet_since`: when its tenant last got something, on the
    event loop's clock."""

    def __init__(self, call: Call, client: Client, router: Router, tiers: TierTable, clock: Clock) -> None:
        self.call = call
        self.client = client
        self._router = router
        self._tiers = tiers
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.quiet_since = clock.came_at
        self._waited_s = 0.0
        self._promised = False  # it had an engine before
        self._tier = call.tier  # in which it is served, once it is
        self._task: asyncio.Task[object] | None = None  # while it waits
        self._left = False
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    @property
    def terms(self) -> Terms:
        """Of the tier in which it is served, or asks to be."""
        return self._tiers[self._tier]

    async def place(self, exclude: tuple[str, ...]) -> Result:
        """As `Router.place`. Raises `ClientLeft` as soon as the tenant has left; nothing is booked then."""
        client, began, timeouts = self.client, self._loop.time(), self.terms.timeouts
        if client.left:
            raise ClientLeft
        left_s = self._clock.left(timeouts, began)
        ask = self.call.ask(
            exclude,
            waited_s=began - self._clock.came_at,
            patience_s=max(0.0, min(timeouts.queue - self._waited_s, left_s)),
            left_s=left_s,
            promised=self._promised,
            tier=self._tier,
        )
        self._task = asyncio.current_task()
        client.on_left = self._end
        if self.call.inference.stream:
            self._timer = self._loop.call_at(self.quiet_since + self.terms.timeouts.heartbeat_after, self._due)
        try:
            return await self._placed(ask)
        except asyncio.CancelledError:
            if self._left and self._task is not None and not self._task.uncancel():
                raise ClientLeft from None
            raise
        finally:
            self._waited_s += self._loop.time() - began
            client.on_left = self._task = None

    async def _placed(self, ask: Ask) -> Result:
        """Ends with nobody writing to the tenant."""
        result: Result = None
        try:
            result = await self._router.place(ask)
            if isinstance(result, Placed):
                self._promised, self._tier = True, result.tier
            self._stop()
            if self._beat is not None:
                await self._beat
                self._beat = None
        except BaseException:
            self._stop()
            if isinstance(result, Placed):
                self._router.ended(result.booking, Outcome())
            if self._beat is not None:
                self._beat.cancel()
                await asyncio.wait((self._beat,))
            raise
        return result

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """The tenant left."""
        if self._task is not None:
            self._left = True
            self._task.cancel()

    def _due(self) -> None:
        self._beat = self._loop.create_task(self._heartbeat())

    async def _heartbeat(self) -> None:
        await self.client.heartbeat()
        self.quiet_since = self._loop.time()
        if self._timer is not None:
            self._timer = self._loop.call_at(self.quiet_since + self.terms.timeouts.heartbeat_after, self._due)
