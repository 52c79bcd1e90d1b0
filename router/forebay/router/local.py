"""A router that runs in this process: the core on a clock, and everything that keeps it informed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import zmq
from msgspec import Struct

from forebay.router import metrics
from forebay.router.clocked import LocalRouter, SharedRouter
from forebay.router.core import BLOCKS_PER_HOLDER, Core
from forebay.router.dispatch import Clock, Dispatch
from forebay.router.endpoints import EndpointSpec, Roster
from forebay.router.health import Finding
from forebay.router.health_prober import Prober
from forebay.router.prefix.blocks import Event
from forebay.router.prefix.follower import Follower
from forebay.router.prefix.keys import Weights
from forebay.router.routing import Following, unplaced
from forebay.router.tiers import Tiers

log = logging.getLogger(__name__)

TICK_S = 0.5
LATE = 256  # requests that are refused in one turn of the loop
READY_WITHIN_S = 10.0  # seconds after which an endpoint whose events still have not come does not hold up the start


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
        tiers: Tiers | None = None,
        ready_within: float = READY_WITHIN_S,
        clock: Clock = time.monotonic,
        warm: "Callable[[RouterService], Awaitable[None]] | None" = None,
    ) -> None:
        self.roster = Roster(dict.fromkeys(pools, ()))
        self.core = Core(dict.fromkeys(pools, ()), weights, blocks_per_holder=blocks_per_endpoint, tiers=tiers)
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
        return {name: len(line.line) for name, line in self.core.lines.items()}

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
            while self.core.late(self._clock(), LATE):
                self._dispatch.tell()
                await asyncio.sleep(0)
            self.core.tick(self._clock())
            self._dispatch.pump()
            await asyncio.sleep(TICK_S)

    def _probed(self, pool: str, endpoint: str, finding: Finding) -> None:
        self.core.probed(pool, endpoint, finding, self._clock())
        self._dispatch.pump()

    def _proven(self, pool: str, endpoint: str) -> bool:
        member = self.core.pools[pool].members.get(endpoint)
        return member is not None and member.condition.proven
