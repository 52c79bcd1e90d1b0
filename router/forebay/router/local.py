"""A router that runs in this process: the core on a clock, and everything that keeps it informed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import zmq
from msgspec import Struct

from forebay.router import metrics
from forebay.router.core import BLOCKS_PER_HOLDER, Core
from forebay.router.dispatch import Clock, Dispatch, Tell
from forebay.router.endpoints import EndpointSpec, Roster
from forebay.router.health import Finding
from forebay.router.health_prober import Prober
from forebay.router.prefix.blocks import Event
from forebay.router.prefix.follower import Follower
from forebay.router.prefix.keys import Weights
from forebay.router.routing import Ask, EndpointState, Explanation, Following, Outcome, Result, unplaced

log = logging.getLogger(__name__)

TICK_S = 0.5
READY_WITHIN_S = 10.0  # seconds after which an endpoint whose events still have not come does not hold up the start


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

    def states(self, pool: str) -> dict[str, EndpointState]:
        return self._core.states(pool)


class LocalRouter(_Clocked):
    """`routing.Router` without a wire between."""

    async def place(self, ask: Ask) -> Result:
        result = self._dispatch.request(ask)
        return await self._wait(result, ask) if isinstance(result, int) else result

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

    def withdraw(self, number: int) -> None:
        self._dispatch.withdraw(number)

    def explain(self, ask: Ask) -> Explanation:
        return self._dispatch.explain(ask)

    def release_owner(self, owner: int) -> None:
        self._dispatch.release_owner(owner)


class _Sink:
    """One endpoint's place in the core, for its follower."""

    def __init__(self, core: Core, pool: str, endpoint: str) -> None:
        self._core = core
        self._pool = pool
        self._endpoint = endpoint
        self.closed = False  # the endpoint has gone; another one may have its name

    def apply(self, events: list[Event]) -> None:
        if not self.closed:
            self._core.apply(self._pool, self._endpoint, events)

    def clear(self) -> None:
        if not self.closed:
            self._core.clear(self._pool, self._endpoint)

    def follows(self, following: Following) -> None:
        if not self.closed:
            self._core.follows(self._pool, self._endpoint, following)


class _Followed(Struct):
    follower: Follower
    sink: _Sink
    running: "asyncio.Task[None] | None" = None


