"""All requests on their way: each one's journey, and the engines that they are taken away from."""

import asyncio
from collections.abc import Awaitable, Collection, Mapping

from forebay.metering import Spool
from forebay.platform.relay import upstream_errors
from forebay.platform.relay.budget import SOME, Budget
from forebay.platform.relay.call import Call
from forebay.platform.relay.client import Client
from forebay.platform.relay.exchange import Exchange
from forebay.platform.relay.journey import Journey, Means
from forebay.platform.relay.resuming import Resumer
from forebay.platform.relay.suspects import Suspects
from forebay.platform.relay.untold import Untold
from forebay.platform.tiers import TierTable
from forebay.router import EndpointSpec, Prompter, Router

AGAIN_S = 5.0  # seconds until it is looked at again what an endpoint that drains still does


class Relay:
    """`prompters` by model, which may be filled later: without its template no chat is continued."""

    def __init__(
        self,
        router: Router,
        spool: Spool,
        tiers: TierTable,
        *,
        checkpoint_every: float,
        prompters: Mapping[str, Prompter] | None = None,
        disputed: Collection[str] = (),
        drain_grace: Mapping[str, float] | None = None,
    ) -> None:
        """`disputed`: models whose engines make other tokens than their prompters. `drain_grace`: by pool, the seconds
        that requests may still take at an endpoint which drains."""
        known = {} if prompters is None else prompters
        self._means = Means(
            router=router,
            spool=spool,
            tiers=tiers,
            checkpoint_every=checkpoint_every,
            suspects=Suspects(),
            retries=Budget(2 * SOME),
            continuations=Budget(),
            resumer=Resumer(known, disputed),
            untold=Untold(known, disputed),
            live={},
        )
        self._grace = drain_grace or {}
        self._handing: dict[tuple[str, str], asyncio.Task[None]] = {}

    def run(self, call: Call, client: Client) -> Awaitable[None]:
        """Answer `client`. Raises `ApiError` where the answer is an error; the caller says it to the client. Raises
        `ClientLeft` where it has left before anything was sent to an engine."""
        return Journey(call, client, self._means).run()

    def forget(self, pool: str, endpoint: str) -> None:
        """It has gone: one that comes under its name is another."""
        self._means.suspects.clear(pool, endpoint)

    def evict(self, booking: int) -> None:
        """Stop a running request for one of a higher tier. It waits again in the router, and is answered from the start
        or, where the tenant has seen a part of the answer, from there on; else it ends, and is not billed."""
        exchange = self._means.live.get(booking)
        if exchange is not None:
            exchange.take(upstream_errors.preempted())
        else:
            self._means.early.append(booking)

    def drain(self, pool: str, specs: Collection[EndpointSpec]) -> None:
        """Follow which endpoints of a pool drain: what still runs there when their grace is over is handed over."""
        draining = {spec.name for spec in specs if spec.draining}
        for name in draining:
            if (pool, name) not in self._handing:
                self._handing[pool, name] = asyncio.get_running_loop().create_task(self._hand_over(pool, name))
        for at in [at for at in self._handing if at[0] == pool and at[1] not in draining]:
            self._handing.pop(at).cancel()

    async def close(self) -> None:
        tasks = list(self._handing.values())
        self._handing.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _hand_over(self, pool: str, name: str) -> None:
        await asyncio.sleep(self._grace.get(pool, 0.0))
        while True:
            if self._others(pool, name):
                for exchange in list(self._means.live.values()):
                    if exchange.call.pool.name == pool and exchange.endpoint.name == name:
                        await self._let_go(exchange)
                        await asyncio.sleep(0)  # a turn each: there may be thousands
            await asyncio.sleep(AGAIN_S)

    def _others(self, pool: str, name: str) -> bool:
        return any(state.open for other, state in self._means.router.states(pool).items() if other != name)

    async def _let_go(self, exchange: Exchange) -> None:
        """What cannot be continued is left to its engine: it may still finish. So are whole answers, of which nothing
        could be kept."""
        if not exchange.call.inference.stream:
            return
        chain = exchange.chain
        if exchange.begun and isinstance(await self._means.resumer.resume(chain.origin or exchange.call, chain), str):
            return
        exchange.take(upstream_errors.drained())
