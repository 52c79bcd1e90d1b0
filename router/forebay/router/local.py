"""A router that runs in this process: the core on a clock, and everything that keeps it informed."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

import zmq

from forebay.router import metrics
from forebay.router.core import BLOCKS_PER_HOLDER, Core
from forebay.router.endpoints import EndpointSpec
from forebay.router.health_prober import Prober
from forebay.router.prefix.blocks import Event
from forebay.router.prefix.follower import Follower
from forebay.router.prefix.keys import Weights
from forebay.router.routing import Ask, Candidate, EndpointState, Following, Outcome, Placed

TICK_S = 0.5
READY_WITHIN_S = 10.0  # seconds after which an endpoint whose events still have not come does not hold up the start

Clock = Callable[[], float]


class _Clocked:
    """What is told to the core, at the time when it is told."""

    def __init__(self, core: Core, clock: Clock) -> None:
        self._core = core
        self._clock = clock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._core}>"

    def begun(self, booking: int) -> None:
        self._core.begun(booking, self._clock())

    def ended(self, booking: int, outcome: Outcome) -> None:
        self._core.ended(booking, outcome, self._clock())

    def failed(self, pool: str, endpoint: str, reason: str, *, at_once: bool = False) -> None:
        self._core.failed(pool, endpoint, reason, at_once=at_once)

    def answered(self, pool: str, endpoint: str) -> None:
        self._core.answered(pool, endpoint)

    def states(self, pool: str) -> dict[str, EndpointState]:
        return self._core.states(pool)


class LocalRouter(_Clocked):
    """`routing.Router` without a wire between."""

    async def place(self, ask: Ask) -> Placed | None:
        return self._core.place(ask, self._clock())

    async def explain(self, ask: Ask) -> list[Candidate]:
        return self._core.explain(ask, self._clock())


class SharedRouter(_Clocked):
    """A router for several owners of bookings, who are on the other end of a wire."""

    def place(self, ask: Ask, owner: int) -> Placed | None:
        return self._core.place(ask, self._clock(), owner)

    def explain(self, ask: Ask) -> list[Candidate]:
        return self._core.explain(ask, self._clock())

    def release_owner(self, owner: int) -> None:
        self._core.release_owner(owner, self._clock())


class _Sink:
    """One endpoint's place in the core, for its follower."""

    def __init__(self, core: Core, pool: str, endpoint: str) -> None:
        self._core = core
        self._pool = pool
        self._endpoint = endpoint

    def apply(self, events: list[Event]) -> None:
        self._core.apply(self._pool, self._endpoint, events)

    def clear(self) -> None:
        self._core.clear(self._pool, self._endpoint)

    def follows(self, following: Following) -> None:
        self._core.follows(self._pool, self._endpoint, following)


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
        names = {pool: [spec.name for spec in specs] for pool, specs in pools.items()}
        self.core = Core(names, weights, blocks_per_holder=blocks_per_endpoint)
        self.shared = SharedRouter(self.core, clock)
        self.router = LocalRouter(self.core, clock)
        self.prober = Prober(pools, tell=self.core.probed, proven=self._proven, connect_timeout=connect_timeout)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.followers = self._followers(pools)
        self._warm = warm
        self._clock = clock
        self._give_up_at = clock() + ready_within
        metrics.show(self.core, clock)

    def __repr__(self) -> str:
        return f"<RouterService {self.core} {'ready' if self.ready else 'not ready'}>"

    @property
    def ready(self) -> bool:
        """Whether what endpoints hold is known as far as it will be soon."""
        if self._clock() >= self._give_up_at:
            return True
        return all(follower.caught_up.is_set() for follower in self.followers.values())

    async def run(self) -> None:
        """Until cancelled. A fault in one of its loops ends all of them, to be started again together."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.prober.run())
            tasks.create_task(self._tick())
            tasks.create_task(self._follow(tasks))

    def close(self) -> None:
        """After `run` has ended."""
        metrics.hide(self.core)
        self.prober.close()
        self._context.destroy(linger=0)

    def _followers(self, pools: Mapping[str, Collection[EndpointSpec]]) -> dict[tuple[str, str], Follower]:
        turns = asyncio.Lock()
        return {
            (pool, spec.name): Follower(
                pool, spec.name, spec.events, spec.replay, _Sink(self.core, pool, spec.name),
                rank=spec.rank, context=self._context, turns=turns,
            )
            for pool, specs in pools.items() for spec in specs if spec.events is not None
        }  # fmt: skip

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        warm, self._warm = self._warm, None
        if warm is not None:
            for pool, endpoint in self.followers:
                self.core.follows(pool, endpoint, Following.STARTING)
            await warm(self)
        for follower in self.followers.values():
            tasks.create_task(follower.run())

    async def _tick(self) -> None:
        while True:
            self.core.tick(self._clock())
            await asyncio.sleep(TICK_S)

    def _proven(self, pool: str, endpoint: str) -> bool:
        return self.core.pools[pool].members[endpoint].condition.proven