class RouterService:
    """The core with its prober and its followers of KV events, by pool and endpoint. `shared` serves several owners,
    `router` one. `warm` is awaited before the followers begin, so that it may fill the index and `resume` them."""

    def __init__(
        self,
        pools: Mapping[str, Collection[EndpointSpec]],
        weights: Weights,
        *,
        connect_timeout: float,
        blocks_per_endpoint: int = BLOCKS_PER_HOLDER,
        ready_within: float = READY_WITHIN_S,
        clock: Clock = time.monotonic,
        warm: "Callable[[RouterService], Awaitable[None]] | None" = None,
    ) -> None:
        self.roster = Roster(dict.fromkeys(pools, ()))
        self.core = Core(dict.fromkeys(pools, ()), weights, blocks_per_holder=blocks_per_endpoint)
        self._dispatch = Dispatch(self.core, clock)
        self.shared = SharedRouter(self._dispatch)
        self.router = LocalRouter(self._dispatch)
        self.prober = Prober({}, tell=self._probed, proven=self._proven, connect_timeout=connect_timeout)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._turns = asyncio.Lock()
        self._followed: dict[tuple[str, str], _Followed] = {}
        self._following: asyncio.TaskGroup | None = None  # while followers run
        self._warm = warm
        self._clock = clock
        self._give_up_at = clock() + ready_within
        self._ready = False
        self.discovery: Callable[[], Mapping[str, Struct]] = dict  # how well each pool that is found is known
        metrics.show(self.core, clock)
        for pool, specs in pools.items():
            self.reconcile(pool, specs)

    def __repr__(self) -> str:
        return f"<RouterService {self.core} {'ready' if self.ready else 'not ready'}>"

    @property
    def ready(self) -> bool:
        """Whether what endpoints hold is known as far as it will be soon. Those that come later do not matter."""
        if not self._ready:
            caught_up = all(followed.follower.caught_up.is_set() for followed in self._followed.values())
            self._ready = caught_up or self._clock() >= self._give_up_at
        return self._ready

    @property
    def waiting(self) -> dict[str, int]:
        """Requests that wait for an engine, by pool."""
        return {name: len(pool.line) for name, pool in self.core.pools.items()}

    @property
    def followers(self) -> dict[tuple[str, str], Follower]:
        """By pool and endpoint."""
        return {key: followed.follower for key, followed in self._followed.items()}

    def reconcile(self, pool: str, specs: Iterable[EndpointSpec]) -> None:
        """Have these endpoints in a pool, and no others. One that is still the same process keeps all that is known of
        it; one that goes is picked no more, while what runs there goes on. Names must differ. Raises `KeyError` for a
        pool that is not configured."""
        wanted = {spec.name: spec for spec in specs}
        known = {spec.name: spec for spec in self.roster.pools[pool]}
        for name, spec in known.items():
            if name not in wanted or not spec.is_still(wanted[name]):
                log.info("endpoint %s of pool %s at %s has gone", name, pool, spec.url)
                self._remove(pool, name)
        for name, spec in wanted.items():
            if name not in self.core.pools[pool].members:
                log.info("endpoint %s of pool %s is at %s", name, pool, spec.url)
                self._add(pool, spec)
            self.core.group(pool, name, spec.group)
            self.core.drain(pool, name, spec.draining)
        self.prober.keep(pool, wanted.values())
        self.roster.change(pool, wanted.values())
        self._dispatch.pump()

    async def run(self) -> None:
        """Until cancelled. A fault in one of its loops ends all of them, to be started again together."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.prober.run())
                tasks.create_task(self._tick())
                tasks.create_task(self._follow(tasks))
        finally:
            self._following = None

    def close(self) -> None:
        """After `run` has ended."""
        metrics.hide(self.core)
        self.prober.close()
        self._context.destroy(linger=0)

    def _add(self, pool: str, spec: EndpointSpec) -> None:
        self.core.add(pool, spec.name)
        if why := unplaced(spec.group.role):
            log.warning("endpoint %s of pool %s gets no requests: %s", spec.name, pool, why)
        if spec.events is None:
            return
        sink = _Sink(self.core, pool, spec.name)
        follower = Follower(
            pool, spec.name, spec.events, spec.replay, sink, rank=spec.rank, context=self._context, turns=self._turns
        )
        followed = self._followed[pool, spec.name] = _Followed(follower, sink)
        if self._following is not None:
            followed.running = self._following.create_task(follower.run())

    def _remove(self, pool: str, name: str) -> None:
        followed = self._followed.pop((pool, name), None)
        if followed is not None:
            followed.sink.closed = True
            followed.follower.forget()
            if followed.running is not None:
                followed.running.cancel()
        self.core.remove(pool, name)

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        warm, self._warm = self._warm, None
        if warm is not None:
            for pool, endpoint in self._followed:
                self.core.follows(pool, endpoint, Following.STARTING)
            await warm(self)
        self._following = tasks
        for followed in self._followed.values():
            followed.running = tasks.create_task(followed.follower.run())

    async def _tick(self) -> None:
        while True:
            self.core.tick(self._clock())
            self._dispatch.pump()
            await asyncio.sleep(TICK_S)

    def _probed(self, pool: str, endpoint: str, finding: Finding) -> None:
        self.core.probed(pool, endpoint, finding, self._clock())
        self._dispatch.pump()

    def _proven(self, pool: str, endpoint: str) -> bool:
        member = self.core.pools[pool].members.get(endpoint)
        return member is not None and member.condition.proven
