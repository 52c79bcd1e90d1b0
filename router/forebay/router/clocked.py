"""A core on a clock, as those who send requests see it: in this process, or each worker by itself."""

import asyncio

from forebay.router.dispatch import Dispatch, Tell, TellEviction
from forebay.router.routing import Ask, EndpointState, Explanation, Outcome, Reading, Result


class _Clocked:
    """What is told to the core, at the time when it is told; those who wait hear what comes of it."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._core = dispatch.core
        self._clock = dispatch.clock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._core}>"

    def begun(self, booking: int) -> None:
        self._core.begun(booking, self._clock())
        self._dispatch.pump()

    def ended(self, booking: int, outcome: Outcome) -> None:
        self._core.ended(booking, outcome, self._clock())
        self._dispatch.pump()

    def failed(self, pool: str, endpoint: str, reason: str, *, at_once: bool = False) -> None:
        self._core.failed(pool, endpoint, reason, self._clock(), at_once=at_once)
        self._dispatch.pump()

    def answered(self, pool: str, endpoint: str) -> None:
        self._core.answered(pool, endpoint, self._clock())
        self._dispatch.pump()

    def reading(self, pool: str) -> Reading:
        return self._core.reading(pool)

    def states(self, pool: str) -> dict[str, EndpointState]:
        return self._core.states(pool)


class LocalRouter(_Clocked):
    """`routing.Router` without a wire between."""

    async def place(self, ask: Ask) -> Result:
        result = self._dispatch.request(ask)
        return await self._wait(result, ask) if isinstance(result, int) else result

    def listen_evictions(self, tell: TellEviction) -> None:
        self._dispatch.listen_evictions(tell)

    async def explain(self, ask: Ask) -> Explanation:
        return self._dispatch.explain(ask)

    async def _wait(self, number: int, ask: Ask) -> Result:
        """Whoever is cancelled here leaves nothing booked, even if it was placed in the same moment."""
        dispatch = self._dispatch
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def tell(result: Result) -> None:
            if future.done():
                dispatch.give_back(result)
            else:
                future.set_result(result)

        dispatch.hear(number, ask, tell)
        try:
            return await future
        except BaseException:
            if future.done() and not future.cancelled():
                dispatch.give_back(future.result())
                dispatch.pump()
            else:
                dispatch.withdraw(number)
            raise


class SharedRouter(_Clocked):
    """A router for several owners of bookings, who are on the other end of a wire."""

    def place(self, ask: Ask, owner: int, tell: Tell) -> int | None:
        """Call `tell`, once, with what becomes of a request. It waits if there is a number, to withdraw it by."""
        result = self._dispatch.request(ask, owner)
        if not isinstance(result, int):
            tell(result)
            return None
        self._dispatch.hear(result, ask, tell, owner)
        return result

    def within_s(self, number: int) -> float:
        return self._dispatch.within_s(number)

    def listen_evictions(self, owner: int, tell: TellEviction) -> None:
        self._dispatch.listen_evictions(tell, owner)

    def withdraw(self, number: int) -> None:
        self._dispatch.withdraw(number)

    def explain(self, ask: Ask) -> Explanation:
        return self._dispatch.explain(ask)

    def release_owner(self, owner: int) -> None:
        self._dispatch.release_owner(owner)
